"""A collective call on flat tensors, what one rank executes for it, and a record of how it was performed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch
    from torch import distributed as dist

    from collectives.core.schedule import Ints
    from collectives.engine.program import Plan
    from collectives.machine import Machine


class Performed(NamedTuple):
    """A call as a back end has performed it: its algorithm, and the segments of a chunk if the back end knows them.

    ``machine`` is the one by which "auto" has chosen; None if it did not choose, or by
    `autotune.DEFAULT`. ``executor`` says what of ours followed the program: compiled code or
    Python. ``transport`` says what carried the call: shared memory, TCP, or both.
    """

    algorithm: str
    segments: int | None = None
    machine: Machine | None = None
    executor: str | None = None
    transport: str | None = None


class Call(NamedTuple):
    """One collective on one rank's tensors, as ``torch.distributed`` would be asked for it.

    Where torch works in place (all_reduce, broadcast, reduce) ``input`` and ``output`` are the same
    tensor. In a scatter only the root has an input, in a gather only the root has an output; the
    parts of all ranks lie in it one after the other. ``splits`` are the elements that go to and
    come from each rank in an all-to-all that is called with split sizes: on all ranks, or on none.
    ``root`` is a rank within the group. ``algorithm`` and ``segments`` matter to our own back end
    only, and so do ``background``, for a call that shares no connection with others, and
    ``barrier``: no rank returns before all have made the same call, which costs rooted calls a
    barrier.
    """

    collective: str
    output: torch.Tensor | None
    input: torch.Tensor | None
    op: dist.ReduceOp.RedOpType | None = None
    root: int | None = None
    group: dist.ProcessGroup | None = None
    algorithm: str = "auto"
    segments: int | None = None
    splits: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    background: bool = False
    barrier: bool = False

    def any_tensor(self) -> torch.Tensor:
        """Return the output, or else the input, which have one dtype and device.

        Raises ValueError without either.
        """
        tensor = self.output if self.output is not None else self.input
        if tensor is None:
            raise ValueError(f"{self.collective} without any tensor")
        return tensor

    def flat_input(self) -> torch.Tensor:
        """Return the input, flat and without its gradient.

        Raises ValueError if this rank has none.
        """
        return _flat(self.input, f"{self.collective} needs an input on this rank")

    def flat_output(self) -> torch.Tensor:
        """Return the output, flat and without its gradient.

        Raises ValueError if this rank has none.
        """
        return _flat(self.output, f"{self.collective} needs an output on this rank")


class CompiledCall(NamedTuple):
    """One rank's part in calls of one key.

    ``messages`` is the program of a call that goes by messages alone. Where ranks share memory
    there is none, but ``stages``: a `shm.SharedCall` on its host, or a plan of messages between
    hosts. Where ``is_shared``, one tensor is source and target
    of one stage in shared memory. Where ``waits_for_all``, no rank returns before all have called.
    """

    messages: Plan | None
    edges: Ints
    n: int
    signature: bytes
    performed: Performed
    stages: tuple[Any, ...] = ()
    is_shared: bool = False
    waits_for_all: bool = False

    @property
    def plan(self) -> Plan:
        """Return the program of messages. Raises ValueError for a call in stages, which has none."""
        if self.messages is None:
            raise ValueError("program of messages: got a call in stages, expected one without")
        return self.messages


def _flat(tensor: torch.Tensor | None, needed: str) -> torch.Tensor:
    if tensor is None:
        raise ValueError(needed)
    return tensor if tensor.dim() == 1 and not tensor.requires_grad else tensor.detach().view(-1)

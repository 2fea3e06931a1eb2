"""Whoever can perform a collective on tensors: one function, ``perform(call)``, in a module each.

A back end is imported only when it is asked for. One that is not there says why, in one line (`presence`).
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from collectives.contracts import REDUCING

if TYPE_CHECKING:
    import torch
    from torch import distributed as dist

    from collectives.autotune import Choice


class Entry(NamedTuple):
    """A back end: its module, what its messages travel by, what alone can start its ranks, and what it cannot do."""

    module: str
    transport: str
    where: str | None = None  # None: whatever starts processes, as all meet in a process group of torch
    lacks: tuple[str, ...] = ()  # collectives, ops, dtypes, or a collective and an op


# Name on the command line and in every row.
BACKENDS = {
    "p2p": Entry("collectives.backends.p2p", "gloo"),
    "gloo": Entry("collectives.backends.torch_native", "gloo", lacks=("avg",)),
    "p2p_nccl": Entry("collectives.backends.p2p", "nccl"),
    "nccl": Entry("collectives.backends.torch_native", "nccl", lacks=("avg",)),
    "horovod": Entry(
        "collectives.backends.horovod",
        "horovod",
        "horovodrun",
        (
            *("reduce", "scatter", "gather", "bfloat16", "avg"),
            *("reduce_scatter prod", "reduce_scatter max", "reduce_scatter min"),
        ),
    ),
    "mpi": Entry("collectives.backends.mpi", "mpi", "mpirun", ("float16", "bfloat16", "avg")),
}


def lacking(name: str, collective: str, op: str, dtype: str) -> str | None:
    """What a back end cannot do of this, in one line; None where it can.

    "avg" is lacking also where a library multiplies by 1/p instead of dividing by p: rounded twice, it would not pass
    for right.

    >>> lacking("horovod", "gather", "sum", "float32")
    "horovod has no 'gather'; it lacks reduce, scatter, gather, bfloat16, avg, reduce_scatter prod, \
reduce_scatter max, reduce_scatter min"
    """
    lacks, reduces = BACKENDS[name].lacks, collective in REDUCING
    asked = [collective, dtype, *([op, f"{collective} {op}"] if reduces else [])]
    found = next((what for what in asked if what in lacks), None)
    return found and f"{name} has no {found!r}; it lacks {', '.join(lacks)}"


@dataclass(frozen=True, slots=True)
class Call:
    """One collective on one rank's tensors, as ``torch.distributed`` would be asked for it.

    Where torch works in place (all_reduce, broadcast, reduce) ``input`` and ``output`` are the same tensor. In a
    scatter only the root has an input, in a gather only the root has an output; the parts of all ranks lie in it
    one after the other. ``splits`` are the elements that go to and come from each rank in an all-to-all that is called
    with split sizes: on all ranks, or on none. ``root`` is a rank within the group. ``algorithm`` and ``segments``
    matter to our own back end only, and so does ``background``: such a call shares no connection with others.
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

    def some(self) -> torch.Tensor:
        """A tensor of the call, to know its dtype and device by."""
        tensor = self.output if self.output is not None else self.input
        if tensor is None:
            raise ValueError(f"{self.collective} without any tensor")
        return tensor

    def given(self) -> torch.Tensor:
        """The input, flat and without its gradient; an error where this rank should have one and has not."""
        return _flat(self.input, f"{self.collective} needs an input on this rank")

    def wanted(self) -> torch.Tensor:
        """The output, flat and without its gradient; an error where this rank should have one and has not."""
        return _flat(self.output, f"{self.collective} needs an output on this rank")


def _flat(tensor: torch.Tensor | None, needed: str) -> torch.Tensor:
    if tensor is None:
        raise ValueError(needed)
    return tensor if tensor.dim() == 1 and not tensor.requires_grad else tensor.detach().view(-1)


class Backend(Protocol):
    """What a back end's module offers."""

    def perform(self, call: Call) -> Choice | None:
        """Perform the collective, and say by what, if it was ours to choose; every rank of the group calls it alike."""


def backend(name: str) -> Backend:
    """The back end's module; ValueError for an unknown name, ImportError where its library is absent."""
    if name not in BACKENDS:
        raise ValueError(f"unknown backend {name!r}; known are {', '.join(BACKENDS)}")
    module: Backend = importlib.import_module(BACKENDS[name].module)
    return module

"""Back ends: objects that run one collective on tensors.

`BACKENDS` names them, and `backend` imports an object's file when asked for it. An absent library says why, in one line
(`presence`). Facts about a back end are attributes in its file, so no other file tests its name. ``mpi:ring`` and
``nccl:Tree/Simple`` name a library's own algorithms (`named`, `variables_for`).
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from collectives.contracts import REDUCING
from collectives.errors import unknown

if TYPE_CHECKING:
    import torch
    from torch import distributed as dist

    from collectives.machine import Machine

# Name on the command line and in every row -> the file and the object in it.
BACKENDS = {
    "p2p": "collectives.backends.p2p:P2P",
    "gloo": "collectives.backends.torch_native:GLOO",
    "p2p_nccl": "collectives.backends.p2p:P2P_NCCL",
    "nccl": "collectives.backends.torch_native:NCCL",
    "horovod": "collectives.backends.horovod:HOROVOD",
    "mpi": "collectives.backends.mpi:MPI",
}


class Performed(NamedTuple):
    """What a back end did: its algorithm, into how many segments that cut a chunk if the back end knows, and by what.

    ``machine`` is the one by which "auto" has chosen; None if it did not choose, or by `autotune.DEFAULT`. ``executor``
    says what of ours followed the program: compiled code or Python. ``transport`` says what carried the call:
    shared memory, TCP, or both.
    """

    algorithm: str
    segments: int | None = None
    machine: Machine | None = None
    executor: str | None = None
    transport: str | None = None


class Presence(NamedTuple):
    """A back end on this machine; ``absent`` is the reason why it is absent, None where it is present."""

    backend: str
    version: str = ""
    devices: str = ""
    absent: str | None = None


class Backend(ABC):
    """A library, or code of ours, under one name. Importing its file imports neither torch nor the library."""

    # The only launcher whose ranks it works on; None if any launcher's will do, because they meet in torch's group.
    launcher: str | None = None
    # Whether its threads poll all the time, so that it needs ranks of its own, not to disturb the timings of others.
    busy_polls = False
    # Whether it executes schedules of ours, so that every algorithm of `collectives list` is one of its own.
    takes_schedules = False
    # Whether gathers and scatters may work in place: input or output is a part of the other.
    takes_overlapping = True
    # Packages whose versions an environment record has.
    packages: tuple[str, ...] = ()
    # Collectives, dtypes, ops, and collectives with an op that it does not have.
    missing: tuple[str, ...] = ()

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def version(self) -> str:
        """Version of the library. Raises ImportError with the reason where it is absent on this machine."""

    @abstractmethod
    def devices(self) -> str:
        """The devices of this machine that it works on, as text; only called where it is present."""

    @abstractmethod
    def perform(self, call: Call) -> Performed:
        """Perform the collective; every rank of the group calls it alike. Raises ValueError for one that is missing."""

    def available(self) -> str | None:
        """Why it is absent on this machine, in one line; None where it is present."""
        try:
            self.version()
        except ImportError as error:
            return str(error)
        return None

    def unsupported(self, collective: str, op: str, dtype: str) -> str | None:
        """What it does not have of this, in one line; None where it has everything.

        "avg" is missing also where a library multiplies by 1/p instead of dividing by p: that rounds twice.

        >>> backend("mpi").unsupported("gather", "sum", "bfloat16")
        "mpi has no 'bfloat16'; it lacks float16, bfloat16, avg"
        """
        asked = [collective, dtype, *([op, f"{collective} {op}"] if collective in REDUCING else [])]
        found = next((what for what in asked if what in self.missing), None)
        return found and f"{self.name} has no {found!r}; it lacks {', '.join(self.missing)}"

    def variables(self, algorithm: str, collective: str) -> dict[str, str] | None:
        """The environment that selects an algorithm of the library when ranks start; None if it offers no choice.

        Raises ValueError for an algorithm that it does not have.
        """
        del algorithm, collective
        return None

    def device(self) -> torch.device:
        """Where this rank's tensors are. Raises RuntimeError if this rank has no such device."""
        import torch

        return torch.device("cpu")

    def group(self) -> dist.ProcessGroup | None:
        """The process group of all ranks that it works in; None for torch's default group."""
        return None

    def record(self) -> dict[str, Any]:
        """What it adds to this rank's environment record, besides versions of packages: values that JSON has."""
        return {}

    def flush(self) -> None:  # noqa: B027  nothing, for most libraries
        """Send what is still pending; every rank calls it after a collective, outside of the measured time."""

    def close(self) -> None:  # noqa: B027  nothing, for most libraries
        """Release what `perform` has made for all calls; every rank calls it after the last one."""


class Call(NamedTuple):
    """One collective on one rank's tensors, as ``torch.distributed`` would be asked for it.

    Where torch works in place (all_reduce, broadcast, reduce) ``input`` and ``output`` are the same tensor. In a
    scatter only the root has an input, in a gather only the root has an output; the parts of all ranks lie in it
    one after the other. ``splits`` are the elements that go to and come from each rank in an all-to-all that is called
    with split sizes: on all ranks, or on none. ``root`` is a rank within the group. ``algorithm`` and ``segments``
    matter to our own back end only, and so do ``background``, for a call that shares no connection with others, and
    ``agreed``: no rank returns before all have made the same call, which costs rooted calls a barrier.
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
    agreed: bool = False

    def any_tensor(self) -> torch.Tensor:
        """The output, or else the input: both have the call's dtype and device. Raises ValueError without either."""
        tensor = self.output if self.output is not None else self.input
        if tensor is None:
            raise ValueError(f"{self.collective} without any tensor")
        return tensor

    def flat_input(self) -> torch.Tensor:
        """The input, flat and without its gradient. Raises ValueError if this rank has none."""
        return _flat(self.input, f"{self.collective} needs an input on this rank")

    def flat_output(self) -> torch.Tensor:
        """The output, flat and without its gradient. Raises ValueError if this rank has none."""
        return _flat(self.output, f"{self.collective} needs an output on this rank")


def _flat(tensor: torch.Tensor | None, needed: str) -> torch.Tensor:
    if tensor is None:
        raise ValueError(needed)
    return tensor if tensor.dim() == 1 and not tensor.requires_grad else tensor.detach().view(-1)


@cache
def backend(name: str) -> Backend:
    """The back end of a name. Raises ValueError for an unknown one; an absent library raises only when it is used."""
    if name not in BACKENDS:
        raise ValueError(unknown("backend", name, BACKENDS))
    module, _, attribute = BACKENDS[name].partition(":")
    return cast(Backend, getattr(importlib.import_module(module), attribute))


def presence(name: str) -> Presence:
    """What this machine has of a back end."""
    one = backend(name)
    try:
        return Presence(name, one.version(), one.devices())
    except ImportError as error:
        return Presence(name, absent=str(error))


def need(name: str) -> None:
    """Raise ImportError, with the reason, where a back end is absent."""
    if absent := backend(name).available():
        raise ImportError(f"{name} is absent: {absent}")


def named(typed: str) -> tuple[str, str]:
    """The back end and its algorithm out of what was typed.

    >>> named("mpi:ring"), named("gloo")
    (('mpi', 'ring'), ('gloo', 'default'))
    """
    name, _, algorithm = typed.partition(":")
    return name, algorithm or "default"


def variables_for(typed: str, collective: str) -> dict[str, str]:
    """The variables to set before the ranks of this algorithm start. Raises ValueError for an unknown one.

    >>> variables_for("nccl:Tree/Simple", "all_reduce")
    {'NCCL_ALGO': 'Tree', 'NCCL_PROTO': 'Simple'}
    """
    name, algorithm = named(typed)
    one = backend(name)
    if ":" not in typed:
        return {}
    chosen = one.variables(algorithm, collective)
    if chosen is None:
        offer = sorted(each for each in BACKENDS if type(backend(each)).variables is not Backend.variables)
        raise ValueError(f"{name} has no algorithms to choose from, so not {typed!r}; {' and '.join(offer)} have")
    return chosen

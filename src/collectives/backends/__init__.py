"""Back ends: objects that run one collective on tensors.

`BACKENDS` names them, and `backend` imports an object's file when asked for it. An absent library
says why, in one line (`presence`). Facts about a back end are attributes in its file, so no other
file tests its name. ``mpi:ring``, ``mpi:sm`` and ``nccl:Tree/Simple`` name a library's own
algorithms (`named`, `variables_for`).
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, cast

from collectives.algorithms import NEUTRAL, Mark
from collectives.core.contracts import REDUCING
from collectives.errors import unknown

if TYPE_CHECKING:
    import torch
    from torch import distributed as dist
    from torch import nn
    from torch.optim import Optimizer

    from collectives.engine.call import Call, Performed

# Name on the command line and in every row -> the file and the object in it.
BACKENDS = {
    "p2p": "collectives.backends.p2p:P2P",
    "gloo": "collectives.backends.torch_native:GLOO",
    "p2p_nccl": "collectives.backends.p2p:P2P_NCCL",
    "nccl": "collectives.backends.torch_native:NCCL",
    "horovod": "collectives.backends.horovod:HOROVOD",
    "mpi": "collectives.backends.mpi:MPI",
    "mpich": "collectives.backends.mpi:MPICH",
    "impi": "collectives.backends.mpi:INTEL_MPI",
}


class Presence(NamedTuple):
    """Describe a back end on this machine.

    ``absent`` is the reason why it is absent, None where it is present.
    """

    backend: str
    version: str = ""
    devices: str = ""
    absent: str | None = None


class Backend(ABC):
    """Wrap a library, or code of ours, under one name.

    Importing its file imports neither torch nor the library.
    """

    # The only launcher whose ranks it works on; None if any launcher's will do, because they meet
    # in torch's group.
    launcher: str | None = None
    # Whether its threads poll all the time, so that it needs ranks of its own, not to disturb the
    # timings of others.
    busy_polls = False
    # Whether its ranks can be on emulated hosts, where the cluster starts them.
    on_emulated_hosts = True
    # Whether it executes schedules of ours, so that every algorithm of `collectives list` is one of
    # its own.
    takes_schedules = False
    # Whether gathers and scatters may work in place: input or output is a part of the other.
    takes_overlapping = True
    # Packages whose versions an environment record has.
    packages: tuple[str, ...] = ()
    # Whether its ranks may meet in a torch process group, so that it can join replicas that train.
    joins_group = True
    # The environment variable of the bytes up to which it fuses small tensors into one; None where
    # it fuses none.
    fusion_variable: str | None = None
    # Whether it has an optimizer that sums gradients itself (`wrap_optimizer`).
    wraps_optimizers = False

    # What it performs. A collective, dtype or op that is not named here is refused before any rank
    # starts, so a new one is no back end's until its file names it.
    collectives: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    # The ops of a collective that has fewer of them than the others.
    ops_of: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    # How figures and tables show it: its name in a text, what follows an algorithm of ours in the
    # name of a series, its look where it chose the algorithm itself, and where "auto" did.
    title = ""
    suffix = ""
    mark: Mark = NEUTRAL
    auto_mark: Mark = NEUTRAL

    def __init__(self, name: str) -> None:
        self.name = name
        self.title = self.title or name

    @property
    def on_gpus(self) -> bool:
        """True if its tensors are on GPUs, which ranks can share."""
        return False

    @abstractmethod
    def version(self) -> str:
        """Return the version of the library.

        Raises ImportError with the reason where it is absent on this machine.
        """

    @abstractmethod
    def devices(self) -> str:
        """Return the devices of this machine that it works on, as text.

        Only called where it is present.
        """

    @abstractmethod
    def perform(self, call: Call) -> Performed:
        """Perform the collective; every rank of the group calls it alike.

        Raises ValueError for one that it does not have.
        """

    def bind(self, call: Call) -> Callable[[], Performed]:
        """Return what performs this call, with what its library needs instead of tensors made before."""
        return partial(self.perform, call)

    def prepare(self, call: Call) -> AbstractContextManager[Callable[[], None]]:
        """Prepare a persistent call: what performs it on the same tensors as often as it is called, within a ``with``.

        Every rank of the group prepares it alike. Raises ValueError where the library has no
        persistent collectives.
        """
        del call
        raise ValueError(_not_persistent(self.name))

    def available(self) -> str | None:
        """Return in one line why it is absent on this machine; None where it is present."""
        try:
            self.version()
        except ImportError as error:
            return str(error)
        return None

    def unsupported(self, collective: str, op: str, dtype: str) -> str | None:
        """Return in one line what it does not have of this; None where it has everything.

        The op matters to a collective that reduces. A library that multiplies by 1/p instead of
        dividing by p does not have "avg", because that rounds twice.

        >>> backend("mpi").unsupported("gather", "sum", "bfloat16")
        "mpi has no 'bfloat16', expected one of float32, float64, int32, int64"
        """
        if collective not in self.collectives:
            return self._has_no(collective, self.collectives)
        if dtype not in self.dtypes:
            return self._has_no(dtype, self.dtypes)
        if collective not in REDUCING:
            return None
        if op not in self.ops:
            return self._has_no(op, self.ops)
        ops = self.ops_of.get(collective, self.ops)
        if op not in ops:
            return self._has_no(f"{collective} {op}", ops)
        return None

    def _has_no(self, asked: str, known: tuple[str, ...]) -> str:
        return f"{self.name} has no {asked!r}, expected one of {', '.join(known)}"

    def variables(self, algorithm: str, collective: str) -> dict[str, str] | None:
        """Return the variables that select an algorithm of the library when ranks start.

        None if it offers no choice.

        Raises ValueError for an algorithm that it does not have.
        """
        del algorithm, collective
        return None

    def device(self) -> torch.device:
        """Return the device of this rank's tensors.

        Raises RuntimeError if this rank has no such device.
        """
        import torch

        return torch.device("cpu")

    def group(self) -> dist.ProcessGroup | None:
        """Return the process group of all ranks that it works in.

        None for torch's default group.
        """
        return None

    def is_started(self) -> bool:
        """Return True if its launcher has started this process as a rank, which needs no torch group then."""
        return False

    def place(self) -> tuple[int, int]:
        """Return the number of this rank, and how many there are: those of torch's default group."""
        from torch import distributed as dist

        return dist.get_rank(), dist.get_world_size()

    def wrap_optimizer(self, optimizer: Optimizer, model: nn.Module) -> Optimizer:
        """Return the library's own optimizer around torch's: its step sums the gradients over all ranks first.

        Raises ValueError where the library has none.
        """
        del optimizer, model
        raise ValueError(f"{self.name} has no optimizer of its own")

    def predict(self, call: Call) -> float | None:
        """Return the seconds that the library itself predicts for a call that was performed before.

        None without them.

        Every rank of the group calls it alike. Nothing is sent.
        """
        del call
        return None

    def record(self) -> dict[str, Any]:
        """Return what it adds to this rank's environment record besides versions of packages: values that JSON has."""
        return {}

    def flush(self) -> None:  # noqa: B027  nothing, for most libraries
        """Send what is still pending.

        Every rank calls it after a collective, outside of the measured time.
        """

    def close(self) -> None:  # noqa: B027  nothing, for most libraries
        """Release what `perform` has made for all calls; every rank calls it after the last one."""


@cache
def backend(name: str) -> Backend:
    """Return the back end of a name.

    Raises ValueError for an unknown one; an absent library raises when it is used.
    """
    if name not in BACKENDS:
        raise ValueError(unknown("backend", name, BACKENDS))
    module, _, attribute = BACKENDS[name].partition(":")
    return cast(Backend, getattr(importlib.import_module(module), attribute))


def presence(name: str) -> Presence:
    """Describe what this machine has of a back end."""
    one = backend(name)
    try:
        return Presence(name, one.version(), one.devices())
    except ImportError as error:
        return Presence(name, absent=str(error))


def need(name: str) -> None:
    """Raise ImportError, with the reason, where a back end is absent."""
    absent = backend(name).available()
    if absent:
        raise ImportError(f"{name} is absent: {absent}")


def named(typed: str) -> tuple[str, str]:
    """Split what was typed into the back end and its algorithm.

    >>> named("mpi:ring"), named("gloo")
    (('mpi', 'ring'), ('gloo', 'default'))
    """
    name, _, algorithm = typed.partition(":")
    return name, algorithm or "default"


def variables_for(typed: str, collective: str) -> dict[str, str]:
    """Return the variables to set before the ranks of this algorithm start.

    Raises ValueError for an unknown one.

    >>> variables_for("nccl:Tree/Simple", "all_reduce")
    {'NCCL_ALGO': 'Tree', 'NCCL_PROTO': 'Simple'}
    """
    name, algorithm = named(typed)
    one = backend(name)
    if ":" not in typed:
        return {}
    chosen = one.variables(algorithm, collective)
    if chosen is None:
        offer = sorted(
            each for each in BACKENDS if type(backend(each)).variables is not Backend.variables
        )
        raise ValueError(
            f"{name} has no algorithms to choose from, so not {typed!r}; {' and '.join(offer)} have"
        )
    return chosen


def need_persistent(typed: str) -> None:
    """Raise ValueError for a back end without persistent collectives, or where a library's algorithm is named.

    >>> need_persistent("gloo")
    Traceback (most recent call last):
    ...
    ValueError: gloo has no persistent collectives; p2p, p2p_nccl, mpi, mpich and impi have
    """
    if ":" in typed or type(backend(typed)).prepare is Backend.prepare:
        raise ValueError(_not_persistent(typed))


def _not_persistent(typed: str) -> str:
    able = [each for each in BACKENDS if type(backend(each)).prepare is not Backend.prepare]
    return f"{typed} has no persistent collectives; {', '.join(able[:-1])} and {able[-1]} have"

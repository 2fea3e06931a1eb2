"""Our own back end: the engine over TCP and shared memory, or over NCCL."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from collectives.algorithms import BLUE, INDIGO, SKY, Mark
from collectives.backends import Backend
from collectives.backends.torch_native import OnCpus, OnGpus
from collectives.core.contracts import CONTRACTS
from collectives.engine.call import Call, Performed


class _PointToPoint(Backend):
    takes_schedules = True
    collectives = tuple(CONTRACTS)  # whatever has a contract has schedules, and they are performed
    ops = ("sum", "avg", "prod", "max", "min")
    packages: tuple[str, ...] = ("torch", "numba")

    def perform(self, call: Call) -> Performed:
        """Perform the collective, as `group.perform` says."""
        from collectives.engine.group import perform

        return perform(call)

    def bind(self, call: Call) -> Callable[[], Performed]:
        """Return what performs this call by `group.perform`."""
        from collectives.engine.group import perform

        return partial(perform, call)

    def prepare(self, call: Call) -> AbstractContextManager[Callable[[], None]]:
        """Prepare a persistent call, as `group.prepare` says."""
        from collectives.engine.group import prepare

        return nullcontext(prepare(call))


class OverTcp(_PointToPoint, OnCpus):
    """Reduce and move CPU tensors over TCP and shared memory of our own."""

    mark = BLUE
    auto_mark = Mark(SKY.colour, "*")


class OverNccl(_PointToPoint, OnGpus):
    """Reduce and move CUDA tensors over NCCL's sends and receives."""

    suffix = " over NCCL"
    mark = SKY
    auto_mark = Mark(INDIGO.colour, "X")


P2P, P2P_NCCL = OverTcp("p2p"), OverNccl("p2p_nccl")

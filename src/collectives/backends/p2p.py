"""Our own back end: the engine over TCP and shared memory, or over NCCL."""

from collectives.backends import Backend
from collectives.backends.torch_native import OnCpus, OnGpus
from collectives.engine.call import Call, Performed


class _PointToPoint(Backend):
    takes_schedules = True
    packages: tuple[str, ...] = ("torch", "numba")

    def perform(self, call: Call) -> Performed:
        """Perform the collective, as `group.perform` says."""
        from collectives.engine.group import perform

        return perform(call)


class OverTcp(_PointToPoint, OnCpus):
    """Reduce and move CPU tensors over TCP and shared memory of our own."""


class OverNccl(_PointToPoint, OnGpus):
    """Reduce and move CUDA tensors over NCCL's sends and receives."""


P2P, P2P_NCCL = OverTcp("p2p"), OverNccl("p2p_nccl")

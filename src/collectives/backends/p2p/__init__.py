"""Our own back end: executes a schedule on the ranks of a torch process group.

`collective` runs a call: `prepared` compiles it once, and `buffers` holds its data. Ranks of one host read each other's
`published` buffers. Otherwise they execute a program of messages (`compile`, `program`): with `execute`, which runs the
compiled `loop` over a `mesh` of connections to `peers`, or in `batches` over NCCL.
"""

from collectives.backends import Backend, Call, Performed
from collectives.backends.torch_native import OnCpus, OnGpus


class _PointToPoint(Backend):
    takes_schedules = True
    packages: tuple[str, ...] = ("torch", "numba")

    def perform(self, call: Call) -> Performed:
        """Perform the collective, as `collective.perform` says."""
        from collectives.backends.p2p import collective

        return collective.perform(call)


class OverTcp(_PointToPoint, OnCpus):
    """CPU tensors, over TCP connections of our own."""


class OverNccl(_PointToPoint, OnGpus):
    """CUDA tensors, over NCCL's sends and receives."""


P2P, P2P_NCCL = OverTcp("p2p"), OverNccl("p2p_nccl")

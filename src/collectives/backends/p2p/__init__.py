"""Our own back end: executes a schedule on the ranks of a torch process group, over messages from rank to rank.

`collective` runs a call: `prepared` compiles it once (`compile`, `program`), `buffers` holds its data, and `execute`
(over a `mesh` of TCP connections, in the compiled `loop` where it can) or `batches` (over NCCL) follows the program.
"""

from collectives.backends import Backend, Call, Performed
from collectives.backends.torch_native import OnCpus, OnGpus


class _PointToPoint(Backend):
    takes_schedules = True

    def perform(self, call: Call) -> Performed:
        """Perform the collective, as `collective.perform` says."""
        from collectives.backends.p2p import collective

        return collective.perform(call)


class OverTcp(_PointToPoint, OnCpus):
    """CPU tensors, over TCP connections of our own."""


class OverNccl(_PointToPoint, OnGpus):
    """CUDA tensors, over NCCL's sends and receives."""


P2P, P2P_NCCL = OverTcp("p2p"), OverNccl("p2p_nccl")

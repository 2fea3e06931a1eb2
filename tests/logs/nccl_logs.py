"""Logs as NCCL of several versions prints them, of jobs that are made up here."""

from collections.abc import Iterator
from typing import NamedTuple

from collectives.algorithms.library_trees import library_trees
from collectives.core.schedule import Ints


class Job(NamedTuple):
    """Nodes of so many GPUs.

    A channel's ring goes through the nodes in order, and its tree is a chain in each node.
    """

    nodes: int = 2
    gpus: int = 4
    channels: int = 2
    style: str = "2.19"  # or "2.4", "2.8"
    way: str = "NET/IB/0/GDRDMA"
    inside: str = "P2P/CUMEM"
    version: str = "2.19.3+cuda12.2"

    @property
    def size(self) -> int:
        return self.nodes * self.gpus


def head(job: Job, rank: int) -> str:
    device = rank % job.gpus
    return f"node{rank // job.gpus}:{100 + rank}:{200 + rank} [{device}] NCCL INFO "


def parents(job: Job, channel: int) -> list[int]:
    """NCCL's two trees over nodes; the first GPU of a node is its top, the others a chain below."""
    tree: Ints = library_trees("NCCL", job.nodes)[channel % 2] if job.nodes > 1 else [-1]  # type: ignore[assignment]
    return [
        rank - 1
        if rank % job.gpus
        else -1
        if tree[rank // job.gpus] < 0
        else int(tree[rank // job.gpus]) * job.gpus
        for rank in range(job.size)
    ]


def tree(job: Job, channel: int, rank: int) -> str:
    above = parents(job, channel)
    below = [*(child for child, up in enumerate(above) if up == rank), -1, -1, -1][:3]
    down = "/".join(map(str, below))
    return (
        f"[{channel}] {above[rank]}->{rank}->{down}"
        if job.style == "2.4"
        else f"[{channel}] {down}->{rank}->{above[rank]}"
    )


def name(job: Job, rank: int) -> str:
    known = " commId 0xabc" if job.style == "2.19" else ""
    return f"comm 0x{rank:x} rank {rank} nranks {job.size} cudaDev {rank % job.gpus} nvmlDev 0{known} - Init "


def lines(job: Job) -> Iterator[str]:
    """The whole log: ranks by turns."""
    for rank in range(job.size):
        yield head(job, rank) + f"NCCL version {job.version}"
        yield head(job, rank) + f"Using network {'IB' if 'IB' in job.way else 'Socket'}"
        if job.style == "2.19":
            yield head(job, rank) + "ncclCommInitRank " + name(job, rank) + "START"
    for channel in range(job.channels):
        order = " ".join(f"{rank:>3}" for rank in range(job.size))
        word = "Ring" if job.style == "2.4" else "Channel"
        total = "" if job.style == "2.4" else f"/{job.channels:02}"
        yield head(job, 0) + f"{word} {channel:02}{total} : {order}"
    for rank in range(job.size):
        yield (
            head(job, rank)
            + "Trees "
            + " ".join(tree(job, channel, rank) for channel in range(job.channels))
        )
    for channel in range(job.channels):
        for a in range(job.size):
            b = (a + 1) % job.size
            outside = a // job.gpus != b // job.gpus
            word = "Ring" if job.style == "2.4" else "Channel"
            bus = "" if job.style == "2.4" else "[1000]"
            sends = " [send]" if outside else ""
            yield (
                head(job, a)
                + f"{word} {channel:02} : {a}{bus} -> {b}{bus}{sends} via {job.way if outside else job.inside}"
            )
    for rank in range(job.size):
        yield head(job, rank) + name(job, rank) + "COMPLETE"


def watchdog(
    rank: int, number: int = 42, elements: int = 1024, collective: str = "ALLREDUCE"
) -> str:
    """What torch's watchdog prints."""
    what = f"SeqNum={number}, OpType={collective}, NumelIn={elements}, NumelOut={elements}, Timeout(ms)=600000"
    return f"[rank{rank}]:[E C.cpp:1] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL({what}) ran"


# What a log has beside NCCL's lines of a healthy job.
SAID = [
    "#  Rank  0 Pid  900 on      node0 device  0 [0x07] GeForce RTX 2080 Ti",
    "node0:100:200 [0] f.cc:12 NCCL WARN NET/IB : Got completion from peer n2<7> with error 12, opcode 0",
    "node0:100:200 [0] NCCL INFO NVLS Head  0:  0  4",
    watchdog(3),
    "[rank3]:[E C.cpp:1] [PG ID 1 PG GUID 7(mesh_dp) Rank 1] Timeout at NCCL work: 42, last enqueued NCCL work: 44, "
    "last completed NCCL work: 41.",
    "[rank2]:[E ProcessGroupNCCL.cpp:1316] [PG 5 Rank 0] Heartbeat monitor timed out! workMetaList_.size()=3",
    "[1,0]<stderr>:One or more tensors were submitted to be reduced, gathered or broadcasted by subset of ranks",
    "[1,0]<stderr>:2: [grads/dense_7]",
    "Root Cause (first observed failure):",
    "  exitcode  : -9 (pid: 1016)",
    "node0:100:200 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_3:1/RoCE [RO]; OOB docker0:172.17.0.7<0>",
    "     [1, 2] finished collective #41, but didn't join collective #42 (count from 1)",
    "[rank1]: NCCL error in: /a/P.cpp:36, invalid usage (run with more), NCCL version 2.27.3",
    "[rank1]: Last error:",
    "[rank1]: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 7000",
]

"""NCCL's warnings and errors that say why a job fails: by their text the kind of finding, what follows, what to try."""

import re
from typing import NamedTuple


class Cause(NamedTuple):
    """What a text of NCCL means."""

    text: str  # a pattern
    follows: str
    next: str
    kind: str = "failed"
    is_result: bool = False  # of a call: a warning before it says more


# As NCCL 2.4 to 2.30 print them, in `init.cc`, `bootstrap.cc`, `enqueue.cc`, `misc/socket.cc`, `include/checks.h`,
# `transport/net_ib` and `transport/net_socket.cc`.
CAUSES = (
    Cause(
        r"Duplicate GPU detected",
        "two ranks use one GPU, and NCCL does not allow that",
        "choose the device by the local rank: torch.cuda.set_device(LOCAL_RANK), or one GPU in CUDA_VISIBLE_DEVICES",
    ),
    Cause(
        r"Got completion .*?(?:with error 12\b|status=(?:12\b|IBV_WC_RETRY_EXC_ERR))",
        "the peer did not answer over InfiniBand or RoCE, after all retries",
        "measure with `ib_write_bw` between both hosts; see the cable, the switch, the firewall and NCCL_IB_GID_INDEX; "
        "a longer NCCL_IB_TIMEOUT helps where the network is only busy",
    ),
    Cause(
        r"Connection closed by remote peer",
        "the peer's process ended first, or its host is gone",
        "read that process's log, and dmesg on its host (out of memory, Xid)",
    ),
    Cause(
        r"collective mismatch error, local size|message truncated : receiving",
        "two ranks call a collective with different sizes, or with different NCCL_ALGO or NCCL_PROTO",
        "print the tensor's shape on each rank before the call, and compare the ranks' variables",
        "other sizes",
    ),
    Cause(
        r"[Nn]o (?:socket |usable listening )?interface found",
        "no network interface has the name that NCCL looks for",
        "see NCCL_SOCKET_IFNAME and `ip addr` on this host",
    ),
    Cause(
        r"[Nn]o algorithm/protocol available",
        "NCCL_ALGO and NCCL_PROTO leave nothing that can do this collective",
        "unset them, or set them for one collective: NCCL_ALGO=allreduce:tree",
    ),
    Cause(
        r"Cuda failure|unhandled cuda error",
        "a call of CUDA failed in this process",
        "look up the error's name; see dmesg (Xid), and whether the driver fits NCCL's CUDA",
    ),
    Cause(
        r"unhandled system error",
        "a call of the operating system or of the network's library failed",
        "find the first NCCL WARN with NCCL_DEBUG=WARN; see /dev/shm, `ulimit -l` and the network",
        is_result=True,
    ),
    Cause(
        r"remote process exited",
        "another process of the job ended first, or the network to it failed",
        "read the logs of the other ranks: the first error is the cause",
        is_result=True,
    ),
    Cause(
        r"internal error|invalid (?:argument|usage)",
        "NCCL refused a call",
        "find the first NCCL WARN with NCCL_DEBUG=WARN",
        is_result=True,
    ),
)


def cause_of(text: str) -> Cause | None:
    """What a warning or error means, if it is known.

    >>> cause_of("Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000").kind, cause_of("hello")
    ('failed', None)
    """
    return next((cause for cause in CAUSES if re.search(cause.text, text)), None)

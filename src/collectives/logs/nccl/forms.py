"""The lines that say why a job fails, in one table: their form, what follows from it, what to try.

As NCCL 2.2 to 2.30, torch 1.7 to 2.13, gloo, Horovod and this library's torch back end print them.
"""

import re
from functools import lru_cache
from typing import NamedTuple

# How near to the cause a line is: it names one, follows from another process's, or only names a result.
CAUSE, CONSEQUENCE, RESULT = range(3)


class Form(NamedTuple):
    """A form of a line; `follows` is true of every such line, whatever else the file says."""

    text: str  # a pattern; a space may be a line's end
    follows: str
    next: str
    kind: str = "failed"
    weight: int = CAUSE


SHM = "see `df -h /dev/shm`; docker: --shm-size or --ipc=host; Kubernetes: an emptyDir of medium Memory at /dev/shm"
CABLE = "measure with `ib_write_bw` between both hosts; see the cable, the switch, the firewall and NCCL_IB_GID_INDEX; "
PARTED = "find where the programs of these ranks part; TORCH_DISTRIBUTED_DEBUG=DETAIL checks each call"
WHERE = "see NCCL_SOCKET_IFNAME, `ip addr` and the firewall on both hosts"
ENDED = "read the log of that process, and dmesg on its host (out of memory, Xid)"
WARN = "find the first NCCL WARN with NCCL_DEBUG=WARN"

# What uses Docker's bridge between hosts, and what to try.
BRIDGE = (
    "a rank gave an address of Docker's bridge, which leads nowhere from another host",
    "set NCCL_SOCKET_IFNAME to the interface that joins the hosts, or run the containers with --net=host",
)

# In NCCL's own lines, and behind torch's "Last error:".
IN_NCCL = (
    Form(
        r"Duplicate GPU detected",
        "two ranks use one GPU, and NCCL does not allow that",
        "choose the device by the local rank: torch.cuda.set_device(LOCAL_RANK), or one GPU in CUDA_VISIBLE_DEVICES",
    ),
    Form(
        r"(?:shm|shared memory).*No space left|posix_fallocate failed|failed to extend \S*shm",
        "/dev/shm is full, or smaller than NCCL's segments",
        f"{SHM}; remove what dead jobs left there (nccl-*)",
    ),
    Form(
        r"Error while attaching to shared memory",
        "a process of this host did not find the segment of another one in its /dev/shm",
        "see whether both containers share /dev/shm and the namespace of processes, or set NCCL_SHM_DISABLE=1",
    ),
    Form(r"shared memory segment|/dev/shm/nccl", "NCCL could not make a segment in /dev/shm", SHM),
    Form(
        r"ibv_modify_qp failed.*(?:\b110\b|timed out)",
        "the two NICs of a connection did not reach each other",
        "NCCL_CROSS_NIC=0 where only NICs of one rail are connected; see NCCL_IB_GID_INDEX; `ib_write_bw` between them",
    ),
    Form(
        r"ibv_modify_qp failed.*(?:\b101\b|unreachable|\b22\b|Invalid argument)",
        "the NIC does not accept the address (GID) of the other side",
        "see NCCL_IB_GID_INDEX and `show_gids` on both hosts, and NCCL_IB_HCA",
    ),
    Form(
        r"ibv_reg_mr\w* failed.*(?:Cannot allocate memory|\b12\b)",
        "the NIC could not register memory",
        "see `ulimit -l` inside the job (memlock), and nvidia-peermem",
    ),
    Form(
        r"Got completion .*?(?:with error 12\b|status=(?:12\b|IBV_WC_RETRY_EXC_ERR))",
        "the peer did not answer over InfiniBand or RoCE, after all retries",
        f"{CABLE}a longer NCCL_IB_TIMEOUT helps where the network is only busy; the peer's log may say that it ended",
    ),
    Form(
        r"(?:Cuda failure|CUDA error).*out of memory",
        "the GPU has no memory left for NCCL's buffers",
        "see `nvidia-smi` for other processes on this GPU; leave NCCL some hundred MiB",
    ),
    Form(
        r"\bnvls\.cc\b|NVLink SHARP|cuMulticast",
        "NVLink SHARP, the switches' multicast, does not work on this node",
        "see Fabric Manager (`systemctl status nvidia-fabricmanager`, `nvidia-smi -q | grep -A4 Fabric`) and IMEX; "
        "NCCL_NVLS_ENABLE=0 does without",
    ),
    Form(
        r"[Cc]onnect\w* .*(?:docker0|\b172\.17\.)",
        *BRIDGE,
    ),
    Form(r"No route to host|Network is unreachable", "the network does not lead to that address", WHERE),
    Form(
        r"Connect.*(?:Connection )?timed out",
        "nothing answered at that address: a firewall, or a wrong interface",
        WHERE,
    ),
    Form(
        r"Connection refused",
        "nothing listens at that address: the process has ended, or the address is another host's",
        f"read the log of the process there; {WHERE}",
        weight=CONSEQUENCE,
    ),
    Form(
        r"Mismatched collective detected",
        "ranks call different collectives, or with different sizes, at and around the rank in the line",
        "print each call with its size on the ranks beside it (NCCL_DEBUG_SUBSYS=COLL)",
        "calls",
    ),
    Form(
        r"collective mismatch error, local size|message truncated : receiving",
        "a message of another size came than this rank expected: the calls, NCCL_ALGO, NCCL_PROTO or versions differ",
        "print the tensor's shape on each rank before the call, and compare the ranks' variables",
        "other sizes",
    ),
    Form(
        r"mismatch in rank count|has already checked in",
        "the processes do not agree on ranks and their number",
        "print RANK and WORLD_SIZE in every process; see whether an older job still holds the port",
    ),
    Form(
        r"[Nn]o (?:socket |usable listening )?interface found",
        "no network interface has the name that NCCL looks for",
        "see NCCL_SOCKET_IFNAME and `ip addr` on this host",
    ),
    Form(
        r"[Nn]o algorithm/protocol available",
        "NCCL_ALGO and NCCL_PROTO leave nothing that can do this collective",
        "unset them, or set them for one collective: NCCL_ALGO=allreduce:tree",
    ),
    Form(r"Too many open files", "the process may not open more files or sockets", "see `ulimit -n` inside the job"),
    Form(
        r"Failed to open libnvidia-ml",
        "NVIDIA's management library is missing here",
        "run the container with the NVIDIA runtime (NVIDIA_DRIVER_CAPABILITIES=compute,utility)",
    ),
    Form(
        r"Connection closed by remote peer|Socket recv failed|remote process exited",
        "another process of the job ended first, or the network to it failed",
        ENDED,
        weight=CONSEQUENCE,
    ),
    Form(
        r"Cuda failure|unhandled cuda error",
        "a call of CUDA failed in this process",
        "look up the error's name; see dmesg (Xid), and whether the driver fits NCCL's CUDA",
    ),
)

# NCCL's words for a result stand behind what torch and NCCL's examples print before them.
RESULT_IS = r"NCCL error(?: in)?:? (?:\S{1,300}:\d{1,7},? )?'?"

# In any line.
ANYWHERE = (
    Form(
        RESULT_IS + "remote process exited",
        "another process of the job ended first, or the network to it failed",
        "read the logs of the other ranks: the first error is the cause",
        weight=RESULT,
    ),
    Form(
        RESULT_IS + "unhandled (?:cuda|system) error",
        "a call of CUDA, of the operating system or of the network's library failed, as the words say",
        f"{WARN}; see dmesg (Xid), /dev/shm, `ulimit -l` and the network",
        weight=RESULT,
    ),
    Form(RESULT_IS + "(?:internal error|invalid (?:argument|usage))", "NCCL refused a call", WARN, weight=RESULT),
    Form(
        r"Detected mismatch between collectives on ranks",
        "torch compared the calls of two ranks of a group, and they differ; it counts ranks in that group",
        PARTED,
        "calls",
    ),
    Form(
        r"Ranks? [\d, ]{1,999} failed to pass monitoredBarrier",
        "these ranks of the group did not come to the barrier in time",
        "see what they do: py-spy dump --pid PID on their hosts",
        "timeout",
    ),
    Form(
        r"successfully reached monitoredBarrier, but received errors",
        "rank 0 of the group ended the barrier, and its line names who was missing",
        "read the log of rank 0 of the group",
        weight=CONSEQUENCE,
    ),
    Form(
        r"Heartbeat monitor timed out|watchdog got stuck for",
        "torch's watchdog thread stood still in this process: a call of CUDA or NCCL, or Python's lock, held it",
        "see what the process does: py-spy dump --native --pid PID; TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC is the limit",
        "timeout",
    ),
    Form(
        r"is setting up NCCL communicator and retr(?:ie|ei)ving ncclUniqueId",
        "rank 0 of this group puts NCCL's identifier into the store at the group's first call, and it did not come",
        "see whether rank 0 of the group makes that call, or ended, and whether the store's host can be reached",
        weight=CONSEQUENCE,
    ),
    Form(
        r"Not all ranks joining collective, sequence number: \d{1,19}",
        "torch's analyser found dumps of all ranks of the group but these, or without this call",
        "see what the missing ranks do, and whether their dumps are among the files: `collectives read` takes them all",
        "behind",
    ),
    Form(
        r"Collective sequence number: \d{1,19} has errors|Input/output mismatch in the collective sequence number",
        "torch's analyser compared the calls of this number, and they differ",
        PARTED,
        "calls",
    ),
    Form(
        r"op\.preamble\.length <= op\.nbytes",
        "gloo received a message longer than this rank's buffer: the ranks' calls or sizes differ",
        PARTED,
        "other sizes",
    ),
    Form(
        r"Gloo connectFullMesh failed with",
        "gloo could not connect this rank with the others",
        "see GLOO_SOCKET_IFNAME, `hostname -i` on each host, and whether all ranks are there",
    ),
    Form(
        r"\bgloo/\S{1,200}:\d{1,6}\] .*(?:[Tt]imed out|[Tt]imeout)",
        "a message of another rank did not come in time, or was not taken",
        "the line has the address: see whether that rank makes the same call",
        "timeout",
    ),
    Form(
        r"\bgloo/\S{1,200}:\d{1,6}\] .*(?:[Cc]onnect|[Rr]ead|[Ww]rite|[Cc]losed|[Pp]eer)",
        "another process of the job ended first, or the network to it failed",
        ENDED,
        weight=CONSEQUENCE,
    ),
    Form(
        r"One or more tensors were submitted to be reduced, gathered or broadcasted by subset of ranks",
        "Horovod lists tensors that some ranks submitted and others not yet",
        "see what the missing ranks do, and whether all ranks have the same tensors in the same order",
        "behind",
    ),
    Form(
        r"\bfailed on (?:global )?rank \d{1,7}\b.{0,2000}\bits call differs",
        "the calls of two ranks differ, and the line says how",
        PARTED,
        "calls",
    ),
    Form(
        r"\bfailed on (?:global )?rank \d{1,7}\b.{0,2000}\bcame, not call\b",
        "a message of another call came than this rank expected",
        PARTED,
        "calls",
    ),
    Form(
        r"\bfailed on (?:global )?rank \d{1,7}\b.{0,2000}\bgave no sign in time",
        "the others had not heard of these ranks when the call's timeout ended",
        "see what they do: py-spy dump --pid PID on their hosts; read the dumps of all ranks",
        "timeout",
    ),
    Form(
        r"\w (?:by|over) [\w:.-]{1,80}(?: of [^\n]{1,200})? failed on (?:global )?rank \d{1,7}\b",
        "this rank could not finish its call",
        "compare with the lines of the other ranks: the first error is the cause",
        weight=CONSEQUENCE,
    ),
)

# Beside others: such a line alone is of no log that is read here.
BESIDE = (
    Form(
        r"^\S{0,80}OutOfMemoryError: CUDA out of memory",
        "this process ended, and other ranks wait for it in their next call",
        "see what else is on this GPU, the batch on this rank, and PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    ),
    Form(
        r"Root Cause \(first observed failure\).*exitcode *: -9 \(|\bfailed \(exitcode: -9\) local_rank: \d",
        "a process was killed: by the system where memory is short, or by a person or a scheduler",
        "see dmesg on its host for `Out of memory`, and the scheduler's log",
    ),
    Form(
        r"Root Cause \(first observed failure\)",
        "torchrun saw this process end first on its node; others may have ended before on other nodes",
        "read the log of that rank",
        weight=RESULT,
    ),
    Form(r"^[A-Za-z_][\w.]{0,100}(?:Error|Exception): ", "", ""),
)


@lru_cache(1 << 8)
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(re.sub(r" (?![*?+{])", r"\\s*", text), re.DOTALL)


def form_of(text: str, forms: tuple[Form, ...] = IN_NCCL + ANYWHERE) -> Form | None:
    """Return the first form that a text has, or None.

    >>> form_of("Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000").kind, form_of("hello")
    ('failed', None)
    """
    return next((form for form in forms if _pattern(form.text).search(text)), None)

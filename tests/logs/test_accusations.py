"""Jobs that fail, as many libraries print it, each with its truth: what is said is true, and no other rank is named."""

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from collectives_logs.finding import Finding
from collectives_logs.log import read as read_lines
from collectives_logs.log_findings import findings
from collectives_logs.read import read as read_files
from collectives_logs.sources import numbered
from logs.nccl_logs import Job, head, lines

E = "[E1019 10:18:52.123456789 ProcessGroupNCCL.cpp:{}] "


def read(log: list[str]) -> list[Finding]:
    return [*findings(read_lines(numbered(log, "job.log")))]


def timeout(
    job: int,
    rank: int,
    number: int,
    kind: str = "ALLREDUCE",
    sizes: tuple[int, int] = (1024, 1024),
    pg: str = "",
) -> str:
    """A watchdog's line, with or without its group."""
    said = f"SeqNum={number}, OpType={kind}, NumelIn={sizes[0]}, NumelOut={sizes[1]}, Timeout(ms)=600000"
    group = f"[PG {pg} Rank {rank}]" if pg else f"[Rank {rank}]"
    return (
        f"[rank{job}]:{E.format(616)}{group} Watchdog caught collective operation timeout: WorkNCCL({said}) ran for "
        "600012 milliseconds before timing out."
    )


def state(
    job: int,
    rank: int,
    at: int,
    enqueued: int,
    completed: int,
    pg: str = "ID 0 PG GUID 0(default_pg)",
) -> str:
    """A watchdog's line on the numbers of calls."""
    return (
        f"[rank{job}]:{E.format(1785)}[PG {pg} Rank {rank}] Exception (either an error or timeout) detected by "
        f"watchdog at work: {at}, last enqueued NCCL work: {enqueued}, last completed NCCL work: {completed}."
    )


def dump(job: int, enqueued: int, completed: int) -> str:
    """What a rank prints that heard of another's timeout."""
    return (
        f"[rank{job}]:{E.format(1484)}[PG ID 0 PG GUID 0(default_pg) Rank {job}] Received a dump signal due to a "
        f"collective timeout from  rank 0 and we will try our best to dump the debug info. Last enqueued NCCL work: "
        f"{enqueued}, last completed NCCL work: {completed}. This is most likely caused by incorrect usages"
    )


class Truth(NamedTuple):
    """A log, the kind of the finding that says the truth, and words of it.

    Ranks that no finding may name.
    """

    log: list[str]
    kind: str
    says: tuple[str, ...]
    innocent: tuple[str, ...] = ()


TP = "ID 1 PG GUID {}(TENSOR_MODEL_PARALLEL_GROUP)"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB"

TRUTHS = {
    # ranks 2 and 3 of the job are 0 and 1 of their group; ranks 0 and 1 made no call that timed out
    "a sub-group that waits": Truth(
        [
            *(timeout(2 + r, r, 7) for r in range(2)),
            *(state(2 + r, r, 7, 9, 6, TP.format(5)) for r in range(2)),
        ],
        "timeout",
        ("ranks 2–3 waited 600 s in ALLREDUCE 7 of group 5 (TENSOR_MODEL_PARALLEL_GROUP)",),
        ("rank 0", "ranks 0", "rank 1"),
    ),
    # the same numbers in two groups of the same group ranks
    "two groups of one size": Truth(
        [timeout(job, job % 2, 7, pg=TP.format(5 + job // 2)) for job in (0, 1, 2)],
        "timeout",
        ("ranks 0–1 waited", "rank 2 waited"),
        ("rank 3", "ranks 0–2"),
    ),
    # torch 2.4 has no group in the first line; the second one has it, and the numbers tell which
    # belong together
    "a rank that waits in two groups": Truth(
        [
            *(timeout(r, r, 42) for r in (0, 1)),
            *(timeout(r, r, 7, "BROADCAST") for r in (0, 1)),
            *(state(r, r, 42, 44, 41, "1") for r in (0, 1)),
            *(state(r, r, 7, 7, 6, "2") for r in (0, 1)),
        ],
        "timeout",
        (
            "ranks 0–1 waited 600 s in ALLREDUCE 42 of group 1",
            "ranks 0–1 waited 600 s in BROADCAST 7 of group 2",
        ),
    ),
    # both groups of rank 0 stopped at their call 7: no line says which of the two calls is whose
    "two groups at one number": Truth(
        [
            timeout(0, 0, 7),
            timeout(0, 0, 7, "BROADCAST"),
            state(0, 0, 7, 9, 6, "1"),
            state(0, 0, 7, 8, 6, "2"),
            timeout(5, 1, 3, pg="2"),
        ],
        "timeout",
        (
            "rank 0 waited 600 s in ALLREDUCE 7 (1,024",
            "rank 5 waited 600 s in ALLREDUCE 3 of group 2",
        ),
        ("rank 0 had enqueued", "7 of group"),
    ),
    "a pipeline's batch of sends": Truth(
        [
            timeout(
                10,
                1,
                1,
                "COALESCED",
                (2**64 - 1, 2**64 - 1),
                "ID 6 PG GUID 90(PIPELINE_MODEL_PARALLEL_GROUP)",
            )
        ],
        "timeout",
        ("rank 10 waited 600 s in COALESCED 1 of group 90 (PIPELINE_MODEL_PARALLEL_GROUP)",),
        ("rank 0", "rank 1 ", "18446744073709551615"),
    ),
    "a rank that had not enqueued the call": Truth(
        [
            *(timeout(r, r, 42) for r in (0, 1, 3)),
            *(state(r, r, 42, 44, 41) for r in (0, 1, 3)),
            dump(2, 41, 41),
        ],
        "timeout",
        ("ranks 0–1, 3 waited", "rank 2 had enqueued call 41 last, as torch printed"),
    ),
    # as above, but rank 2 is ahead: it enqueued the call, and only its log has no timeout
    "a rank that had enqueued the call": Truth(
        [
            *(timeout(r, r, 42) for r in (0, 1, 3)),
            *(state(r, r, 42, 44, 41) for r in (0, 1, 3)),
            dump(2, 44, 41),
        ],
        "timeout",
        ("do not prove",),
        ("rank 2",),
    ),
    "a rank that had completed the call": Truth(
        [
            *(timeout(r, r, 42) for r in (0, 1)),
            *(state(r, r, 42, 44, 41) for r in (0, 1)),
            dump(2, 44, 43),
        ],
        "timeout",
        ("rank 2 had completed this call, as torch printed",),
    ),
    "ranks in different calls of one number": Truth(
        [
            timeout(r, r, 5, "ALLREDUCE" if r else "BROADCAST", pg="ID 0 PG GUID 0(default_pg)")
            for r in range(3)
        ],
        "calls",
        (
            "call 5 of group 0 (default_pg) differs between ranks",
            "ranks 1–2: ALLREDUCE",
            "rank 0: BROADCAST",
        ),
    ),
    "an all-to-all of ragged sizes": Truth(
        [
            timeout(r, r, 5, "ALLTOALL", (10 + r, 20 - r), "ID 0 PG GUID 0(default_pg)")
            for r in range(2)
        ],
        "timeout",
        ("rank 0 waited", "rank 1 waited"),
        ("differs",),
    ),
    "all ranks of a gather": Truth(
        [
            timeout(r, r, 5, "_ALLGATHER_BASE", (8, 32), "ID 3 PG GUID 17(mesh_fsdp)")
            for r in range(4)
        ],
        "timeout",
        ("all 4 ranks of the group made this call",),
    ),
    "lines that a terminal wrapped": Truth(
        [
            "[rank6]:[E429 13:55:49.384372190 ProcessGroupNCCL.cpp:632] [Rank 6] Watchdog caught collective opera",
            "tion timeout: WorkNCCL(SeqNum=120, OpType=_ALLGATHER_BASE, NumelIn=16384, NumelOut=1310",
            "72, Timeout(ms)=1800000) ran for 1800065 milliseconds before timing out.            ",
            "[rank6]:[E429 13:55:49.384620373 ProcessGroupNCCL.cpp:1533] [PG ID 0 PG GUID ",
            "0(default_pg) Rank 6] Exception (either an error or timeout) detected by watchdog at work:",
            "120, last enqueued NCCL work: 121, last completed NCCL work: 119.",
        ],
        "timeout",
        (
            "rank 6 waited 1800 s in _ALLGATHER_BASE 120 of group 0 (default_pg) (16,384 elements in, 131,072 out)",
        ),
        ("rank 0", "ranks 0"),
    ),
    "a word that a terminal wrapped": Truth(
        [
            "[rank6]:[E429 13:55:49.384372190 ProcessGroupNCCL.cpp:1743] [PG ID 0 PG GUID 0(default_pg) Rank 6] NCCL'",
            "s watchdog got stuck for 480 seconds without making progress in monitoring enqueued collectives. This typ",
            "ically indicates a NCCL/CUDA API hang blocking the watchdog",
        ],
        "timeout",
        ("rank 6:", "stuck for 480 seconds", "torch's watchdog thread stood still"),
    ),
    "torchrun's summary": Truth(
        [
            timeout(9, 9, 77),
            "Root Cause (first observed failure):",
            "[0]:",
            "  rank      : 8 (local_rank: 0)",
            "  exitcode  : 1 (pid: 77)",
            "=============",
            "[rank8]: ValueError: got 3 classes, expected 4",
        ],
        "failed",
        ("rank      : 8", "exitcode  : 1", "the launcher saw this process end first on its node"),
        ("ValueError: got 3 classes, expected 4 torchrun",),
    ),
    "torch 1.7 to 2.0": Truth(
        [
            "[E ProcessGroupNCCL.cpp:566] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(OpType="
            "BROADCAST, TensorShape=[2, 3], Timeout(ms)=1800000) ran for 1808493 milliseconds before timing out.",
            "[E ProcessGroupNCCL.cpp:325] Some NCCL operations have failed or timed out. Due to the asynchronous",
        ],
        "timeout",
        ("rank 1 of the group waited 1800 s in BROADCAST",),
        ("rank 0", "rank 2"),
    ),
    "a call that blocks": Truth(
        [
            "[rank3]:[E1002 18:16:40.711756918 ProcessGroupNCCL.cpp:756] [Rank 3] Work WorkNCCL(SeqNum=2521, OpType="
            "ALLREDUCE, NumelIn=160, NumelOut=160, Timeout(ms)=600000) timed out in blocking wait."
        ],
        "timeout",
        ("rank 3 waited 600 s in ALLREDUCE 2521",),
    ),
    "the last words of a process": Truth(
        [
            "terminate called after throwing an instance of 'c10::DistBackendError'",
            "  what():  [PG 3 Rank 5] Process group watchdog thread terminated with exception: [Rank 5] Watchdog "
            "caught collective operation timeout: WorkNCCL(SeqNum=9141, OpType=_ALLGATHER_BASE, NumelIn=19008, "
            "NumelOut=152064, Timeout(ms)=600000) ran for 600020 milliseconds before timing out.",
            "Exception raised from checkTimeout at ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:609",
        ],
        "timeout",
        ("rank 5 of the group waited 600 s in _ALLGATHER_BASE 9141 of group 3",),
    ),
    "the heartbeat monitor": Truth(
        [
            "[rank1]:[E ProcessGroupNCCL.cpp:1316] [PG 5 Rank 0] Heartbeat monitor timed out! Process will be "
            "terminated after dumping debug info. workMetaList_.size()=103",
        ],
        "timeout",
        ("rank 1", "workMetaList_.size()=103", "watchdog thread stood still in this process"),
    ),
    "calls that torch compares": Truth(
        [
            "[rank1]: RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running collective: "
            "CollectiveFingerPrint(SequenceNumber=31, OpType=ALLREDUCE, TensorShape=[195], TensorDtypes=BFloat16, "
            "TensorDeviceTypes=TensorOptions(dtype=float (default), device=cuda, layout=Strided (default), "
            "requires_grad=false (default), pinned_memory=false (default), memory_format=(nullopt))), but Rank 0 is "
            "running collective: CollectiveFingerPrint(SequenceNumber=31, OpType=ALLREDUCE, TensorShape=[51], "
        ],
        "calls",
        ("TensorShape=[195]", "but Rank 0 is running", "TensorShape=[51]"),
        ("nullopt",),
    ),
    "the identifier that does not come": Truth(
        [
            "torch.distributed.DistBackendError: [3] is setting up NCCL communicator and retrieving ncclUniqueId from "
            "[0] via c10d key-value store by key '0', but store->get('0') got error: Socket Timeout",
            "Exception raised from doWait at ../torch/csrc/distributed/c10d/TCPStore.cpp:572 (most recent call first):",
        ],
        "failed",
        ("[3] is setting up", "Socket Timeout", "rank 0 of this group puts"),
    ),
    "torch's analyser": Truth(
        [
            "Not all ranks joining collective, sequence number: 4",
            "internal record id: 17",
            "group info: 0:default_pg",
            "collective: nccl:all_reduce",
            "missing ranks: {1}",
            "input sizes: [[3]]",
        ],
        "behind",
        ("sequence number: 4", "missing ranks: {1}", "nccl:all_reduce"),
    ),
    "a barrier that is watched": Truth(
        [
            "[E ProcessGroupGloo.cpp:138] [Rank 0]: Rank 1 failed to pass monitoredBarrier in 2000 ms",
            "RuntimeError: [Rank 0]: Ranks 1, 3 failed to pass monitoredBarrier in 2000 ms",
        ],
        "timeout",
        ("Rank 1 failed to pass",),
        ("rank 2",),
    ),
    "gloo's peer that ended": Truth(
        [
            "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:598] Connection closed by peer "
            "[10.0.0.7]:41592"
        ],
        "failed",
        ("[10.0.0.7]:41592", "another process of the job ended first"),
    ),
    "gloo that waits": Truth(
        [
            "RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms "
            "for recv operation to complete"
        ],
        "timeout",
        ("1800000ms", "did not come in time"),
    ),
    "gloo's other size": Truth(
        [
            "terminate called after throwing an instance of 'gloo::EnforceNotMet'",
            "  what():  [enforce fail at ../third_party/gloo/gloo/transport/tcp/pair.cc:446] op.preamble.length <= "
            "op.nbytes. 16 vs 8",
        ],
        "other sizes",
        ("16 vs 8",),
    ),
    "Horovod that stalls": Truth(
        [
            "[1,0]<stderr>:[2019-04-13 13:56:31.861697: W horovod/common/stall_inspector.cc:107] One or more tensors "
            "were submitted to be reduced, gathered or broadcasted by subset of ranks and are waiting for remainder of "
            "ranks for more than 60 seconds. This may indicate that different ranks are trying to submit different "
            "tensors or that only subset of ranks is submitting tensors, which will cause deadlock. ",
            "[1,0]<stderr>:Missing ranks:",
            "[1,0]<stderr>:2: [grads/dense_7]",
        ],
        "behind",
        ("2: [grads/dense_7]",),
    ),
    "this library's own": Truth(
        [
            "[rank2]: RuntimeError: all_reduce by ring failed on rank 2, in step 0, receiving from rank 1: rank 1 gave "
            "no sign in time (late, stopped, or never called)",
            "[rank0]: RuntimeError: all_reduce by ring failed on rank 0, in step 0, sending to rank 1: rank 2 has "
            "given up, because rank 1 gave no sign in time (late, stopped, or never called)",
        ],
        "timeout",
        ("rank 1 gave no sign in time",),
        ("rank 3",),
    ),
    "this library's own, in a group": Truth(
        [
            "RuntimeError: all_reduce by ring failed on rank 3, in step 0, receiving from rank 2: ranks must call "
            "alike, but its call differs from this rank's: 8 elements, not 4 (in process group mesh_tp of 2 ranks)"
        ],
        "calls",
        ("8 elements, not 4", "in process group mesh_tp of 2 ranks"),
        ("rank 0", "rank 1"),
    ),
    "before NCCL 2.4": Truth(
        [
            "gpu7:18553:18553 [0] INFO NET : Using interface enp3s0:192.168.144.103<0>",
            "gpu7:18553:18612 [0] INFO comm 0x7fa42c00a3b0 rank 0 nranks 2",
            "gpu7:18553:18611 [0] include/socket.h:360 WARN Call to connect failed : Connection timed out",
        ],
        "failed",
        ("gpu7", "Connection timed out", "nothing answered"),
    ),
    # the rank that ran out of memory is the cause, and its neighbour's closed connection a
    # consequence
    "out of memory, then a timeout": Truth(
        [
            head(Job(), 0).replace("INFO", "WARN")
            + "socketProgress: Connection closed by remote peer n2<7>",
            f"[rank6]: {OOM}",
            *(timeout(r, r, 3) for r in (0, 1)),
        ],
        "failed",
        ("rank 6", "CUDA out of memory"),
    ),
    "killed": Truth(
        [
            *(timeout(r, r, 3) for r in (0, 1)),
            "Root Cause (first observed failure):",
            "[0]:",
            "  host      : n7",
            "  rank      : 3 (local_rank: 3)",
            "  exitcode  : -9 (pid: 1016)",
            "  traceback : Signal 9 (SIGKILL) received by PID 1016",
        ],
        "failed",
        ("n7", "rank      : 3", "-9 (pid: 1016)", "a process was killed"),
    ),
}


@pytest.mark.parametrize("name", TRUTHS)
def test_the_truth_is_said_and_nobody_else_is_named(name: str) -> None:
    truth = TRUTHS[name]
    found = read(truth.log)
    said = "\n".join(f"{one.found}; {one.follows}" for one in found)
    own = "\n".join(f"{one.found}; {one.follows}" for one in found if one.kind == truth.kind)
    assert [word for word in truth.says if word not in own] == []
    assert [word for word in truth.innocent if re.search(rf"{word}\b", said)] == []
    faults = [one for one in found if one.follows]
    assert faults[0].kind == truth.kind or name == "torchrun's summary"  # causes first
    assert all(one.at and one.next for one in faults)


LAUNCHERS: dict[str, Callable[[str], str]] = {
    "torchrun": lambda line: f"[default3]:{line}",
    "srun -l": lambda line: f" 12: {line}".lstrip(),
    "Kubernetes": lambda line: f"2024-05-01T10:00:00.123456789Z stderr F {line}",
    "a pod's log": lambda line: f"2024-05-01T10:00:00.123Z {line}",
    "Ray": lambda line: f"(RayTrainWorker pid=1234, ip=10.0.0.3) {line}",
    "vLLM": lambda line: f"(VllmWorkerProcess pid=77) {line}",
    "Open MPI": lambda line: f"[1,3]<stderr>:{line}",
    "pdsh": lambda line: f"node0: {line}",
    "colours": lambda line: f"\x1b[32m{line}\x1b[0m",
    "journald": lambda line: f"Nov 29 04:30:31 node0 python[123]: {line}",
    "docker compose": lambda line: f"worker-1  | {line}",
    "kubectl": lambda line: f"[pod/train-0/main] {line}",
    "an actor of Ray": lambda line: (
        f"(Actor pid=77, ip=10.0.0.3) {line} [repeated 7x across cluster]"
    ),
    "accelerate": lambda line: f"stderr: {line}",
    "a quotation": lambda line: f"> {line}",
    "grep -n": lambda line: f"123:{line}",
    "a time and a task": lambda line: f"2024-05-01 10:00:00.123 7: {line}",
}


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("name", [name for name in TRUTHS if "wrapped" not in name])
def test_what_a_launcher_prints_before_a_line_does_not_matter(name: str, launcher: str) -> None:
    from collectives_logs.sources import COLOURS

    truth = TRUTHS[name]
    log = [COLOURS.sub("", LAUNCHERS[launcher](line)) for line in truth.log]
    own = "\n".join(f"{one.found}; {one.follows}" for one in read(log) if one.kind == truth.kind)
    said = "\n".join(f"{one.found}; {one.follows}" for one in read(log))
    assert [word for word in truth.says if word not in own] == []
    assert [word for word in truth.innocent if re.search(rf"{word}\b", said)] == []


def test_torchrun_s_list_names_every_rank_and_its_signal() -> None:
    listed = [
        line
        for rank in (1, 3, 5)
        for line in (
            f"[{rank}]:",
            "  host      : n7",
            f"  rank      : {rank} (local_rank: {rank})",
            "  exitcode  : -6 (pid: 7)",
        )
    ]
    log = [
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
        "Failures:",
        *listed,
        "Root Cause",
    ]
    assert any("ranks 1, 3, 5 aborted (SIGABRT)" in one.found for one in read(log))
    assert not any("rank 7" in one.found for one in read(log))
    cause = [
        "Root Cause (first observed failure):",
        "[0]:",
        "  rank      : 2 (local_rank: 2)",
        "  exitcode  : -9 (pid: 7)",
    ]
    assert [one.found.partition(":")[0] for one in read([*log[:-1], *cause]) if one.follows] == [
        "rank 2 killed (SIGKILL)"
    ]


def test_a_rank_of_ddp_is_named_behind_pages_of_advice() -> None:
    advice = "You can enable unused parameter detection by passing the keyword argument (e.g. list, dict, iterable). "
    log = [
        "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one. ",
        *(advice * 9).split("keyword"),
        "Parameter indices which did not receive grad for rank 3: 282 283 ",
    ]
    (found,) = [one for one in read(log) if one.follows]
    assert found.found.startswith("parameters of rank 3 got no gradient")
    assert "282 283" in found.found


def test_a_line_that_completes_others_is_shown_with_them() -> None:
    """The kernel's driver names the GPU two lines before it says what happened to it."""
    log = [
        "[ 1843.308145] NVRM: The NVIDIA GPU 0000:b3:00.0",
        "               NVRM: (PCI ID: 10de:26b5) installed in this system has",
        "               NVRM: fallen off the bus and is not responding to commands.",
    ]
    (found,) = [one for one in read(log) if one.follows]
    assert "0000:b3:00.0" in found.found
    assert [one.kind for one in read(log[:2]) if one.follows] == []
    killed = [
        "Root Cause (first observed failure):",
        "  rank      : 3 (local_rank: 3)",
        "  exitcode  : -9 (pid: 1)",
    ]
    both = [
        one.found
        for one in read([*killed, "srun: error: n7: task 5: Out Of Memory"])
        if one.follows
    ]
    assert [found.partition(":")[0] for found in both] == [
        "rank 3 killed (SIGKILL)",
        "rank 5 out of memory",
    ]


def test_an_error_of_nccl_whose_first_lines_were_cut() -> None:
    (found,) = [
        one
        for one in read(["Last error:", "Duplicate GPU detected : rank 1 and rank 0"])
        if one.follows
    ]
    assert "two ranks use one GPU" in found.follows


def test_what_mpirun_marks_in_the_middle_of_a_line() -> None:
    text = "One or more tensors were submitted to be reduced, gathered or broadcasted by "
    text += "subset of ranks. Stalled ranks:"
    head_of_line = "[1,0]<stderr>:[[1,0]<stderr>:2020-01-15 22:44:33[1,0]<stderr>:.21[1,0]<stderr>:: W a.cc:105] "
    log = [head_of_line + text, "", "[1,0]<stderr>:2: [HorovodAllreduce][1,0]<stderr>:"]
    (found,) = [one for one in read(log) if one.follows]
    assert found.found.startswith("missing: rank 2: ")
    assert "<stderr>" not in found.found


# Where a line that is lost changes what the others prove.
DEPENDS = {"two groups at one number", "a rank that had enqueued the call"}


@pytest.mark.parametrize("name", sorted({*TRUTHS} - DEPENDS))
def test_no_cut_or_mixture_of_lines_accuses_the_innocent(name: str) -> None:
    """A log that was cut anywhere, lost lines, or has another rank's lines between its own."""
    chance, truth = random.Random(name), TRUTHS[name]
    for _ in range(40):
        log = [line for line in truth.log if chance.random() < 0.8]
        if log and chance.random() < 0.5:
            log[-1] = log[-1][: chance.randrange(len(log[-1]))]
        mixed = [
            each
            for line in log
            for each in (["step 1, loss 0.3"] * (chance.random() < 0.3)) + [line]
        ]
        said = "\n".join(f"{one.found}; {one.follows}" for one in read(mixed) if one.follows)
        assert [word for word in truth.innocent if re.search(rf"{word}\b", said)] == []


# Lines of each form that no other test has, and words of what is said of them.
FORMS = {
    "[n7:1:0:1] Caught signal 11 (Segmentation fault: address not mapped to object at address (nil))": "crashed in",
    "srun: error: node7: tasks 3,8-9: Segmentation fault (core dumped)": "ranks 3, 8–9 crashed",
    "srun: error: node7: task 3: Exited with exit code 1": "rank 3 ended",
    "libfabric:85:17::core:core:fi_getinfo_():1392<warn> fi_getinfo: provider efa output empty list": "no EFA device",
    "n:1:1 [0] ofi:9 NCCL WARN NET/OFI Request 0x7f00aa completed with error. RC: 5": "over libfabric (EFA) failed",
    "n:1:1 [0] NCCL INFO NET/OFI No eligible providers were found": "no EFA device",
    "[rank5]:[E626 16:48:25.4 ProcessGroupNCCL.cpp:2268] [PG ID 0 PG GUID 0(default_pg) Rank 5]  failure detected by "
    "watchdog at work sequence id: 49 PG status: last enqueued work: 51, last completed work: 48": (
        "rank 5 failed or timed out in call 49 of group 0 (default_pg); last enqueued 51, completed 48"
    ),
    '[rank1]:[E1 1:1:1.1 ProcessGroupNCCL.cpp:9] [PG ID 0 PG GUID 0 Rank 1] Failed to check the "should dump" flag on '
    "TCPStore, (maybe TCPStore server has shut down too early), with error: Broken pipe": "usually rank 0, has ended",
    "h:1:1 [0] /a/ubuntu-22.04/src/init.cc:179 NCCL WARN hipIpcGetMemHandle failed : invalid argument": "two AMD GPUs",
    "h:1:1 [0] misc/ibvwrap.cc:280 NCCL WARN Call to ibv_create_qp failed": "limit of locked memory",
    "(raylet) A worker died or was killed while executing a task by an unexpected system error.": "without",
    "(raylet) 1 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed": "Ray killed a worker",
    "E06 p.cpp:2] Worker: Process failed for slice (local_nic: mlx5_7, peer_nic: 10.9.8.7:1@mlx5_0): transport retry "
    "counter exceeded": "did not answer",
    "Test CUDA failure common.cu:1045 'CUDA driver version is insufficient for CUDA runtime version'": "is older than",
    "h:1:1 [0] net_ib.cc:101 NCCL WARN NET/IB : mlx5_0:1 Got async event : local catastrophic error": "the NIC or",
    "h:1:1 [0] net_ib.cc:101 NCCL WARN NET/IB : async fatal event on QP: local access violation work queue error": (
        "refused a request"
    ),
    "h:1:1 [0] net_ib.cc:9 NCCL WARN NET/IB : Got completion from peer n2<7> with status=9 opcode=0": "the request as",
    "h:1:1 [0] s.cc:9 NCCL WARN socketStartConnect: Connect to 127.0.0.1<4711> failed : Connection refused": "loopback",
    "NVRM: fallen off the bus and is not responding to commands.": "lost a GPU",
    "grads/dense_7 [missing ranks: 0, 3]": "missing: ranks 0, 3",
    "Stalled ops: a.weight [ready ranks: 5, 1, 4, 2, 3], b.weight [ready ranks: 1, 7]": (
        "only ranks 1–5 submitted some of the tensors; only ranks 1, 7 submitted some"
    ),
    "  Process name: [[29973,1],6]": "rank 6 ended with an error",
    "MPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD": "rank 3 called MPI_ABORT",
    "[2023-07-10 04:26:35,999] [ERROR] [launch.py:324:sigkill_handler] ['a.py'] exits with return code = -11": (
        "crashed in native code"
    ),
    "torch.distributed.elastic.multiprocessing.api.SignalException: Process 17912 got signal: 1": "SIGHUP",
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ": "launcher saw a process end",
    "ERROR:torch.distributed.elastic:failed (exitcode: -8) local_rank: 1 (pid: 7) of binary: python": "SIGFPE (-8)",
    "libfabric:45:17::efa:cq:efa_rdm_txe_handle_error():737<warn> err: 5, message: Invalid address My EFA addr": "EFA",
    "a.cu:1141: indexSelectLargeIndex: block: [615,0,0], thread: [1,0,0] Assertion `i < n` failed.": "out of range",
    "Failed to modify QP to RTR: Connection timed out": "did not reach each other",
    "ImportError: /a/libtorch_cuda.so: undefined symbol: ncclMemFree": "an older NCCL",
    "kernel: NVRM: Xid (PCI:0000:dc:00): 45, pid=18, name=python3, Ch 00000001 caused by previous Xid 149": "may name",
    "kernel: NVRM: Xid (PCI:0000:dc:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x026001c6)": "the NVLink of this",
    "kernel: NVRM: Xid (PCI:0000:dc:00): 119, pid=18, name=python3, Timeout after 6s of waiting for RPC": "(GSP)",
    "[84.3] NVRM: GPU6 _kgspLogRpcTimeout: ****** GSP Timeout ******": "(GSP)",
    "h:1:1 [0] s.cc:9 NCCL WARN Connect to 10.0.0.2<4711> failed : Software caused connection abort": "first attempt",
    "h:1:1 [0] s.cc:9 NCCL WARN connecting to address  with family 0 is neither AF_INET(2) nor AF_INET6(10)": "is none",
    "[W socket.cpp:401] [c10d] The server socket has failed to bind to [::]:22 (errno: 98 - Address already in use).": (
        "another process holds the port"
    ),
    "2026-03-13 22:26:02 n1.example.com:XXXX [5] ibvwrap.c:262 NCCL WARN Call to ibv_modify_qp failed with 110": (
        "did not reach each other"
    ),
}


@pytest.mark.parametrize("line", FORMS)
def test_a_line_of_each_form_is_explained(line: str) -> None:
    marked = [f"{one.found}; {one.follows}" for one in read(["step 1", line]) if one.follows]
    assert [FORMS[line] in each for each in marked] == [True]


HEALTHY = [
    "step 10: loss 2.3, val error rate 0.3, 0 failed, nothing killed",
    "The out of memory test passed; retry 1/3 ok; aborted transactions: 0",
    'h:1:1 [0] init.cc:136 NCCL WARN Missing "iommu=pt" from kernel command line which can lead to hang!',
    "h:1:1 [0] NCCL INFO P2P is disabled between connected GPUs 6 and 7. You can repress this message with X=1.",
    "h:1:1 [0] NCCL INFO NET/OFI Selected Provider is efa",
    "h:1:1 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.",
    "Traceback (most recent call last):",
    "ModuleNotFoundError: No module named 'apex'",
    "srun: job 7 queued and waiting for resources",
    "exits with return code = 0",
    "[W socket.cpp:401] [c10d] The server socket has failed to bind to [::]:29500 (errno: 97 - Address family not).",
]


def test_lines_that_healthy_jobs_print_accuse_nobody() -> None:
    for line in HEALTHY:
        assert [one.found for one in read(["step 1", line, "done"]) if one.follows] == []
    assert [one.found for one in read(HEALTHY) if one.follows] == []


def test_ranks_that_differ_are_on_the_screen() -> None:
    """The shapes of two ranks, and two collectives of one number where no line names the group."""
    shapes = [
        f"[rank{r}]: RuntimeError: op.preamble.length <= op.nbytes. {164 - r} vs 160"
        for r in range(2)
    ]
    (found,) = [one for one in read(shapes) if one.follows]
    assert "164 vs 160" in found.found
    assert "163 vs 160" in found.found
    calls = [timeout(7, 7, 42, "BROADCAST"), timeout(3, 3, 42)]
    found = next(one for one in read(calls) if one.kind == "calls")
    assert "rank 7: BROADCAST" in found.found
    assert "rank 3: ALLREDUCE" in found.found
    assert "if these ranks made it in one process group" in found.follows


def test_an_error_behind_a_progress_bar(tmp_path: Path) -> None:
    """A bar rewrites its line by carriage returns, and torch's line follows in it.

    This one is 400 kB long.
    """
    bars = "".join(
        f"\r{i / 5000:4.0%}|#####     | {i}/5000 [{i // 60:02}:{i % 60:02}<10:00,  2.79it/s, loss=0.3]"
        for i in range(5000)
    )
    path = tmp_path / "train.log"
    path.write_text(f"start\n{bars}{timeout(3, 3, 42)}\n{state(3, 3, 42, 43, 41)}\n", newline="")
    assert len(bars) > 4 << 16
    (found,) = [one for _, one in read_files([path]) if one.follows]
    assert found.found.startswith("rank 3 waited 600 s in ALLREDUCE 42 of group 0 (default_pg)")
    assert str(found.at[0]) == f"{path}:2"


def test_ranks_that_write_at_once_are_kept_apart() -> None:
    """Torch's error has several lines, and those of two ranks lie between each other."""
    error = "torch.distributed.DistBackendError: NCCL error in: ../P.cpp:1691, unhandled system error (run with), NCCL"
    last = {
        0: "Error while creating shared memory segment /dev/shm/nccl-x (size 9637888), error: No space left",
        1: "socketStartConnect: Connect to 10.0.0.3<4711> failed : No route to host",
    }
    columns = [
        [
            f"[rank{r}]: {text}"
            for text in (error, "ncclSystemError: System call", "Last error:", last[r])
        ]
        for r in last
    ]
    log = [line for pair in zip(*columns, strict=True) for line in pair]
    found = {one.found.partition(": ")[0]: one.follows for one in read(log) if one.kind == "failed"}
    assert found == {
        "rank 0": "/dev/shm is full, or smaller than NCCL's segments",
        "rank 1": "the network does not lead to that address",
    }


def test_a_part_of_a_job_is_not_the_job() -> None:
    """Communicators of two do not make a job of two, and torch's report is a finding beside the call."""
    first = [*lines(Job(nodes=1, gpus=2))]
    second = [line.replace("0xabc", "0xdef").replace("node0", "node7") for line in first]
    report = "     [3] finished collective #6, but didn't join collective #7 (count from 1)"
    for pg in ("", "0"):
        calls = [timeout(rank, rank, 42, pg=pg) for rank in (0, 1)]
        told, found = [
            one for one in read([*first, *second, *calls, report]) if one.kind == "timeout"
        ]
        assert found.follows.startswith("these lines do not prove")
        assert told.found.startswith(
            "torch names rank 3: [3] finished collective #6, but didn't join collective #7"
        )


def test_files_of_several_ranks_are_one_job() -> None:
    """A file may end inside a record, and the next one does not continue it."""
    error = "NCCL error in: ../P.cpp:1691, unhandled system error (run with), NCCL version 2.19.3"
    files = [
        [f"{error} of rank 0", "Last error:"],
        ["Duplicate GPU detected : this is another program's line"],
        [timeout(1, 1, 42), state(1, 1, 42, 43, 41)],
        [timeout(3, 3, 42), state(3, 3, 42, 42, 41)],
        [dump(2, 41, 41)],
    ]
    log = [line for rank, texts in enumerate(files) for line in numbered(texts, f"{rank}.log")]
    found = [one for one in findings(read_lines(log)) if one.follows]
    assert [one.kind for one in found] == ["timeout", "failed"]
    assert found[0].found.startswith(
        "ranks 1, 3 waited 600 s in ALLREDUCE 42 of group 0 (default_pg)"
    )
    assert found[0].follows.startswith("rank 2 had enqueued call 41 last, as torch printed")
    assert [str(place) for place in found[0].at] == ["2.log:1", "3.log:1"]
    assert "unhandled system error" in found[1].found
    assert "Duplicate" not in found[1].found


def test_the_end_of_a_job_that_ended_well_is_no_fault() -> None:
    closed = "[rank1]:[W1019 TCPStore.cpp:115] recvValue failed on SocketImpl(fd=61): Connection was likely closed."
    warned = E.format(1250).replace("E", "W", 1)
    left = f"[rank0]:{warned}Warning: process group has NOT been destroyed before we destruct"
    found = read(
        [
            *lines(Job()),
            closed,
            left,
            head(Job(), 0) + "[Service thread] Connection closed by localRank 0",
        ]
    )
    assert [one.kind for one in found if one.follows] == []
    assert "recvValue failed" in next(one.found for one in found if one.kind == "error")


def test_an_exception_is_the_reason_where_no_other_line_says_why_the_job_failed() -> None:
    raised = [
        "[rank1]: Traceback (most recent call last):",
        '[rank1]:   File "train.py", line 7, in <module>',
        "[rank1]: ValueError: got 3 classes, expected 4",
    ]
    (shown,) = [one for one in read([timeout(0, 0, 3), *raised]) if one.kind == "exception"]
    assert "rank 1: ValueError: got 3 classes, expected 4" in shown.found
    assert '"train.py", line 7' in shown.found
    assert shown.follows.startswith("an exception that nothing catches")
    assert shown.at[0].line == 4
    beside = read([timeout(0, 0, 3), *raised, f"[rank2]: {OOM}"])
    assert [one.follows for one in beside if one.kind == "exception"] == [""]
    assert [one.kind for one in read(raised) if one.follows] == []  # a program may have caught it
    assert "rank 1: ValueError" in next(
        one.found for one in read(raised) if one.kind == "traceback"
    )
    of_others = [
        *raised[:-1],
        "[rank1]: torch.distributed.DistBackendError: NCCL error in: a.cpp:1, remote process exited",
    ]
    assert "exception" not in [one.kind for one in read([timeout(0, 0, 3), *of_others])]
    closed = [*raised[:-1], "[rank1]: ConnectionResetError: [Errno 104] the other side went away"]
    assert "exception" not in [one.kind for one in read([timeout(0, 0, 3), *closed])]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "transport/nvls.cc:254 NCCL WARN Cuda failure 401 'the operation cannot be performed'",
            "NVLink SHARP",
        ),
        (
            "a.cc:1 NCCL WARN Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152",
            "NVLink SHARP",
        ),
        (
            "misc/shmutils.cc:71 NCCL WARN Error: failed to extend /dev/shm/nccl-fjwOOB to 5967876 bytes",
            "is full",
        ),
        (
            "include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device",
            "is full",
        ),
        (
            "s.cc:9 NCCL WARN Error while attaching to shared memory segment /dev/shm/nccl-x (size 1)",
            "did not find",
        ),
        (
            "n.cc:1 NCCL WARN NET/IB : Got completion with error 4, opcode 1, len 21938, vendor err 81",
            "may not read",
        ),
        (
            "g.cc:1 NCCL WARN P2P is disabled between NVLINK connected GPUs 1 and 0. This should not be",
            "NVLink joins",
        ),
        ("a.cc:1 NCCL WARN Failed to CUDA calloc 4194304 bytes", "no memory left"),
        ("a:459 NCCL WARN NET/OFI Couldn't open AV. RC: -22, ERROR: Invalid argument", "libfabric"),
        (
            "transport/p2p.cc:238 NCCL WARN failed to open CUDA IPC handle : 217 peer access is not",
            "two GPUs",
        ),
        (
            "ibvwrap.c:262 NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out, on dev x",
            "two NICs",
        ),
        (
            "i.cc:1 NCCL WARN Call to ibv_modify_qp failed with error Network is unreachable",
            "does not accept",
        ),
        (
            "s.h:409 NCCL WARN Net : Connect to 192.168.1.9<54263> failed : No route to host",
            "does not lead",
        ),
        (
            "s.h:390 NCCL WARN Connect to 10.38.10.112<21724> failed : Connection refused",
            "nothing listens",
        ),
        (
            "s.h:390 NCCL WARN Connect to 172.17.0.2<21724> failed : Connection refused",
            "Docker's bridge",
        ),
        (
            "init.cc:1247 NCCL WARN Mismatched collective detected, please check around rank 39",
            "calls: ranks call",
        ),
        (
            "b.cc:1 NCCL WARN Bootstrap Root : mismatch in rank count from procs 8 : 16",
            "do not agree on ranks",
        ),
        (
            "Duplicate GPU detected : rank 3 and rank 1 both on CUDA device 7000",
            "two ranks use one GPU",
        ),
        (
            "NET/IB : Got completion from peer n2<7> with error 12, opcode 0",
            "the peer did not answer",
        ),
        (
            "NET/IB: Got completion from peer n2<7> with status=IBV_WC_RETRY_EXC_ERR(12)",
            "the peer did not",
        ),
        ("NET/IB : Got completion from peer n2<7> with error 125, opcode 0", "warning: "),
        (
            "socketProgress: Connection closed by remote peer n2<7>",
            "another process of the job ended first",
        ),
        (
            "NET/IB : req 0/1 tag 0 peer n2<7> collective mismatch error, local size 8 remote size 4",
            "other sizes: ",
        ),
        (
            "NET/Socket : peer n2<7> message truncated : receiving 8 bytes instead of 4",
            "other sizes: ",
        ),
        ("Bootstrap : no socket interface found", "no network interface has the name"),
        ("NET/Socket : no interface found", "no network interface has the name"),
        (
            "Error : no algorithm/protocol available for function AllGather",
            "NCCL_ALGO and NCCL_PROTO leave",
        ),
        ("Cuda failure 2 'out of memory'", "the GPU has no memory left"),
        ("Cuda failure 1 'invalid argument'", "a call of CUDA failed"),
        ("Could not find a path for pattern 4", "warning: "),
    ],
)
def test_a_warning_that_is_known_says_why_the_job_fails(text: str, says: str) -> None:
    line = head(Job(), 0).replace("NCCL INFO ", "") + (
        text if " WARN " in text else f"NCCL WARN {text}"
    )
    consequence = (
        head(Job(), 5).replace("INFO", "WARN")
        + "socketProgress: Connection closed by remote peer n2<7>"
    )
    all_found = read([consequence, line])
    (found,) = [one for one in all_found if text.rpartition("WARN ")[2] in one.found]
    assert says in f"{found.kind}: {found.follows}"
    assert (found.kind == "warning") == (not found.follows)
    is_cause = found.follows and "nothing listens" not in says
    assert not is_cause or next(one for one in all_found if one.follows) == found


@pytest.mark.parametrize(
    ("text", "kind", "says"),
    [
        ("[PG 1 Rank 3] Process group watchdog thread terminated with exception: CUDA error: an illegal memory access",
         "failed", "a kernel or the driver of this process failed"),
        ("  what():  CUDA error: uncorrectable ECC error encountered", "failed", "cannot be corrected"),
        ("RuntimeError: CUDA error: invalid device ordinal", "failed", "does not see"),
        ("RuntimeError: DDP expects same model across all ranks, but Rank 0 has 5 params, while rank 1 has 6",
         "other sizes", "the model differs"),
        ("RuntimeError: [1]: params[0] in this process with sizes [7] appears not to match sizes of the same param "
         "in process 0.", "other sizes", "the model differs"),
        ("torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined.",
         "failed", "came to the store"),
        ("torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError: ", "failed", "did not meet"),
        ("torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect to "
         "(10.0.0.7, 29500).", "failed", "nothing answered at the store"),
        ("torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
         "EADDRINUSE: port 29500", "failed", "another process holds the port"),
        ("horovod.common.exceptions.HorovodInternalError: Mismatched allreduce tensor shapes: One rank sent an "
         "allreduce of shape [7], but another rank sent an allreduce of shape [9].", "calls", "Horovod compared"),
    ],
)  # fmt: skip
def test_lines_of_other_libraries(text: str, kind: str, says: str) -> None:
    (found,) = [one for one in read([text]) if one.follows]
    assert found.kind == kind
    assert says in found.follows


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks were killed", "memory"),
        ("srun: error: node7: task 3: Out Of Memory", "memory"),
        ("[ERROR] [launch.py:321:sigkill_handler] ['python', 'a.py'] exits with return code = -9", "was killed"),
        ("[ERROR] [launch.py:321:sigkill_handler] ['python', 'a.py'] exits with return code = -7", "/dev/shm"),
        ("torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGKILL", "was killed"),
        ("RuntimeError: DataLoader worker (pid 77) is killed by signal: Bus error.", "data loader was killed"),
        ("mpirun noticed that process rank 3 with PID 77 on node n7 exited on signal 11 (Segmentation)", "names the"),
        ("[12.3] NVRM: Xid (PCI:0000:1a:00): 79, pid=77, GPU has fallen off the bus.", "lost a GPU"),
        ("E0101 api.py:826] failed (exitcode: -9) local_rank: 3 (pid: 1016) of binary: /usr/bin/python", "was killed"),
    ],
)  # fmt: skip
def test_what_ended_a_process_comes_before_who_waited(text: str, says: str) -> None:
    found = [one for one in read([timeout(0, 0, 3), text]) if one.follows]
    assert [one.kind for one in found] == ["failed", "timeout"]
    assert text in found[0].found
    assert says in found[0].follows
    assert found[0].at[0].line == 2


def test_a_warning_of_no_known_form_is_no_fault() -> None:
    log = [
        *lines(Job()),
        head(Job(), 0).replace("INFO", "WARN") + "Failed to open libibverbs.so[.1]",
    ]
    (shown,) = [one for one in read(log) if one.kind == "warning"]
    assert shown.follows == ""
    assert shown.next == ""
    assert shown.at[0].line == len(log)
    assert "Failed to open libibverbs.so[.1]" in shown.found


def test_two_runs_in_one_file_do_not_differ_from_each_other() -> None:
    """Other versions, variables and networks prove something only inside one communicator."""
    first = [*lines(Job(nodes=1)), head(Job(), 0) + "NCCL_ALGO set by environment to Ring"]
    second = [
        line.replace("0xabc", "0xdef")
        .replace("2.19.3", "2.20.5")
        .replace("network Socket", "network IB")
        for line in lines(Job(nodes=1, way="NET/Socket/0"))
    ]
    second = [re.sub(r"node0:(\d+):", r"node7:9\1:", line) for line in second]
    second += ["node7:9100:200 [0] NCCL INFO NCCL_ALGO set by environment to Tree"]
    found = [
        one
        for one in read([*first, *second])
        if one.kind in ("versions", "environment", "networks")
    ]
    assert {one.kind for one in found} == {"versions", "environment"}
    assert [one.follows for one in found] == ["", ""]
    devices = [*lines(Job())] + [
        head(Job(), r) + f"NCCL_IB_HCA set by environment to mlx5_{r}" for r in (0, 4)
    ]
    assert [one.follows for one in read(devices) if one.kind == "environment"] == [""]

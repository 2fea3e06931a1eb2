"""Logs of NCCL: every version's formats, each planted fault found, and no line that makes the reader fail."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from collectives_logs.log import JobLog
from collectives_logs.log import read as read_lines
from collectives_logs.log_findings import LAST_WORDS, findings
from collectives_logs.sources import Place, lines_of, numbered
from logs.found import finders
from logs.nccl_logs import Job, head, lines, watchdog

JOBS = [
    Job(),
    Job(style="2.8"),
    Job(style="2.4"),
    Job(nodes=1, gpus=8),
    Job(nodes=5, gpus=3, channels=4),
    Job(nodes=3, gpus=1),
]


@pytest.mark.parametrize("job", JOBS, ids=str)
def test_nothing_is_wrong_with_a_healthy_job(job: Job) -> None:
    log = [*lines(job)]
    members = {name: len(processes) for name, processes in read(log).communicators.items()}
    assert members in ({}, {"0xabc": job.size})  # older versions print no identifier
    assert [one.kind for one in findings(read(log)) if one.follows] == []


def read(log: list[str]) -> JobLog:
    return read_lines(numbered(log, "job.log"))


kinds, only = finders(
    lambda log: (one for one in findings(read(log)) if one.kind not in LAST_WORDS)
)


def test_lines_name_what_findings_rest_on() -> None:
    log = [
        *lines(Job()),
        "node0:100:200 [0] f.cc:12 NCCL WARN NET/IB : Got completion with error 12",
    ]
    failed = only(log, "failed")
    assert failed.at == (Place("job.log", len(log)),)
    assert "node0: NET/IB : Got completion with error 12 (1 line on node0)" in failed.found


def replaced(was: str, becomes: str, often: int = -1) -> Callable[[list[str]], list[str]]:
    return lambda log: "\n".join(log).replace(was, becomes, often).split("\n")


@pytest.mark.parametrize(
    ("fault", "kind", "says"),
    [
        (
            replaced("version 2.19.3", "version 2.18.1", 1),
            "versions",
            "2.18.1+cuda12.2 on node0; 2.19.3+cuda12.2 on node0, node1",
        ),
        (
            replaced("via NET/IB/0/GDRDMA", "via NET/IB/0"),
            "connection",
            "4 lines of connections by InfiniBand without GPU-direct, such as rank 3 to 4",
        ),
        (
            replaced("via NET/IB/0/GDRDMA", "via NET/Socket/0", 1),
            "connection",
            "1 line of connections by sockets, such as rank 3 to 4",
        ),
        (
            replaced("via P2P/CUMEM", "via SHM/direct/direct", 1),
            "connection",
            "1 line of connections by shared memory inside a node",
        ),
        (
            replaced("Using network IB", "Using network Socket", 1),
            "networks",
            "Socket on node0; IB on node0, node1",
        ),
    ],
)
def test_a_fault_is_named(fault: Callable[[list[str]], list[str]], kind: str, says: str) -> None:
    found = [one for one in findings(read(fault([*lines(Job())]))) if one.kind == kind]
    assert found
    assert says in found[0].found
    assert all(one.at for one in found)


def test_settings_that_differ() -> None:
    job, log = Job(), [*lines(Job())]
    log += [head(job, rank) + "NCCL_ALGO set by environment to Tree." for rank in range(8)]
    log += [
        head(job, 0) + "NCCL_IB_HCA set by environment to mlx5_0",
        head(job, 5) + "NCCL_IB_HCA set by environment to mlx5_1",
    ]
    assert "NCCL_IB_HCA differs: mlx5_0 on node0; mlx5_1 on node1" in only(log, "environment").found


def test_lines_of_several_communicators_are_counted_together() -> None:
    first, second = [*lines(Job(style="2.8"))], [*lines(Job(style="2.8"))]
    log = [*first, *(line.replace("node", "host") for line in second)]
    assert kinds(log) == ["log"]
    assert kinds(log[:-1]) == ["log"]  # a line that is not there proves nothing
    smaller = [line.replace("via P2P", "via SHM") for line in lines(Job(nodes=1, style="2.8"))]
    both = [*first, *smaller]
    assert [one.found for one in findings(read(both)) if one.kind == "connection"] == [
        "8 lines of connections by shared memory inside a node, such as rank 0 to 1"
    ]


def test_a_line_inside_another_is_read() -> None:
    *log, last = lines(Job(nodes=1))
    warning = "node0:101:200 [1] f.cc:12 NCCL WARN Duplicate GPU detected : rank 1 and rank 0"
    whole = only([*log, warning], "failed")
    begun = last.index("rank 3")
    assert only([*log, last[:begun] + warning], "failed").found == whole.found
    assert "node0: Duplicate GPU detected : rank 1 and rank 0" in whole.found


def test_quoted_lines_without_host_and_device_are_read() -> None:
    log = [line.partition("] ")[2] for line in lines(Job(nodes=1, inside="SHM/direct/direct"))]
    assert log[0].startswith("NCCL INFO NCCL version")
    assert "8 lines of connections by shared memory inside a node" in only(log, "connection").found
    assert "connection" not in kinds(
        [line.replace("SHM/direct/direct", "P2P/CUMEM") for line in log]
    )


def test_the_log_of_one_rank_shows_what_leaves_its_node() -> None:
    log = [line for line in lines(Job(way="NET/Socket/0")) if line.startswith(head(Job(), 3))]
    assert "2 lines of connections by sockets, such as rank 3 to 4" in only(log, "connection").found


def test_sockets_between_nodes_follow_from_the_network_alone() -> None:
    """A log in which no line shows a connection between nodes."""
    log = [line for line in lines(Job(way="NET/Socket/0")) if "via" not in line]
    found = only(log, "connection")
    assert (
        found.found
        == "the network between hosts is sockets (`Using network Socket`) on node0, node1"
    )
    assert "connection" not in kinds([line for line in log if "node1" not in line])
    assert "connection" not in kinds([line.replace("network Socket", "network IB") for line in log])


def test_a_gpu_that_does_not_support_gpu_direct_is_a_note() -> None:
    log = [*lines(Job(way="NET/IB/0"))]
    device = "#  Rank  0 Pid  900 on      node0 device  0 [0x07] {}"
    assert only([device.format("NVIDIA RTX A6000"), *log], "connection").follows
    for name in ("GeForce RTX 2080 Ti", "NVIDIA GeForce GTX 1080", "TITAN V", "RTX 4090"):
        note = only([device.format(name), *log], "connection")
        assert note.follows == ""
        assert note.next == ""
        assert "4 lines of connections by InfiniBand without GPU-direct" in note.found
    assert only([device.format("TITAN V"), *lines(Job(way="NET/Socket/0"))], "connection").follows


def test_one_version_that_is_printed_in_two_ways_is_one() -> None:
    torch = (
        "torch.distributed.DistBackendError: NCCL error in: a.cpp:7, invalid usage, NCCL version {}"
    )
    log = [*lines(Job()), torch.format("2.19.3")]
    assert "versions" not in kinds(log)
    assert only(log, "log").found.endswith("NCCL 2.19.3+cuda12.2")
    differs = only([*lines(Job()), torch.format("2.20.5")], "versions")
    assert differs.found == "NCCL versions differ: 2.19.3+cuda12.2 on node0, node1; 2.20.5"


def test_an_error_of_nccl_that_torch_prints() -> None:
    error = "[rank{}]: torch.distributed.DistBackendError: NCCL error in: /a/P.cpp:36, {} (run with), NCCL version 2.27"
    log = [
        line
        for rank in (1, 2)
        for line in (error.format(rank, "invalid usage"), f"[rank{rank}]: Last error:")
    ]
    found = only(log, "failed")
    assert "invalid usage" in found.found
    assert found.found.endswith("(2 lines on rank 1, rank 2)")
    assert [place.line for place in found.at] == [1, 3]
    last = "[rank2]: Duplicate GPU detected : rank 2 and rank 0 both on CUDA device 7000"
    told = only([*log, last], "failed")
    assert told.found == f"rank 2: {last[9:]} (1 line on rank 2)"
    assert told.at[0].line == 3
    assert told.follows == "two ranks use one GPU, and NCCL does not allow that"
    # The line of another rank.
    assert only([*log, last.replace("rank2", "rank3")], "failed").found == found.found
    # Whose lines are not together.
    assert only([*log, last.replace("rank2", "rank1")], "failed").at[0].line == 1
    for result in (
        "unhandled system error",
        "unhandled cuda error",
        "internal error",
        "remote process exited",
    ):
        assert result in only([error.format(0, result)], "failed").found
        assert only([f"Failed, NCCL error a.cpp:62 '{result}'"], "failed").follows
    assert kinds(["we saw no NCCL error: a test of invalid usage passed"]) == ["log"]


def test_a_rank_without_a_line_is_not_accused() -> None:
    log = [*lines(Job()), *(watchdog(rank) for rank in range(8) if rank != 5)]
    found = only(log, "timeout")
    assert (
        found.found == "ranks 0–4, 6–7 waited 600 s in ALLREDUCE 42 (1,024 elements in, 1,024 out)"
    )
    assert found.follows.startswith("these lines do not prove")
    assert only([*log, watchdog(5)], "timeout").follows.startswith("these lines do not prove")
    found = [one for one in findings(read([*log, watchdog(5, 41)])) if one.kind == "timeout"]
    assert [one.found.partition(" waited")[0] for one in found] == ["rank 5", "ranks 0–4, 6–7"]


def test_no_rank_is_absent_or_present_beyond_what_the_log_says() -> None:
    alone = [watchdog(0), watchdog(1)]
    assert kinds(alone) == ["log", "timeout"]
    assert only(alone, "timeout").follows.startswith("these lines do not prove")
    reports = {
        "     [2] finished collective #41, but didn't join collective #42 (count from 1)": "rank 2",
        "     [2, 3, 7] finished collective #41, but didn't join collective #42 (count from 1)": "ranks 2–3, 7",
        " - To our best knowledge, ranks [5] are the lagging ranks that caused this timeout. They never": "rank 5",
        "   - [4, 5] joined but didn't finish collective #42 (count from 1)": "ranks 4–5",
    }
    for report, names in reports.items():
        told, found = [
            one for one in findings(read([*alone, report, report])) if one.kind == "timeout"
        ]
        assert told.found.startswith(f"torch names {names}: {report.strip()}")
        assert found.follows.startswith("these lines do not prove")


def test_two_communicators_are_kept_apart() -> None:
    one = [*lines(Job())]
    other = [line.replace("0xabc", "0xdef") for line in lines(Job(nodes=1))]
    log = read([*one, *other])
    assert {name: len(processes) for name, processes in log.communicators.items()} == {
        "0xabc": 8,
        "0xdef": 4,
    }


def test_interleaved_and_foreign_lines_do_not_matter() -> None:
    chance = random.Random(7)
    log = [*lines(Job())]
    plain = kinds(log)
    mixed = [
        each
        for line in log
        for each in ("epoch 1, loss 0.3", f"[1,2]<stdout>:\x1b[32m{line}\x1b[0m")
    ]
    cleaned = [line.replace("\x1b[32m", "").replace("\x1b[0m", "") for line in mixed]
    assert kinds(cleaned) == plain
    start = [line for line in log if "Init COMPLETE" not in line]
    chance.shuffle(start)
    begun = [line for line in start if "START" in line]
    assert kinds([*begun, *(line for line in start if "START" not in line), *log]) == plain


def test_a_line_without_an_end_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * (1 << 22) + b"\n" + "\n".join(lines(Job())).encode())
    found = [line.text for line in lines_of([path])]
    assert len(found[0]) == 1 << 16
    assert kinds(found) == ["log"]


def test_a_path_with_a_hyphen_hides_no_warning() -> None:
    """Builds of some distributions print the whole path of a source before the level."""
    path = "/build/rccl-2.22/ubuntu-22.04/src/init.cc:179"
    (message,) = read(
        [f"n1:7:7 [0] {path} NCCL WARN Duplicate GPU detected : rank 1 and rank 0"]
    ).messages
    assert message.form is not None
    assert message.text.startswith("Duplicate GPU detected")

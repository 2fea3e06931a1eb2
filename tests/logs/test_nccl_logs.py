"""Logs of NCCL: every version's formats, each planted fault found, and no line that makes the reader fail."""

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from collectives import verify
from collectives_logs.sources import Place, lines_of, numbered
from collectives_logs.nccl import NcclLog
from collectives_logs.log import read as read_lines
from collectives_logs.nccl_findings import findings, loaded_nodes, orders, ring_schedule, tree_schedule
from collectives_logs.nccl_findings import parents as found_parents
from logs.found import finders
from logs.nccl_logs import Job, call, head, lines, parents, watchdog

JOBS = [
    Job(),
    Job(style="2.8"),
    Job(style="2.4"),
    Job(nodes=1, gpus=8),
    Job(nodes=5, gpus=3, channels=4),
    Job(nodes=3, gpus=1),
]


def read(log: list[str]) -> NcclLog:
    return read_lines(numbered(log, "job.log"))


kinds, only = finders(lambda log: findings(read(log)))


@pytest.mark.parametrize("job", JOBS, ids=str)
def test_a_healthy_job_is_rebuilt_and_proved(job: Job) -> None:
    log = [*lines(job)]
    (of,) = read(log).communicators.values()
    assert (of.size, len(of.processes), len(of.complete)) == (job.size,) * 3
    assert orders(of) == {channel: tuple(range(job.size)) for channel in range(job.channels)}
    assert {c: above.tolist() for c, above in found_parents(of).items()} == {
        c: parents(job, c) for c in range(job.channels)
    }
    assert kinds(log) == ["log", "communicator", "proved", "proved"]
    verify(ring_schedule(orders(of)))
    verify(tree_schedule(found_parents(of)))


def test_lines_name_what_findings_rest_on() -> None:
    log = [*lines(Job()), "node0:100:200 [0] f.cc:12 NCCL WARN NET/IB : Got completion with error 12"]
    failed = only(log, "failed")
    assert failed.at == (Place("job.log", len(log)),)
    assert "node0: NET/IB : Got completion with error 12 (1 line on node0)" in failed.found
    ring = next(one for one in findings(read(log)) if one.kind == "proved")
    assert "Channel 00/02" in log[ring.at[0].line - 1]


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
            "4 connections by InfiniBand without GPU-direct, such as rank 3 to 4",
        ),
        (replaced("via NET/IB/0/GDRDMA", "via NET/Socket/0", 1), "connection", "1 connection by sockets between nodes"),
        (
            replaced("via P2P/CUMEM", "via SHM/direct/direct", 1),
            "connection",
            "1 connection by shared memory inside a node",
        ),
        (replaced("via P2P/CUMEM", "via NET/IB/1", 2), "connection", "2 connections by the network inside a node"),
        (replaced("Using network IB", "Using network Socket", 1), "networks", "Socket on node0; IB on node0, node1"),
        (replaced("  5   6   7", "  5   7   6"), "proved", ""),
        (
            replaced("  2   3   4   5", "  2   5   4   3"),
            "crossings",
            "channel 0 leaves a node 4 times, and 2 would do",
        ),
        (replaced("  6   7", "  6   6", 1), "ring", "the ring of channel 0 names a rank twice"),
        (lambda log: log[:-1], "incomplete", "no line says that rank 7 of 0xabc completed the initialisation"),
        (lambda log: log[:-3], "incomplete", "no line says that ranks 5–7 of 0xabc completed the initialisation"),
    ],
)
def test_a_fault_is_named(fault: Callable[[list[str]], list[str]], kind: str, says: str) -> None:
    found = [one for one in findings(read(fault([*lines(Job())]))) if one.kind == kind]
    assert found
    assert says in found[0].found
    assert all(one.at for one in found)


def test_settings_that_differ_and_a_choice_that_was_ignored() -> None:
    job, log = Job(), [*lines(Job())]
    log += [head(job, rank) + "NCCL_ALGO set by environment to Tree." for rank in range(8)]
    log += [
        head(job, 0) + "NCCL_IB_HCA set by environment to mlx5_0",
        head(job, 5) + "NCCL_IB_HCA set by environment to mlx5_1",
    ]
    for size in (1024, 1 << 20):
        log.append(head(job, 0) + f"AllReduce: {size} Bytes -> Algo RING proto SIMPLE channel{{Lo..Hi}}={{0..1}}")
    log.append(head(job, 0) + "8 Bytes -> Algo 0 proto 0 time 12.5")
    assert "NCCL_IB_HCA differs: mlx5_0 on node0; mlx5_1 on node1" in only(log, "environment").found
    assert "NCCL_ALGO is Tree, and calls ran Ring" in only(log, "NCCL_ALGO").found
    choices = [one.found for one in findings(read(log)) if one.kind == "choice"]
    assert choices == ["calls of 8 B: Tree, LL", "AllReduce of 1 KiB to 1 MiB: Ring, Simple"]
    assert "NCCL_ALGO" not in kinds([line.replace("to Tree.", "to ^Ring") for line in log])


def test_a_rank_that_is_behind_and_calls_that_differ() -> None:
    job, log = Job(), [*lines(Job())]
    log += [call(job, rank, number) for number in range(20) for rank in range(8) if (rank, number) != (6, 19)]
    behind = only(log, "behind")
    assert "1 of 8 processes in 0xabc did not reach call 19 in this log: node1:106 made call 18 last" in behind.found
    differs = [*log, call(job, 6, 19, "Broadcast")]
    assert "AllReduce of 1024 elements; Broadcast of 1024 elements" in only(differs, "calls").found
    differs[-1] = call(job, 6, 19, count=7)
    assert "AllReduce of 1024 elements; AllReduce of 7 elements" in only(differs, "calls").found
    assert not {"behind", "calls"} & {*kinds([*log, call(job, 6, 19)])}


def test_a_ring_that_is_printed_in_part_is_continued_by_its_connections() -> None:
    job = Job(nodes=7, gpus=4)
    whole = [*lines(job)]
    cut = [line.replace(" ".join(f"{rank:>3}" for rank in range(20, 28)), "") for line in whole]
    assert cut != whole
    (of,) = read(cut).communicators.values()
    assert orders(of)[0] == tuple(range(28))
    assert kinds(cut) == kinds(whole)
    lost = [line for line in cut if not ("Channel 00" in line and ": 23[" in line)]
    assert "the ring of channel 0 is not shown whole: ranks 20–27 may be" in only(lost, "ring").found
    other = [line.replace("Channel 00 : 3[1000] -> 4[", "Channel 00 : 3[1000] -> 5[") for line in cut]
    assert "ring" in kinds(other)


def test_rings_that_use_little_of_the_links_are_named() -> None:
    job = Job(nodes=1)
    searched = "Pattern 4, crossNic 0, nChannels {}, bw 20.000000/20.000000, type NVL/PIX, sameChannels 1"
    log = [*lines(job), head(job, 0) + "=== System : maxBw 240.0 totalBw 240.0 ===", head(job, 0) + searched.format(1)]
    assert only(log, "graph").found == "NCCL's rings use 20 of the 240 GB/s of a GPU's links, 1 channel of 20 GB/s"
    assert "graph" not in kinds([*log[:-1], head(job, 0) + searched.format(12)])
    assert "graph" not in kinds([*lines(Job()), *log[-2:]])
    alone = [line for line in log if line.startswith(head(job, 0))]  # the job may have more nodes, and few ports
    init = head(job, 0) + "comm 0x0 rank 0 nRanks 4 nNodes {} localRanks 4 localRank 0 MNNVL 0"
    assert "graph" not in kinds(alone)
    assert "graph" not in kinds([*alone, init.format(2)])
    assert "graph" in kinds([*alone, init.format(1)])


def test_communicators_of_one_size_without_identifiers_are_not_mixed() -> None:
    first, second = [*lines(Job(style="2.8"))], [*lines(Job(style="2.8"))]
    log = [*first, *(line.replace("node", "host") for line in second)]
    assert kinds(log) == ["log", "communicator"]
    assert only(log, "communicator").found.startswith("several of 8 ranks, all in the log")
    smaller = [line.replace("via P2P", "via SHM") for line in lines(Job(nodes=1, style="2.8"))]
    both = [*first, *smaller]
    assert [one.found for one in findings(read(both)) if one.kind == "connection"] == [
        "8 connections by shared memory inside a node, such as rank 0 to 1"
    ]


def test_a_line_inside_another_is_read() -> None:
    *log, before, last = lines(Job(nodes=1))
    begun = before.index("rank 2")
    whole = kinds([*log, before, last])
    assert kinds([*log, before[:begun] + last]) == [*whole[:2], "incomplete", *whole[2:]]
    assert "that rank 2 of" in only([*log, before[:begun] + last], "incomplete").found


def test_quoted_lines_without_host_and_device_are_read() -> None:
    log = [line.partition("] ")[2] for line in lines(Job(nodes=1, inside="SHM/direct/direct"))]
    assert log[0].startswith("NCCL INFO NCCL version")
    assert "8 connections by shared memory inside a node" in only(log, "connection").found
    assert "connection" not in kinds([line.replace("SHM/direct/direct", "P2P/CUMEM") for line in log])


def test_the_log_of_one_rank_shows_what_leaves_its_node() -> None:
    log = [line for line in lines(Job(way="NET/Socket/0")) if line.startswith(head(Job(), 3))]
    assert "2 connections by sockets between nodes, such as rank 3 to 4" in only(log, "connection").found


@pytest.mark.parametrize("nodes", ["comm 0x0 rank 0 nRanks 8 nNodes 2 localRanks 4", "NVLS Head  0:  0  4"])
def test_sockets_between_nodes_follow_from_the_network_alone(nodes: str) -> None:
    """A log in which no line shows a connection between nodes."""
    log = [line for line in lines(Job(way="NET/Socket/0")) if line.startswith(head(Job(), 0)) and "via" not in line]
    found = only([*log, head(Job(), 0) + nodes], "connection")
    assert found.found == "the network of 8 ranks on 2 nodes is sockets"
    assert "connection" not in kinds(log)
    is_fast = [line.replace("network Socket", "network IB") for line in log]
    assert "connection" not in kinds([*is_fast, head(Job(), 0) + nodes])


def test_a_gpu_that_does_not_support_gpu_direct_is_a_note() -> None:
    log = [*lines(Job(way="NET/IB/0"))]
    device = "#  Rank  0 Pid  900 on      node0 device  0 [0x07] {}"
    assert only([device.format("NVIDIA RTX A6000"), *log], "connection").follows
    for name in ("GeForce RTX 2080 Ti", "NVIDIA GeForce GTX 1080", "TITAN V", "RTX 4090"):
        note = only([device.format(name), *log], "connection")
        assert (note.follows, note.next) == ("", "")
        assert "4 connections by InfiniBand without GPU-direct" in note.found
    assert only([device.format("TITAN V"), *lines(Job(way="NET/Socket/0"))], "connection").follows


def test_one_version_that_is_printed_in_two_ways_is_one() -> None:
    torch = "torch.distributed.DistBackendError: NCCL error in: a.cpp:7, invalid usage, NCCL version {}"
    log = [*lines(Job()), torch.format("2.19.3")]
    assert "versions" not in kinds(log)
    assert "NCCL 2.19.3+cuda12.2" in only(log, "communicator").found
    differs = only([*lines(Job()), torch.format("2.20.5")], "versions")
    assert differs.found == "NCCL versions differ: 2.19.3+cuda12.2 on node0, node1; 2.20.5"


def test_an_error_of_nccl_that_torch_prints() -> None:
    error = "[rank{}]: torch.distributed.DistBackendError: NCCL error in: /a/P.cpp:36, {} (run with), NCCL version 2.27"
    log = [line for rank in (1, 2) for line in (error.format(rank, "invalid usage"), f"[rank{rank}]: Last error:")]
    found = only(log, "failed")
    assert "invalid usage" in found.found
    assert found.found.endswith("(2 lines on rank 1, rank 2)")
    assert [place.line for place in found.at] == [1, 3]
    last = "[rank2]: Duplicate GPU detected : rank 2 and rank 0 both on CUDA device 7000"
    told = only([*log, last], "failed")
    assert (told.found, told.at[0].line) == (f"rank 2: {last[9:]} (1 line on rank 2)", 3)
    assert told.follows == "two ranks use one GPU, and NCCL does not allow that"
    assert only([*log, last.replace("rank2", "rank3")], "failed").found == found.found  # the line of another rank
    assert only([*log, last.replace("rank2", "rank1")], "failed").at[0].line == 1  # whose lines are not together
    for result in ("unhandled system error", "unhandled cuda error", "internal error", "remote process exited"):
        assert result in only([error.format(0, result)], "failed").found
        assert only([f"Failed, NCCL error a.cpp:62 '{result}'"], "failed").follows
    assert kinds(["we saw no NCCL error: a test of invalid usage passed"]) == ["log"]


def test_a_rank_without_a_line_is_not_accused() -> None:
    log = [*lines(Job()), *(watchdog(rank) for rank in range(8) if rank != 5)]
    found = only(log, "timeout")
    assert found.found == "ranks 0–4, 6–7 waited 600 s in ALLREDUCE 42 (1,024 elements in, 1,024 out)"
    assert found.follows.startswith("no line about this call is of rank 5, which proves nothing")
    assert only([*log, watchdog(5)], "timeout").follows == "all 8 ranks made this call: none is missing"
    found = [one for one in findings(read([*log, watchdog(5, 41)])) if one.kind == "timeout"]
    assert [one.found.partition(" waited")[0] for one in found] == ["rank 5", "ranks 0–4, 6–7"]


def test_no_rank_is_absent_or_present_beyond_what_the_log_says() -> None:
    alone = [watchdog(0), watchdog(1)]
    assert kinds(alone) == ["log", "timeout"]
    assert only(alone, "timeout").follows.startswith("these lines do not prove")
    report = "     [{}] finished collective #41, but didn't join collective #42 (count from 1)"
    named = "torch reports, counting from 1: {} finished collective #41, but did not join collective #42"
    for given, says in (("2", "rank 2"), ("2, 3, 7", "ranks 2–3, 7")):
        for log in (alone, [*lines(Job()), *alone]):
            found = only([*log, report.format(given), report.format(given)], "timeout")
            assert (found.follows, len(found.at)) == (named.format(says), 2)
    stuck = " - To our best knowledge, ranks [5] are the lagging ranks that caused this timeout. They never joined"
    assert only([*alone, stuck], "timeout").follows.endswith("rank 5 never joined a collective")
    stuck = "   - [4, 5] joined but didn't finish collective #42 (count from 1)"
    assert only([*alone, stuck], "timeout").follows.endswith("ranks 4–5 joined but did not finish collective #42")


def test_a_node_interior_in_both_trees() -> None:
    node = {rank: f"n{rank}" for rank in range(7)}
    first, leaves = np.array([-1, 0, 0, 1, 1, 2, 2]), np.array([3, 5, 5, 4, 6, 4, -1])
    assert loaded_nodes({0: first, 1: first}, node) == []
    assert loaded_nodes({0: first, 1: leaves}, node) == []
    assert loaded_nodes({0: first, 1: np.array([1, -1, 1, 0, 0, 2, 2])}, node) == ["n0", "n1", "n2"]
    log = [*lines(Job(nodes=7, gpus=1))]
    assert "interior in both" not in kinds(log)
    places = [
        (["1/2/-1", "3/4/-1", "5/6/-1", *["-1/-1/-1"] * 4], [-1, 0, 0, 1, 1, 2, 2]),
        (["3/4/-1", "0/2/-1", "5/6/-1", *["-1/-1/-1"] * 4], [1, -1, 1, 0, 0, 2, 2]),
    ]
    for rank in range(7):
        at = next(i for i, line in enumerate(log) if line.startswith(head(Job(gpus=1), rank)) and "Trees" in line)
        trees = " ".join(f"[{c}] {below[rank]}->{rank}->{above[rank]}" for c, (below, above) in enumerate(places))
        log[at] = head(Job(gpus=1), rank) + f"Trees {trees}"
    assert only(log, "interior in both").found.endswith("links to other nodes: node0, node1, node2")


def test_trees_that_do_not_fit_together_are_left_out() -> None:
    log = [line.replace("[0] 2/-1/-1->1->0", "[0] 3/-1/-1->1->0") for line in lines(Job())]
    (of,) = read(log).communicators.values()
    assert list(found_parents(of)) == [1]


def test_two_communicators_are_kept_apart() -> None:
    one = [*lines(Job())]
    other = [line.replace("0xabc", "0xdef") for line in lines(Job(nodes=1))]
    log = read([*one, *other])
    assert {name: of.size for name, of in log.communicators.items()} == {"0xabc": 8, "0xdef": 4}
    assert [len(of.rings) for of in log.communicators.values()] == [2, 2]
    many = [line.replace("0xabc", f"0xabc{number}") for number in range(10) for line in one]
    last = [one.found for one in findings(read(many)) if one.kind == "communicator"][-1]
    assert last == "2 more communicators; what is wrong with them follows, too"


def test_interleaved_and_foreign_lines_do_not_matter() -> None:
    chance = random.Random(7)
    log = [*lines(Job())]
    plain = kinds(log)
    mixed = [each for line in log for each in ("epoch 1, loss 0.3", f"[1,2]<stdout>:\x1b[32m{line}\x1b[0m")]
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
    assert kinds(found) == ["log", "communicator", "proved", "proved"]


def test_a_path_with_a_hyphen_hides_no_warning() -> None:
    """Builds of some distributions print the whole path of a source before the level."""
    path = "/build/rccl-2.22/ubuntu-22.04/src/init.cc:179"
    (message,) = read([f"n1:7:7 [0] {path} NCCL WARN Duplicate GPU detected : rank 1 and rank 0"]).messages
    assert message.form is not None
    assert message.text.startswith("Duplicate GPU detected")

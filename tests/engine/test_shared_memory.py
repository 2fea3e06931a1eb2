"""Ranks of one host share memory, ranks of different hosts do not, and nothing is left behind."""

import contextlib
import ctypes
import fcntl
import os
import re
import socket
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from collectives.algorithms import build
from collectives.core.schedule import Schedule
from collectives.engine import segment, transport
from collectives.launch import launch
from command import finished
from places import PATIENCE, TASKS
from sweep import each

pytestmark = pytest.mark.integration

NETWORK = "cluster:1ms,200MB/s"
N, NBYTES = 1 << 20, 4 << 20
NOBODY = 65534
FIRST: Any = SimpleNamespace(rank=0, ranks_per_host=2)  # one of two ranks of a host
SECOND: Any = SimpleNamespace(rank=1, ranks_per_host=2)
WHOLE = 2 * (segment.HEADER + segment.REGION)


@pytest.fixture(name="tasks")
def tasks_of_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(TASKS)


@pytest.mark.parametrize(
    ("nbytes", "seals"), [(WHOLE, 0), (WHOLE - 1, segment.SEALS), (WHOLE, fcntl.F_SEAL_SHRINK)]
)
def test_memory_of_another_size_or_whose_size_may_change_is_refused(
    nbytes: int, seals: int
) -> None:
    memory = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(memory, nbytes)
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, seals)
    with pytest.raises(OSError, match="memory of another size, or whose size may change"):
        segment.Segment(memory, 2)
    os.close(memory)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has other users' processes")
def test_another_user_gets_no_memory_and_a_rank_gets_it_all_the_same() -> None:
    with contextlib.ExitStack() as stack:
        name, listener = segment._listener(stack)
        assert listener
        given = list[segment.Segment]()
        giver = threading.Thread(
            target=lambda: given.append(segment._give(listener, FIRST)), daemon=True
        )
        giver.start()
        assert _as_nobody(lambda: _said_to_a_stranger(name)) == 0
        taken = segment._take(name, SECOND)
        giver.join(PATIENCE)
        both = [ctypes.c_int64.from_address(each.address) for each in (given[0], taken)]
        both[0].value = 7
        assert both[1].value == 7


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has other users' processes")
def test_strangers_that_fill_the_queue_keep_no_rank_from_the_memory() -> None:
    with contextlib.ExitStack() as stack:
        name, listener = segment._listener(stack)
        assert listener
        assert _as_nobody(lambda: _filled(name)) == 0
        taken = list[segment.Segment]()
        taker = threading.Thread(
            target=lambda: taken.append(segment._take(name, SECOND)), daemon=True
        )
        taker.start()
        taker.join(0.2)  # it waits in the queue
        segment._give(listener, FIRST)
        taker.join(PATIENCE)
        assert taken


def _filled(name: bytes) -> int:
    """Connect until the queue is full, and leave it so: 0."""
    while True:
        asked = socket.socket(socket.AF_UNIX)
        asked.setblocking(False)
        try:
            asked.connect(name)
        except BlockingIOError:
            return 0
        asked.detach()


def _said_to_a_stranger(name: bytes) -> int:
    """How many bytes and descriptors the first rank of a host passes to this process."""
    with socket.socket(socket.AF_UNIX) as asked:
        asked.settimeout(PATIENCE)
        asked.connect(name)
        said, descriptors, *_ = socket.recv_fds(asked, 1, 1)
        return len(said) + len(descriptors)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has other users' processes")
def test_another_user_s_memory_is_not_taken() -> None:
    with contextlib.ExitStack() as stack:
        name, listener = segment._listener(stack)
        assert listener
        assert _as_nobody(lambda: _refused(name)) == 1


def _refused(name: bytes) -> int:
    try:
        segment._take(name, SECOND)
    except OSError as error:
        return int("another user's memory" in str(error))
    return 0


def _as_nobody(act: Callable[[], int]) -> int:
    """What it returns in a process of another user."""
    child = os.fork()
    if not child:
        code = 99
        try:
            os.setresuid(NOBODY, NOBODY, NOBODY)
            code = act()
        finally:  # this process must not go on with the tests
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize(("value", "is_there"), [("shared_memory", True), ("tcp", False)])
def test_the_variable_keeps_ranks_on_tcp(
    value: str, is_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(transport.VARIABLE, value)
    assert (transport.shared_memory_or_none() is not None) == is_there


def test_another_value_of_the_variable_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(transport.VARIABLE, "pigeon")
    with pytest.raises(
        ValueError, match="COLLECTIVES_TRANSPORT: got 'pigeon', expected shared_memory or tcp"
    ):
        transport.shared_memory_or_none()


def test_three_ranks_exchange_messages_of_random_sizes(tasks: None) -> None:
    (event,) = launch("shared_cases", {"do": "stress", "with": {"calls": 300}}, 3, timeout=PATIENCE)
    assert event["seen"] == [True] * 3


@pytest.mark.parametrize(
    ("how", "hosts"),
    each(
        [("SIGKILL", 1), ("SIGKILL", 2), ("SIGSTOP", 1), ("SIGSTOP", 2)],
        few=[("SIGKILL", 1), ("SIGSTOP", 2)],
    ),
)
def test_a_peer_that_is_killed_or_stopped_is_named(how: str, hosts: int) -> None:
    said = _ranks("fails", str(hosts + 2), how, str(hosts))
    assert set(said) == {0, *range(2, hosts + 2)}
    failed = (
        r"all_reduce by \w+ failed on rank {}, in step \d+, (receiving from|sending to) rank \d: "
    )
    for rank, words in said.items():
        assert re.match(failed.format(rank), words), words
        assert ("timeout" in words) == (how == "SIGSTOP"), words


@pytest.mark.parametrize("wanted", transport.TRANSPORTS)
def test_a_late_rank_does_not_go_on_alone(wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(transport.VARIABLE, wanted)
    said = _ranks("late", "4")
    assert set(said) == {*range(4)}
    for rank, words in said.items():
        failed = (
            rf"all_reduce by one_shot failed on rank {rank}, in .*: rank 1 gave no sign in time"
        )
        assert re.match(failed, words), words


@pytest.mark.parametrize("wanted", transport.TRANSPORTS)
def test_a_process_that_a_rank_forks_does_not_call_for_it(
    wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(transport.VARIABLE, wanted)
    refused = "this process was forked by a, "
    assert _ranks("forked", "3") == {0: "", 1: 3 * refused, 2: ""}


@pytest.mark.alone  # another test's files in /dev/shm are not ours
def test_groups_leave_nothing_behind() -> None:
    assert set(_ranks("leaves", "3").values()) == {"nothing"}


def test_where_memory_is_refused_tcp_serves_and_a_warning_says_why() -> None:
    expected = (
        "tcp, ranks of this host share no memory, so TCP serves: [Errno 28] No space left on device"
    )
    assert _ranks("refused", "2")[0] == expected


def _ranks(*arguments: str) -> dict[int, str]:
    """What each rank says at last."""
    command = [sys.executable, str(TASKS / "shared_cases.py"), *arguments]
    out = finished(command).stdout
    return {int(rank): said for rank, said in re.findall(r"^rank (\d): (.*)$", out, re.MULTILINE)}


@pytest.mark.parametrize(
    ("hosts", "each", "algorithm"), [(8, 1, "ring"), (4, 2, "hierarchical_ring")]
)
def test_only_what_goes_to_another_host_crosses_the_network(
    hosts: int, each: int, algorithm: str, tasks: None, allowed: None
) -> None:
    """The bytes that hosts count, with 0 to 5 % of headers, are those that the schedule sends to other hosts."""
    wanted = {"do": "bytes", "with": {"n": N, "algorithm": algorithm}}
    (event,) = launch(
        "shared_cases", wanted, hosts * each, where=f"{NETWORK},{each}", timeout=PATIENCE
    )
    crossing = _between_hosts(
        build("all_reduce", algorithm, hosts * each, ranks_per_node=each), each
    )
    for rank, seen in enumerate(event["seen"]):
        assert crossing <= seen["eth0"] <= 1.05 * crossing, (rank, seen)
        assert seen["lo"] < 0.01 * crossing, (rank, seen)
        assert seen["over"] == (transport.TCP if each == 1 else transport.MIXED)


def _between_hosts(schedule: Schedule, each: int) -> float:
    """Bytes that the first host sends to others."""
    chunks = 0
    for step in schedule.steps():
        crossing = (step.src // each == 0) & (step.dst // each != 0)
        chunks += int(step.count[crossing].sum())
    return NBYTES * chunks / schedule.k


def test_over_tcp_the_loopback_counts_the_rest(
    tasks: None, allowed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(transport.VARIABLE, transport.TCP)
    wanted = {"do": "bytes", "with": {"n": N, "algorithm": "ring"}}
    (event,) = launch("shared_cases", wanted, 4, where=f"{NETWORK},2", timeout=PATIENCE)
    # Of a ring, those within a host carry as much.
    each_edge = _between_hosts(build("all_reduce", "ring", 4), 2)
    assert all(seen["over"] == transport.TCP and each_edge <= seen["lo"] for seen in event["seen"])

"""Ranks of one host talk through shared memory, ranks of different hosts do not, and nothing is left behind."""

import fcntl
import os
import re
import resource
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collectives.algorithms import build
from collectives.backends.p2p import local, rings
from collectives.backends.p2p.loop import ring
from collectives.launch import launch
from collectives.traffic import traffic
from places import TASKS

pytestmark = pytest.mark.integration

ADDRESS = ("127.0.0.1", 1)
NETWORK = "cluster:1ms,200MB/s"
N, NBYTES = 1 << 20, 4 << 20
NOBODY = 65534


@pytest.fixture(name="tasks")
def tasks_of_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(TASKS)
    monkeypatch.setenv("PYTHONPATH", str(TASKS), prepend=os.pathsep)


Pair = tuple[rings.Ring, rings.Ring]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Both ends of a ring."""
    one, other = socket.socketpair()
    writer = rings.give(one, b"hello")
    said, memory, *_ = socket.recv_fds(other, 5, 1)
    reader = rings.take(other, memory)
    os.close(memory[0])
    assert said == b"hello"
    yield writer, reader
    writer.close()
    reader.close()


def test_bytes_come_whole_and_in_order_around_the_ring(pair: Pair) -> None:
    writer, reader = pair
    data, came, sent = np.random.default_rng(1).bytes(5 * ring.RING + 7), b"", 0
    while len(came) < len(data):
        if sent < len(data):
            sent += writer.sendmsg([memoryview(data)[sent : sent + 1000], memoryview(data)[sent + 1000 :][:300_000]])
        came += reader.recv(250_000)
    assert came == data


def test_a_full_ring_takes_nothing_and_an_empty_one_gives_nothing(pair: Pair) -> None:
    writer, reader = pair
    assert writer.sendmsg([bytes(ring.RING + 1)]) == ring.RING
    with pytest.raises(BlockingIOError):
        writer.sendmsg([b"x"])
    assert not writer.is_ready()
    assert len(reader.recv(ring.RING)) == ring.RING
    assert writer.is_ready()
    with pytest.raises(BlockingIOError):
        reader.recv(1)
    reader.settimeout(0.01)
    with pytest.raises(TimeoutError):
        reader.recv(1)


def test_a_writer_that_closes_is_noticed_after_its_last_bytes(pair: Pair) -> None:
    writer, reader = pair
    writer.sendmsg([b"last"])
    writer.close()
    assert (reader.recv(9, socket.MSG_PEEK), reader.recv(9), reader.recv(9)) == (b"last", b"last", b"")


def test_a_reader_that_closes_is_noticed_when_the_ring_is_full(pair: Pair) -> None:
    writer, reader = pair
    reader.close()
    assert writer.sendmsg([bytes(ring.RING)]) == ring.RING
    with pytest.raises(BrokenPipeError):
        writer.sendmsg([b"x"])


def test_a_sleeper_is_woken(pair: Pair) -> None:
    writer, reader = pair
    assert not reader.is_ready()
    writer.sendmsg([b"x"])
    assert select.select([reader], [], [], 0)[0]
    assert reader.is_ready()
    reader.recv(1)
    assert not reader.is_ready()
    assert not select.select([reader], [], [], 0)[0]


@pytest.mark.parametrize(("nbytes", "seals"), [(ring.NBYTES, 0), (ring.NBYTES - 1, rings.SEALS)])
def test_memory_that_is_not_a_ring_is_refused(nbytes: int, seals: int) -> None:
    memory = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(memory, nbytes)
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, seals)
    one, other = socket.socketpair()
    with one, other, pytest.raises(OSError, match="memory"):
        rings.take(one, [memory])
    os.close(memory)


def test_memory_for_which_no_descriptor_is_left_is_refused_with_that_reason() -> None:
    one, other = socket.socketpair()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with one, local.UnixPeer(other) as visitor:
        socket.send_fds(one, [b"hello"], [one.fileno()])
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
        try:
            assert visitor.recv(5) == b"hello"
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        with pytest.raises(OSError, match="Too many open files"):
            visitor.ring()


def test_a_host_of_too_many_ranks_shares_no_memory() -> None:
    with local.listen(ADDRESS, 5) or pytest.fail("no listener") as listener:
        met = [local.meet([ADDRESS] * ranks, 0, b"hello") for ranks in (local.MOST_RANKS, local.MOST_RANKS + 1)]
        assert [ring is not None for ring in met] == [True, False]
        met[0].close()
        listener.accept()[0].close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has other users' processes")
def test_another_user_gets_nothing() -> None:
    listener = local.listen(ADDRESS, 5)
    assert listener
    assert not _as_nobody(lambda: local.meet([ADDRESS], 0, b"hello"))  # it leaves at once
    visitor = local.UnixPeer(listener.accept()[0])
    assert visitor.recv(5) == b""
    visitor.close()
    listener.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has other users' processes")
def test_another_user_s_listener_is_not_met() -> None:
    listening, ended = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        os.setresuid(NOBODY, NOBODY, NOBODY)
        listener = local.listen(ADDRESS, 5)
        os.write(listening[1], b"x")
        os.close(ended[1])
        os.read(ended[0], 1)
        os._exit(bool(listener))
    os.read(listening[0], 1)
    assert local.listen(ADDRESS, 5) is None
    assert local.meet([ADDRESS], 0, b"hello") is None
    os.close(ended[1])
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    for each in (*listening, ended[0]):
        os.close(each)


def _as_nobody(act: Any) -> bool:
    """Whether it returns something, in a process of another user."""
    child = os.fork()
    if not child:
        os.setresuid(NOBODY, NOBODY, NOBODY)
        try:
            os._exit(bool(act()))
        except OSError:
            os._exit(0)
    return bool(os.waitpid(child, 0)[1])


@pytest.mark.parametrize(("value", "is_there"), [("shared_memory", True), ("tcp", False)])
def test_the_variable_keeps_ranks_on_tcp(value: str, is_there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(local.VARIABLE, value)
    assert (local.rings() is not None) == is_there
    listener = local.listen(ADDRESS, 1)
    assert (listener is not None) == is_there
    if listener:
        listener.close()


def test_another_value_of_the_variable_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(local.VARIABLE, "pigeon")
    with pytest.raises(ValueError, match="COLLECTIVES_TRANSPORT: got 'pigeon', expected shared_memory or tcp"):
        local.rings()


def test_three_ranks_exchange_messages_of_random_sizes(tasks: None) -> None:
    (event,) = launch("shared_cases", {"do": "stress", "with": {"calls": 300}}, 3, timeout=120)
    assert event["seen"] == [True] * 3


@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP"])
def test_a_peer_that_is_killed_or_stopped_is_named(how: str, hosts: int) -> None:
    said = _ranks("fails", str(hosts + 2), how, str(hosts))
    assert set(said) == {0, *range(2, hosts + 2)}
    failed = r"all_reduce by \w+ failed on rank {}, in step \d+, (receiving from|sending to) rank \d: "
    for rank, words in said.items():
        assert re.match(failed.format(rank), words), words
        assert ("timeout" in words) == (how == "SIGSTOP"), words


@pytest.mark.alone  # another test's files in /dev/shm are not ours
def test_groups_leave_nothing_behind() -> None:
    assert set(_ranks("leaves", "3").values()) == {"nothing"}


def _ranks(*arguments: str) -> dict[int, str]:
    """What each rank says at last."""
    command = [sys.executable, str(TASKS / "shared_cases.py"), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as running:
        try:
            out, _ = running.communicate(timeout=100)
        finally:
            if running.poll() is None:
                os.killpg(running.pid, signal.SIGKILL)
    return {int(rank): said for rank, said in re.findall(r"^rank (\d): (.*)$", out, re.MULTILINE)}


@pytest.mark.parametrize(("hosts", "each"), [(8, 1), (4, 2)])
def test_only_what_goes_to_another_host_crosses_the_network(hosts: int, each: int, tasks: None, allowed: None) -> None:
    """The bytes that hosts count, with 0 to 5 % of headers, are those of `traffic` between ranks of different hosts."""
    ranks = hosts * each
    (event,) = launch("shared_cases", {"do": "bytes", "with": {"n": N}}, ranks, where=f"{NETWORK},{each}", timeout=120)
    by_rank = traffic(build("all_reduce", "ring", ranks), NBYTES).sent.tolist()
    for rank, seen in enumerate(event["seen"]):
        crossing = by_rank[rank // each * each + each - 1]  # the last rank of a host sends to the next one
        assert crossing <= seen["eth0"] <= 1.05 * crossing, (rank, seen)
        assert seen["lo"] < 0.01 * crossing, (rank, seen)
        assert seen["over"] == (local.TCP if each == 1 else local.MIXED)


def test_over_tcp_the_loopback_counts_the_rest(tasks: None, allowed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(local.VARIABLE, local.TCP)
    (event,) = launch("shared_cases", {"do": "bytes", "with": {"n": N}}, 4, where=f"{NETWORK},2", timeout=120)
    by_rank = traffic(build("all_reduce", "ring", 4), NBYTES).sent.tolist()
    assert all(seen["over"] == local.TCP and by_rank[rank] <= seen["lo"] for rank, seen in enumerate(event["seen"]))


def test_no_name_is_left() -> None:
    listener = local.listen(ADDRESS, 1)
    assert listener
    assert "@collectives/127.0.0.1:1\n" in Path("/proc/net/unix").read_text()
    listener.close()
    assert "@collectives/127.0.0.1:1\n" not in Path("/proc/net/unix").read_text()

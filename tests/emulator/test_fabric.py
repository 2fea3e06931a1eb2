"""The fabric's process, what its loop knows of the system's structures, and hosts that the system refuses."""

import ctypes
import errno
import json
import os
import platform
import select
import socket
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from collectives import emulator
from collectives.emulator import allowed, cluster, fabric, hosts
from collectives.emulator.fabric import epoll_event
from collectives.emulator.hosts import CLONE_NEWNET, CLONE_NEWUSER, Host
from collectives.emulator.network import NONE

Said = list[Any]
UNTOUCHED = 0xDEADBEEF


@pytest.fixture
def changes(monkeypatch: pytest.MonkeyPatch) -> Said:
    """What of the network is changed."""
    found: Said = []
    monkeypatch.setattr(fabric, "change", lambda net, *change: found.append(change))
    return found


def test_a_request_is_executed_and_answered(changes: Said) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(
            json.dumps({"host": 1, "other": 3, "set": {"rate": 5.0, "cut": True}}).encode() + b"\n"
        )
        assert fabric._execute(None, theirs)  # type: ignore[arg-type]
        assert ours.recv(100) == b"{}\n"
    assert changes == [(1, 3, "rate", 5.0), (1, 3, "cut", True)]


def test_a_launcher_that_has_closed_ends_the_fabric(changes: Said) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        ours.close()
        assert not fabric._execute(None, theirs)  # type: ignore[arg-type]
    assert changes == []


def test_why_hosts_cannot_be_made_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("planted")

    life = os.pipe()
    monkeypatch.setattr(fabric, "die_with", lambda _: None)
    monkeypatch.setattr(fabric, "_make", refuse)
    monkeypatch.setattr(fabric.os, "pipe", lambda: life)
    ours, theirs = socket.socketpair()
    with ours:
        fabric.main(
            "1",
            str(theirs.detach()),
            json.dumps({"hosts": 1, "link": [1, 0], "racks": 1, "uplink": None}),
        )
        assert (ours.recv(100), ours.recv(100)) == (b'{"error": "planted"}\n', b"")
    for end in life:
        os.close(end)


@pytest.mark.parametrize("control", [2, 4, 9])
def test_each_device_has_its_host_and_no_other_file_has_one(control: int) -> None:
    devices, of_device = fabric._numbers([Host(7, 100), Host(5, 101)], control)
    assert devices.tolist() == [7, 5]
    assert np.flatnonzero(of_device != NONE).tolist() == [5, 7]
    assert (of_device[7], of_device[5], of_device[control]) == (0, 1, NONE)


def test_without_the_right_to_real_time_the_fabric_runs_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: Said = []

    def refuse(*words: object) -> None:
        asked.append(words)
        raise PermissionError(errno.EPERM, "planted")

    monkeypatch.setattr(fabric.ctypes, "CDLL", lambda _: SimpleNamespace(prctl=lambda *_: 0))
    monkeypatch.setattr(fabric.os, "sched_setscheduler", refuse)
    fabric._reduce_delays()
    assert len(asked) == 1


def refused(code: int, *flags: int) -> tuple[Callable[[int], None], Said]:
    """`unshare`, which the system refuses for these namespaces; and for which it was asked."""
    asked: Said = []

    def unshare(wanted: int) -> None:
        asked.append(wanted)
        if wanted in flags:
            raise OSError(code, os.strerror(code))

    return unshare, asked


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EPERM])
def test_a_system_that_refuses_namespaces_is_told_what_to_change(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    unshare, asked = refused(code, CLONE_NEWNET, CLONE_NEWUSER)
    monkeypatch.setattr(hosts, "_unshare", unshare)
    monkeypatch.setattr(hosts, "_call", lambda *_: None)
    with pytest.raises(
        OSError,
        match=rf"make namespaces \({os.strerror(code)}\): become root; or allow user namespace",
    ):
        hosts.prepare()
    assert asked == [CLONE_NEWNET, CLONE_NEWUSER][: 1 + (code == errno.EPERM)]


def test_a_system_call_that_fails_gives_its_error() -> None:
    with pytest.raises(OSError, match="setns: Bad file descriptor") as caught:
        hosts._call("setns", -1, 0)
    assert caught.value.errno == errno.EBADF


class Route:
    """pyroute2's routes, of a kernel that may have no cubic."""

    made: Said = []  # noqa: RUF012

    def __enter__(self) -> "Route":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def link_lookup(self, ifname: str) -> list[int]:
        return [{"eth0": 2, "lo": 1}[ifname]]

    def addr(self, *words: str, **options: object) -> None:
        self.made.append(("addr", options["address"]))

    def link(self, *words: str, **options: object) -> None:
        self.made.append(("link", options["index"], options["state"]))

    def route(self, *words: str, **options: Any) -> None:
        from pyroute2 import NetlinkError

        if "cc_algo" in options["metrics"]:
            raise NetlinkError(errno.EINVAL, "planted")
        self.made.append(("route", options["metrics"]))


def test_a_kernel_without_cubic_has_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyroute2.IPRoute", Route)
    monkeypatch.setattr(hosts.fcntl, "ioctl", lambda *_: 0)
    monkeypatch.setattr(hosts.os, "open", lambda *_: 77)
    Route.made.clear()
    assert hosts._device(3) == 77
    up = ("link", 2, "up"), ("route", {"rto_min": 1000}), ("link", 1, "up")
    assert Route.made == [("addr", "10.77.0.4"), *up]


def test_a_device_that_is_refused_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(hosts.os, "open", lambda *_: 77)
    monkeypatch.setattr(hosts.fcntl, "ioctl", refuse)
    with pytest.raises(
        OSError, match=r"cannot open /dev/net/tun \(Operation not permitted\): `modprobe tun`"
    ):
        hosts._device(0)


def refuse_name(_: str) -> None:
    raise OSError(errno.EPERM, "planted")


FAULTS: dict[str, tuple[str, Any]] = {
    "the first process": ("socket", SimpleNamespace(sethostname=refuse_name)),
    "its parent": (
        "_unshare",
        refused(errno.EPERM, hosts.CLONE_NEWUTS | hosts.CLONE_NEWNS | hosts.CLONE_NEWPID)[0],
    ),
}


@pytest.mark.integration  # forks
@pytest.mark.parametrize("fault", FAULTS)
def test_a_host_that_cannot_be_set_up_says_why(
    fault: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without namespaces: nothing of this machine may change."""
    monkeypatch.setattr(hosts, "_unshare", lambda _: None)
    monkeypatch.setattr(hosts, "_device", lambda _: 77)
    monkeypatch.setattr(hosts, "_mount", lambda _: None)
    monkeypatch.setattr(hosts, "socket", SimpleNamespace(sethostname=lambda _: None))
    monkeypatch.setattr(hosts, "SYSCTL", tmp_path)
    monkeypatch.setattr(hosts, *FAULTS[fault])
    life = os.pipe()
    why = os.strerror(errno.EPERM) if fault == "its parent" else "planted"
    with pytest.raises(OSError, match=rf"does not let you make namespaces \({why}\): become root"):
        hosts.make(0, 1, life)
    assert (tmp_path / "tcp_congestion_control").read_text() == "reno"
    for end in life:
        os.close(end)


@pytest.mark.integration
def test_the_fabric_ends_by_itself_when_its_launcher_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if reason := allowed():
        pytest.skip(reason)
    codes: Said = []
    monkeypatch.setattr(emulator, "_end", lambda process, _: codes.append(process.wait(30)))
    with cluster(2):
        pass
    assert codes == [0]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has epoll")
def test_the_system_writes_events_where_the_fabric_reads_them() -> None:
    """Five pipes can be read: their descriptors are where they are looked for, and nothing is written behind them."""
    words, at = epoll_event(platform.machine())
    pipes = [os.pipe() for _ in range(5)]
    events = np.full(2 * words * len(pipes), UNTOUCHED, dtype=np.uint32)
    with closing(select.epoll()) as poll:
        for reader, writer in pipes:
            poll.register(reader, select.EPOLLIN)
            os.write(writer, b"x")
        found = ctypes.CDLL(None).epoll_wait(
            poll.fileno(), ctypes.c_void_p(events.ctypes.data), len(pipes), 0
        )
    for each in pipes:
        os.close(each[0])
        os.close(each[1])
    assert found == len(pipes)
    assert sorted(events[at : words * found : words].tolist()) == sorted(
        reader for reader, _ in pipes
    )
    assert events[0 : words * found : words].tolist() == [select.EPOLLIN] * found
    assert (events[words * found :] == UNTOUCHED).all()


@pytest.mark.parametrize(
    ("machine", "nbytes", "offset"),
    [("x86_64", 12, 4), ("aarch64", 16, 8), ("ppc64le", 16, 8), ("riscv64", 16, 8)],
)
def test_only_x86_64_packs_an_event(machine: str, nbytes: int, offset: int) -> None:
    """As a compiler lays out the structure of the system's header, with its attribute or without."""

    class Event(ctypes.Structure):
        _layout_ = "ms"
        _pack_ = 1 if machine == "x86_64" else 8
        _fields_ = (("events", ctypes.c_uint32), ("data", ctypes.c_uint64))

    assert (ctypes.sizeof(Event), Event.data.offset) == (nbytes, offset)
    assert [4 * each for each in epoll_event(machine)] == [nbytes, offset]

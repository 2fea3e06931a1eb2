"""What the fabric's compiled loop knows of the system's structures, compared with what the system writes."""

import ctypes
import os
import platform
import select
import sys
from contextlib import closing

import numpy as np
import pytest

from collectives.emulator.devices import epoll_event

UNTOUCHED = 0xDEADBEEF


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
        found = ctypes.CDLL(None).epoll_wait(poll.fileno(), ctypes.c_void_p(events.ctypes.data), len(pipes), 0)
    for each in pipes:
        os.close(each[0])
        os.close(each[1])
    assert found == len(pipes)
    assert sorted(events[at : words * found : words].tolist()) == sorted(reader for reader, _ in pipes)
    assert events[0 : words * found : words].tolist() == [select.EPOLLIN] * found
    assert (events[words * found :] == UNTOUCHED).all()


@pytest.mark.parametrize(
    ("machine", "nbytes", "offset"), [("x86_64", 12, 4), ("aarch64", 16, 8), ("ppc64le", 16, 8), ("riscv64", 16, 8)]
)
def test_only_x86_64_packs_an_event(machine: str, nbytes: int, offset: int) -> None:
    """As a compiler lays out the structure of the system's header, with its attribute or without."""

    class Event(ctypes.Structure):
        _layout_ = "ms"
        _pack_ = 1 if machine == "x86_64" else 8
        _fields_ = (("events", ctypes.c_uint32), ("data", ctypes.c_uint64))

    assert (ctypes.sizeof(Event), Event.data.offset) == (nbytes, offset)
    assert [4 * each for each in epoll_event(machine)] == [nbytes, offset]

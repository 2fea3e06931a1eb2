"""A ring in shared memory with those methods of a socket that the mesh uses, so that Python needs no other code."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import select
import socket
import time
from weakref import finalize

import numpy as np

from collectives.backends.p2p.loop import ring
from collectives.backends.p2p.loop.system import one_at_a_time
from collectives.schedule import Ints

Buffer = bytes | memoryview

SEALS = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL  # memory that shrinks would kill its reader
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_size_t
_LIBC.mmap.argtypes = [ctypes.c_size_t, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_LIBC.munmap.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
_FAILED = ctypes.c_size_t(-1).value


class Ring:
    """One end of a ring, and of the Unix socket on which the two ends wake each other and notice that one has gone."""

    def __init__(self, doorbell: socket.socket, descriptor: int, is_sent: bool) -> None:
        self._doorbell, self._is_sent, self._timeout = doorbell, is_sent, 0.0
        self.address = mapped(descriptor, ring.NBYTES)  # while this object lives
        finalize(self, unmap, self.address, ring.NBYTES).atexit = False  # a thread may still use it
        self._room = np.zeros(ring.LEFT // 8, dtype=np.int64)
        doorbell.setblocking(False)

    def fileno(self) -> int:
        """The number of the Unix socket: it can be read when this end should look again."""
        return self._doorbell.fileno()

    def close(self) -> None:
        """Close the socket; the peer notices."""
        self._doorbell.close()

    def shutdown(self, how: int) -> None:
        """End it for both, also in a thread that waits."""
        self._doorbell.shutdown(how)

    def setblocking(self, flag: bool) -> None:
        """Whether reading waits."""
        self._timeout = float("inf") if flag else 0.0

    def settimeout(self, seconds: float) -> None:
        """How long reading waits."""
        self._timeout = seconds

    def setsockopt(self, *_: int) -> None:
        """Nothing: a ring has no options."""

    def is_ready(self) -> bool:
        """Whether there is something to do, or the peer has gone; if not, the socket will wake this process."""
        has_gone = ring.has_gone(self.fileno(), self._room)
        ring.sleeps_soon(self.address, self._is_sent)
        return has_gone or ring.is_ready(self.address, self._is_sent)

    def has_gone(self) -> bool:
        """Whether the peer has closed its end."""
        return bool(ring.has_gone(self.fileno(), self._room))

    def sendmsg(self, parts: list[Buffer]) -> int:
        """Write these parts, as far as there is room. Raises BlockingIOError where there is none."""
        if count := ring.write(self.address, self.fileno(), *_iovecs(parts)):
            return count
        raise BrokenPipeError("it has gone") if ring.has_gone(self.fileno(), self._room) else BlockingIOError

    def recv(self, size: int, flags: int = 0) -> bytes:
        """At most ``size`` bytes; with MSG_PEEK they stay in the ring."""
        came = bytearray(size)
        if not flags & socket.MSG_PEEK:
            return bytes(came[: self.recv_into(memoryview(came))])
        return bytes(came[: ring.peek(self.address, _iovecs([memoryview(came)])[0][0], size)])

    def recv_into(self, part: Buffer) -> int:
        """As many bytes as are there, at least one; 0 if the peer has gone."""
        return self.recvmsg_into([part])[0]

    def recvmsg_into(self, parts: list[Buffer]) -> tuple[int, None]:
        """Fill these parts as far as bytes are there: how many; 0 if the peer has gone. Raises as a socket does."""
        until, iovecs = time.monotonic() + self._timeout, _iovecs(parts)
        while not (count := ring.read(self.address, self.fileno(), *iovecs)):
            if ring.has_gone(self.fileno(), self._room):
                return ring.read(self.address, self.fileno(), *iovecs), None  # what it wrote before is there now
            if not self._timeout:
                raise BlockingIOError
            if not self.is_ready():
                _sleep(self.fileno(), until - time.monotonic())
        return count, None


def give(doorbell: socket.socket, hello: bytes) -> Ring:
    """A new ring whose memory is sent over this socket. Raises OSError where the system refuses it."""
    descriptor = os.memfd_create("collectives", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, ring.NBYTES)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
        made = Ring(doorbell, descriptor, is_sent=True)
        socket.send_fds(doorbell, [hello], [descriptor])
    finally:
        os.close(descriptor)
    return made


def take(doorbell: socket.socket, descriptors: list[int]) -> Ring:
    """The ring in the memory that came over this socket. Raises OSError where it is none."""
    if len(descriptors) != 1 or os.fstat(descriptors[0]).st_size != ring.NBYTES:
        raise OSError("no memory, or one of another size")
    if fcntl.fcntl(descriptors[0], fcntl.F_GET_SEALS) & SEALS != SEALS:
        raise OSError("memory whose size may change")
    return Ring(doorbell, descriptors[0], is_sent=False)


def mapped(descriptor: int, nbytes: int) -> int:
    """Where the memory is in this process. Python's own mapping would keep a descriptor open."""
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    address = int(_LIBC.mmap(0, nbytes, protection, mmap.MAP_SHARED, descriptor, 0))
    if address == _FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return address


def unmap(address: int, nbytes: int) -> None:
    """Give the memory back."""
    _LIBC.munmap(address, nbytes)


def _iovecs(parts: list[Buffer]) -> tuple[Ints, int]:
    """Address and bytes of each part, and how many parts there are."""
    arrays = [np.frombuffer(part, dtype=np.uint8) for part in parts if len(part)]
    return np.array([(each.ctypes.data, len(each)) for each in arrays], dtype=np.int64).ravel(), len(arrays)


def _sleep(number: int, seconds: float) -> None:
    """Wait until this descriptor can be read. Raises TimeoutError if that takes longer."""
    poll = select.poll()
    poll.register(number, select.POLLIN)
    if seconds <= 0 or not poll.poll(min(seconds, 3600.0) * 1e3):
        raise TimeoutError


def _compile() -> None:
    """Send a byte through a ring, one process at a time: the others find the code in the cache."""
    with one_at_a_time(__file__):
        one, other = socket.socketpair()
        with one, other:
            writer = give(one, b".")
            _, memory, *_ = socket.recv_fds(other, 1, 1)
            reader = take(other, memory)
            os.close(memory[0])
            writer.sendmsg([b"."])
            reader.is_ready()
            reader.recv(1, socket.MSG_PEEK)
            reader.recv(1)


_compile()

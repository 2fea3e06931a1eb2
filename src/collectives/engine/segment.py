"""The memory that the ranks of a host share: made by the first of them, passed over Unix sockets.

It has no name, and is gone with the last process that maps it, however that ends. The socket has
one that nobody can guess, in the network namespace: hosts that are emulated by namespaces share no
memory. Both ends check that the other is a process of the same user. Every rank also has
connections to all others of the host (`mesh`): they say that a rank has failed, and end when it is
killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import secrets
import socket
import struct
import warnings
from weakref import finalize

from torch import distributed as dist

from collectives.engine.handshake import all_gather_bytes
from collectives.engine.mesh import Mesh
from collectives.engine.transport import MAX_RANKS_PER_HOST

# Bytes of each rank: a header and, behind all headers, two slots for each of two blocks. `shm` says
# what is in them.
HEADER, SLOT = 4096, 1 << 20
REGION = 4 * SLOT

SECONDS = 30  # that the first rank may take to pass the memory on
CREDENTIALS = struct.Struct("3i")  # process, user, group
LIMIT = struct.pack("ll", SECONDS, 0)  # seconds and microseconds
# Memory that shrinks would kill its reader.
SEALS = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_size_t
_LIBC.mmap.argtypes = [ctypes.c_size_t, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_LIBC.munmap.argtypes = [ctypes.c_size_t, ctypes.c_size_t]


class Segment:
    """Hold the shared memory of so many ranks, as one of them has mapped it."""

    def __init__(self, descriptor: int, ranks: int) -> None:
        nbytes = ranks * (HEADER + REGION)
        if (
            os.fstat(descriptor).st_size != nbytes
            or fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & SEALS != SEALS
        ):
            raise OSError("memory of another size, or whose size may change")
        self.address = _mapped(descriptor, nbytes)
        # A thread may still use it.
        finalize(self, _LIBC.munmap, self.address, nbytes).atexit = False


def _mapped(descriptor: int, nbytes: int) -> int:
    """Map the memory, and return its address. Python's own mapping would keep a descriptor open."""
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    address = int(_LIBC.mmap(0, nbytes, protection, mmap.MAP_SHARED, descriptor, 0))
    if address == ctypes.c_size_t(-1).value:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return address


def share(group: dist.ProcessGroup, mesh: Mesh) -> Segment | None:
    """Return memory that all ranks of this host have; None if a rank of the group cannot have it.

    All ranks of the group call it.
    """
    with mesh.begin():
        mesh.connect_all({*mesh.on_host} - {mesh.rank})
    found: Segment | None = None
    with contextlib.ExitStack() as stack:
        first = mesh.on_host[0]
        name, listener = _listener(stack) if mesh.rank == first else (b"", None)
        name = all_gather_bytes(name, group)[first]
        try:
            if listener:
                found = _give(listener, mesh)
            elif name:
                found = _take(name, mesh)
        except OSError as error:
            warnings.warn(
                f"ranks of this host share no memory, so TCP serves: {error}",
                RuntimeWarning,
                stacklevel=2,
            )
    return found if all(all_gather_bytes(b"1" if found else b"", group)) else None


def _listener(stack: contextlib.ExitStack) -> tuple[bytes, socket.socket | None]:
    listener = stack.enter_context(socket.socket(socket.AF_UNIX))
    name = f"\0collectives/{secrets.token_hex(16)}".encode()
    try:
        listener.bind(name)
        listener.listen(MAX_RANKS_PER_HOST)
    except OSError:
        return b"", None
    listener.settimeout(SECONDS)
    return name, listener


def _give(listener: socket.socket, mesh: Mesh) -> Segment:
    """Make the memory, and pass it to every rank that connects: processes of this user."""
    descriptor = os.memfd_create("collectives", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, mesh.ranks_per_host * (HEADER + REGION))
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
        given = 1
        while given < mesh.ranks_per_host:
            peer, _ = listener.accept()
            with peer:
                if is_ours(peer):
                    socket.send_fds(peer, [b"."], [descriptor])
                    given += 1
        return Segment(descriptor, mesh.ranks_per_host)
    finally:
        os.close(descriptor)


def _take(name: bytes, mesh: Mesh) -> Segment:
    with socket.socket(socket.AF_UNIX) as asked:
        # The kernel's timeouts: under Python's own, `connect` fails at once where the queue is
        # full.
        asked.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, LIMIT)
        asked.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, LIMIT)
        asked.connect(name)
        if not is_ours(asked):
            raise OSError("another user's memory")
        _, descriptors, _, _ = socket.recv_fds(asked, 1, 1)
    if len(descriptors) != 1:
        raise OSError("no memory")
    try:
        return Segment(descriptors[0], mesh.ranks_per_host)
    finally:
        os.close(descriptors[0])


def is_ours(peer: socket.socket) -> bool:
    """Return True if the process that connected has this process's user.

    The kernel says so, not the peer.

    >>> one, other = socket.socketpair()
    >>> with one, other:
    ...     is_ours(one)
    True
    """
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    return bool(CREDENTIALS.unpack(credentials)[1] == os.geteuid())

"""Ranks of one host meet through an abstract Unix socket, and pass the memory of a ring; all others stay on TCP.

The socket's name is the rank's address in the mesh. It belongs to the network namespace, as the address does: hosts
that are emulated by namespaces do not share memory. The name is gone with its process, and the memory has none, so
nothing is left behind. Both ends check that the other is the same user, and the one that is met checks the group's
token. A pair for which the system refuses any of this uses TCP.
"""

from __future__ import annotations

import errno
import importlib
import os
import socket
import sys
import warnings
from collections.abc import Sequence
from functools import cache
from typing import Any

from collectives.backends.p2p.program import COMPILED, EXECUTORS, PYTHON
from collectives.processes import is_ours

# The variable that keeps all pairs on TCP.
VARIABLE = "COLLECTIVES_TRANSPORT"
TRANSPORTS = SHARED_MEMORY, TCP = "shared_memory", "tcp"
# The variable that selects the executor by its name; without numba, or not on Linux, Python's serves.
EXECUTOR_VARIABLE = "COLLECTIVES_EXECUTOR"
MIXED = f"{SHARED_MEMORY}+{TCP}"  # of a rank that has peers on its own host and on others

MOST_RANKS = 32  # of one host that share memory: a ring for each pair and direction, 1 GiB if all of them talk
# How many times a rank polls its rings, yielding in between, before it sleeps: about a millisecond, or 8 us.
MANY_SPINS, FEW_SPINS = 2000, 16
Address = tuple[str, int]


def rings() -> Any:
    """The module of the rings; None where `VARIABLE` says so, without numba, or elsewhere than on Linux."""
    wanted = os.environ.get(VARIABLE, SHARED_MEMORY)
    if wanted not in TRANSPORTS:
        raise ValueError(f"{VARIABLE}: got {wanted!r}, expected {SHARED_MEMORY} or {TCP}")
    return None if wanted == TCP or sys.platform != "linux" else _compiled()


@cache
def _compiled() -> Any:
    return compiled_module("collectives.backends.p2p.rings", "TCP")


@cache
def loop() -> Any:
    """The module of the compiled loop; None without numba, elsewhere than on Linux, or for another executor."""
    wanted = os.environ.get(EXECUTOR_VARIABLE, COMPILED)
    if wanted not in EXECUTORS:
        raise ValueError(f"{EXECUTOR_VARIABLE}: got {wanted!r}, expected {COMPILED} or {PYTHON}")
    if wanted == PYTHON or sys.platform != "linux":
        return None
    return compiled_module("collectives.backends.p2p.loop.execute", f"the executor in {PYTHON}")


@cache
def published() -> Any:
    """The module that executes on published buffers; None where there are no rings or no compiled executor."""
    return rings() and loop() and compiled_module("collectives.backends.p2p.published", "messages")


def compiled_module(name: str, instead: str) -> Any:
    """A module of compiled code; None without numba, or without a folder in which it may keep what it has compiled.

    If the system refuses something else, such as room for it, a warning says so, and what serves ``instead``.
    """
    try:
        return importlib.import_module(name)
    except (ImportError, RuntimeError):
        return None
    except OSError as error:
        warnings.warn(f"{name} cannot be used, so {instead} serves: {error}", RuntimeWarning, stacklevel=2)
        return None


def listen(address: Address, backlog: int) -> socket.socket | None:
    """A socket at which ranks of this host meet the rank of this address; None where that is refused."""
    if not rings():
        return None
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(_name(address))
        listener.listen(backlog)
    except OSError:
        listener.close()
        return None
    listener.setblocking(False)
    return listener


def meet(addresses: Sequence[Address], peer: int, hello: bytes) -> Any:
    """Our end of a ring to a rank, which has been sent ``hello``; None where that is refused.

    ``addresses`` has those of all ranks. Too many ranks on the peer's host would fill its memory with rings.
    """
    address = addresses[peer]
    if not rings() or sum(host == address[0] for host, _ in addresses) > MOST_RANKS:
        return None
    doorbell = socket.socket(socket.AF_UNIX)
    doorbell.setblocking(False)
    try:
        doorbell.connect(_name(address))
        if is_ours(doorbell):
            return rings().give(doorbell, hello)
    except OSError:  # mostly: it is on another host
        pass
    doorbell.close()
    return None


def ranks_per_host(addresses: Sequence[Address]) -> int:
    """The ranks of a host, if they share memory: if ranks fill all hosts in order, and are not too many; otherwise 1.

    >>> [ranks_per_host([(host, 0) for host in hosts]) for hosts in ("aabb", "aaab", "abab", "aa", "ab")]
    [2, 1, 1, 2, 1]
    """
    hosts = [host for host, _ in addresses]
    each = hosts.count(hosts[0])
    in_order = [host for host in dict.fromkeys(hosts) for _ in range(each)]
    return each if hosts == in_order and each <= MOST_RANKS else 1


def spins(addresses: Sequence[Address], rank: int, background: bool) -> int:
    """How many times the rank polls its rings, and sockets of this host, before it sleeps.

    Sleeping and being woken costs 50 us and more. Spinning occupies a core that others may need: other ranks if this
    host has fewer cores than ranks, and the rank's own computation if its calls run in the background.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    here = sum(host == addresses[rank][0] for host, _ in addresses)
    return FEW_SPINS if background or here > cores else MANY_SPINS


class UnixPeer(socket.socket):
    """A process that has connected, and the memory that it passes with its greeting."""

    def __init__(self, connected: socket.socket) -> None:
        super().__init__(fileno=connected.detach())
        self.setblocking(False)
        self._memory: list[int] = []
        self._is_full = False  # whether this process had no number left for the memory's descriptor

    def recv(self, size: int, flags: int = 0) -> bytes:
        """What it says; nothing from another user."""
        if not is_ours(self):
            return b""
        said, memory, how, _ = socket.recv_fds(self, size, 1, flags)
        self._memory += memory
        self._is_full |= bool(how & socket.MSG_CTRUNC)
        return said

    def ring(self) -> Any:
        """The ring in that memory, from which this rank reads. Raises OSError where it is not one, or not for us."""
        try:
            if self._is_full:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            doorbell = socket.socket(fileno=os.dup(self.fileno()))
            try:
                return rings().take(doorbell, self._memory)
            except OSError:
                doorbell.close()
                raise
        finally:
            self.close()

    def close(self) -> None:
        """Close the connection and the memory's descriptor; what is mapped stays."""
        for descriptor in self._memory:
            os.close(descriptor)
        self._memory = []
        super().close()


def opened(connected: socket.socket) -> Any:
    """What messages come over: the ring that a visitor has brought, or the socket itself."""
    return connected.ring() if isinstance(connected, UnixPeer) else connected


def _name(address: Address) -> str:
    return f"\0collectives/{address[0]}:{address[1]}"

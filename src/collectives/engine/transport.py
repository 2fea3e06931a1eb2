"""Define the protocol of all transports, which carry a group's calls, and find the ranks that share memory."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from torch import distributed as dist

from collectives.engine.system import FUTEX

if TYPE_CHECKING:
    from collectives.engine.call import Call, CompiledCall

# The variable that keeps the ranks of a host on TCP, too.
VARIABLE = "COLLECTIVES_TRANSPORT"
TRANSPORTS = SHARED_MEMORY, TCP = "shared_memory", "tcp"
MIXED = f"{SHARED_MEMORY}+{TCP}"  # of a call with stages on hosts, and between them

MAX_RANKS_PER_HOST = 32  # that share memory
# How many times a rank polls its sockets, yielding in between, before it sleeps: about a
# millisecond, or 8 us.
MANY_SPINS, FEW_SPINS = 2000, 16


class Transport(Protocol):
    """Execute one rank's programs, one call after the other: by shared memory, TCP or NCCL.

    ``ranks_per_host`` ranks in a row share memory. If they are several, `CompiledCall.stages` has
    what they do there.
    """

    ranks_per_host: int

    @classmethod
    def connect(cls, group: dist.ProcessGroup, is_background: bool) -> Transport:
        """Return the transport of this rank.

        All ranks of the group call it, at the same place among their calls.
        """

    def run(self, made: CompiledCall, call: Call) -> None:
        """Perform a call on its tensors: follow ``made.plan``.

        Raises MessageError if a peer fails or is late.
        """

    def close(self, why: str) -> None:
        """Have the call in progress and the peers that wait for this rank fail, and say why.

        From any thread.
        """


def shared_memory_or_none() -> Any:
    """Return the module that executes on shared memory.

    None if `VARIABLE` is TCP, or the system has no futex.
    """
    wanted = os.environ.get(VARIABLE, SHARED_MEMORY)
    if wanted not in TRANSPORTS:
        raise ValueError(f"{VARIABLE}: got {wanted!r}, expected {SHARED_MEMORY} or {TCP}")
    return shared_memory() if wanted == SHARED_MEMORY and FUTEX else None


@cache
def shared_memory() -> Any:
    """Import the module that executes on shared memory, which compiles; it needs a futex."""
    return importlib.import_module("collectives.engine.shm")


def ranks_per_host(addresses: Sequence[tuple[str, int]]) -> int:
    """Return how many ranks of a host share memory: 1 unless ranks fill all hosts in order, and are not too many.

    >>> [ranks_per_host([(host, 0) for host in hosts]) for hosts in ("aabb", "aaab", "abab", "aa", "ab")]
    [2, 1, 1, 2, 1]
    """
    hosts = [host for host, _ in addresses]
    ranks = hosts.count(hosts[0])
    in_order = np.repeat(list(dict.fromkeys(hosts)), ranks).tolist()
    return ranks if hosts == in_order and ranks <= MAX_RANKS_PER_HOST else 1


def spins(addresses: Sequence[tuple[str, int]], rank: int, background: bool) -> int:
    """Return how many times the rank polls for data from this host before it sleeps.

    Sleeping and being woken costs 50 us and more. Spinning occupies a core that others may need:
    other ranks if this host has fewer cores than ranks, and the rank's own computation if its calls
    run in the background.
    """
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    here = sum(host == addresses[rank][0] for host, _ in addresses)
    return FEW_SPINS if background or here > cores else MANY_SPINS

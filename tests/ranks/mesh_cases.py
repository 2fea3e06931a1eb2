"""Ranks that use the mesh well and badly: for test_mesh.py. Every rank reports what it saw to rank 0."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist

import collectives
from collectives.backends.mesh import HELLO, mesh

Report = Callable[[dict[str, Any]], None]


def run(settings: dict[str, Any], report: Report) -> None:
    rank, p = dist.get_rank(), dist.get_world_size()
    tell("large messages are whole", large(rank, p), report)
    tell("who is ahead waits", ahead(rank, p), report)
    tell("a stranger is turned away", stranger(rank, p), report)
    for name, call in DISAGREEMENTS.items():
        tell(name, disagree(call, rank), report)


def tell(case: str, seen: object, report: Report) -> None:
    everyone: list[object] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, seen)
    report({"case": case, "seen": everyone})


def total(p: int, n: int) -> torch.Tensor:
    return torch.arange(n, dtype=torch.int64) * p + p * (p - 1) // 2


def large(rank: int, p: int) -> bool:
    """Far more than the system's buffers hold: everybody to everybody, in exchanges, around the ring, up and down."""
    n = 3_000_001
    right = True
    for algorithm in ("exchange", "halving_doubling", "ring", "two_tree"):
        tensor = torch.arange(n, dtype=torch.int64) + rank
        collectives.all_reduce(tensor, algorithm=algorithm)
        right &= torch.equal(tensor, total(p, n))
    return right


def ahead(rank: int, p: int) -> bool:
    """Three calls of different sizes, and one rank that comes late to each."""
    right = True
    for n in (1, 100_000, 7):
        if rank == n % p:
            time.sleep(0.2)
        tensor = torch.arange(n, dtype=torch.int64) + rank
        collectives.all_reduce(tensor, algorithm="ring")
        right &= torch.equal(tensor, total(p, n))
    return right


def stranger(rank: int, p: int) -> bool:
    """Somebody connects and says nothing, too little, or the wrong word; the next call is right all the same."""
    joined = mesh(dist.group.WORLD)
    greetings = (b"", b"hello", HELLO.pack(b"x" * 16, (rank + 1) % p))
    guests = [socket.create_connection(joined._listener.getsockname()) for _ in greetings]
    for guest, greeting in zip(guests, greetings, strict=True):
        guest.sendall(greeting)
    tensor = torch.arange(5, dtype=torch.int64) + rank
    collectives.all_reduce(tensor, algorithm="exchange")
    for guest in guests:
        guest.close()
    again = torch.arange(5, dtype=torch.int64) + rank
    collectives.all_reduce(again, algorithm="ring")
    return torch.equal(tensor, total(p, 5)) and torch.equal(again, total(p, 5))


DISAGREEMENTS = {
    "sizes differ": lambda rank, group: collectives.all_reduce(
        torch.zeros(100 + rank), algorithm="recursive_doubling", group=group
    ),
    "algorithms differ": lambda rank, group: collectives.all_reduce(
        torch.zeros(100), algorithm="ring" if rank else "recursive_doubling", group=group
    ),
}


def disagree(call: Callable[[int, dist.ProcessGroup], object], rank: int) -> list[str]:
    """What the call says, and what the next one on the same group says.

    Who waits for a rank that has failed and never had a connection to it learns of it by the clock.
    """
    group = dist.new_group(timeout=timedelta(seconds=3))
    said = []
    for _ in range(2):
        try:
            call(rank, group)
            said.append("nothing")
        except RuntimeError as error:
            said.append(str(error))
    return said

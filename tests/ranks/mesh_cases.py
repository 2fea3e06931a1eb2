"""Ranks that use the mesh well and badly: for test_mesh.py.

Every rank reports what it saw to rank 0.
"""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist

import collectives
from collectives.engine import mesh
from collectives.engine.compile import as_plan
from collectives.engine.group import communicator
from collectives.engine.handshake import HANDSHAKE, HEADER, NO_CALL, MessageError
from collectives.engine.program import Recv, Send, Span, Task, Wait

Report = Callable[[dict[str, Any]], None]
Call = Callable[[Any], object]


def run(settings: dict[str, Any], report: Report) -> None:
    rank, p = dist.get_rank(), dist.get_world_size()
    mesh.PENDING_SECONDS = 1.0
    tell("large messages are whole", large(rank, p), report)
    tell("who is ahead waits", ahead(rank, p), report)
    tell(
        "where it listens",
        communicator(dist.group.WORLD).transport().mesh.listener.getsockname()[0],
        report,
    )  # type: ignore[arg-type]
    tell("a handshake may come in pieces", slow_handshake(rank, p), report)
    tell("unauthenticated connections are closed", unauthenticated(rank, p), report)
    tell("a sender learns why its peer gave up", gave_up(rank), report)
    for name, calls in DISAGREEMENTS.items():
        tell(name, disagree(calls, rank), report)


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
    for algorithm in ("one_shot", "halving_doubling", "ring", "two_tree"):
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


def gave_up(rank: int) -> bool:
    """Rank 1 fails before the others have a connection from it.

    If they then send to it, they report that failure.
    """
    transport = communicator(dist.new_group()).transport()
    mesh = transport.mesh
    mesh.begin()
    if rank == 1:
        mesh.fail(ValueError("planted"))
        mesh.end()
    dist.barrier()
    if rank == 1:
        return True
    try:
        sends = as_plan((Task((Send(0, 1, 0, (Span(0, 1 << 20),)), Wait(0)), ()),))
        transport.execute(sends, torch.zeros(1 << 20, dtype=torch.uint8), None, None)
    except MessageError as error:
        return "rank 1 failed by ValueError: planted" in str(error)
    return False


def all_reduce(n: int = 100, op: Any = dist.ReduceOp.SUM, dtype: Any = torch.float32) -> Call:
    x = torch.ones(n, dtype=dtype)
    return lambda group: collectives.all_reduce(x, op, group, algorithm="recursive_doubling")


def in_two_orders(rank: int, group: dist.ProcessGroup) -> None:
    """The same calls in the background; rank 1 makes them in the other order."""
    x, y = torch.ones(100), torch.ones(100)
    calls = [
        lambda: collectives.all_reduce(
            x, group=group, algorithm="recursive_doubling", async_op=True
        ),
        lambda: collectives.all_reduce(
            y, dist.ReduceOp.MAX, group, algorithm="recursive_doubling", async_op=True
        ),
    ]
    for work in [call() for call in (calls[::-1] if rank == 1 else calls)]:
        assert work
        work.wait()


# What every rank calls, and what rank 1 calls instead.
DISAGREEMENTS: dict[str, tuple[Call, Call]] = {
    "sizes differ": (all_reduce(), all_reduce(101)),
    "ops differ": (all_reduce(), all_reduce(op=dist.ReduceOp.MAX)),
    "dtypes differ": (all_reduce(), all_reduce(dtype=torch.int32)),
    "algorithms differ": (
        all_reduce(),
        lambda group: collectives.all_reduce(torch.ones(100), group=group, algorithm="ring"),
    ),
    "collectives differ": (
        all_reduce(),
        lambda group: collectives.all_gather_into_tensor(
            torch.ones(400), torch.ones(100), group, algorithm="direct"
        ),
    ),
    "roots differ": (
        lambda group: collectives.broadcast(
            torch.ones(100), 0, group, algorithm="chain", segments=2
        ),
        lambda group: collectives.broadcast(
            torch.ones(100), 3, group, algorithm="chain", segments=2
        ),
    ),
    "segments differ": (
        lambda group: collectives.all_reduce(
            torch.ones(100), group=group, algorithm="tree", segments=1
        ),
        lambda group: collectives.all_reduce(
            torch.ones(100), group=group, algorithm="tree", segments=2
        ),
    ),
    "splits differ": (
        lambda group: collectives.all_to_all_single(
            torch.ones(8), torch.ones(8), group=group, algorithm="direct"
        ),
        lambda group: collectives.all_to_all_single(
            torch.ones(8), torch.ones(8), [2] * 4, [2] * 4, group, algorithm="direct"
        ),
    ),
    "orders differ": (partial(in_two_orders, 0), partial(in_two_orders, 1)),
}


def disagree(calls: tuple[Call, Call], rank: int) -> list[str]:
    """What the call says, and what the next one on the same group says."""
    group = dist.new_group(timeout=timedelta(seconds=3))
    said = []
    for _ in range(2):
        try:
            calls[rank == 1](group)
            said.append("nothing")
        except RuntimeError as error:
            said.append(str(error))
    return said


def slow_handshake(rank: int, p: int) -> bool:
    """Rank 1 sends rank 0 its handshake in two pieces, some time apart, and then sends it five bytes."""
    transport = communicator(dist.new_group(timeout=timedelta(seconds=20))).transport()
    joined, came = transport.mesh, torch.zeros(5, dtype=torch.uint8)
    joined.begin()
    if rank == 1:
        handshake = joined.handshake()
        with socket.create_connection(joined.addresses[0]) as connected:
            connected.sendall(handshake[:7])
            time.sleep(0.3)
            connected.sendall(handshake[7:])
            time.sleep(0.1)
            connected.sendall(HEADER.pack(joined.call, 0, 5, NO_CALL) + b"hello")
            dist.barrier()
    elif rank == 0:
        transport.execute(
            as_plan((Task((Recv(0, 1, 0, Span(0, 5)), Wait(0)), ()),)), came, None, None
        )
        dist.barrier()
    else:
        dist.barrier()
    joined.end()
    return rank != 0 or bytes(came.tolist()) == b"hello"


def unauthenticated(rank: int, p: int) -> bool:
    """Others send nothing, too little or a wrong token: calls are right, few descriptors are used, in the end none."""
    group = dist.new_group(timeout=timedelta(seconds=60))
    assert isinstance(group, dist.ProcessGroup)
    joined, right = communicator(group).transport().mesh, True
    before, guests = open_files(), list[socket.socket]()
    words = b"", b"hello", HANDSHAKE.pack(b"x" * 16, (rank + 1) % p, 0, NO_CALL, 0, 0, b""), b""

    def calls() -> None:
        nonlocal right
        joined._last_poll = 0.0  # as if a second had passed
        x = torch.arange(5, dtype=torch.int64) + rank
        collectives.all_reduce(x, group=group, algorithm="one_shot")
        right &= torch.equal(x, total(p, 5))

    # In waves: the system holds no more than MAX_PENDING until a rank accepts them.
    for _ in range(6):
        wave = [
            socket.create_connection(joined.listener.getsockname())
            for _ in range(mesh.MAX_PENDING // 2)
        ]
        for guest, word in zip(wave, itertools.cycle(words)):
            guest.sendall(word)
        guests += wave
        for _ in wave:
            calls()
    most = mesh.MAX_PENDING + 3 * p  # guests, and the group's own connections
    right &= open_files() - before - len(guests) <= most
    deadline = time.monotonic() + 10 * mesh.PENDING_SECONDS
    going = torch.ones(1)
    while going.item():
        calls()
        left = sum(not is_closed(guest) for guest in guests)
        going = torch.tensor([float(left > 0 and time.monotonic() < deadline)])
        dist.all_reduce(going, op=dist.ReduceOp.MAX)
    right &= all(map(is_closed, guests))
    for guest in guests:
        guest.close()
    return right


def is_closed(guest: socket.socket) -> bool:
    """Return True if the other end has hung up."""
    guest.setblocking(False)
    try:
        return guest.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").is_dir() else 0

"""Ranks that talk through shared memory or not, and what that leaves behind: for test_shared_memory.py."""

from __future__ import annotations

import errno
import gc
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist

import collectives
from collectives.backends import backend
from collectives.engine import mesh
from collectives.engine.call import Call
from collectives.engine.group import communicator

Report = Callable[[dict[str, Any]], None]
SECONDS = 4.0  # timeout of a group of which a rank fails


def run(settings: dict[str, Any], report: Report) -> None:
    seen = {"bytes": counted, "stress": stressed}[settings["do"]](**settings.get("with", {}))
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, seen)
    report({"seen": everyone})


def counted(n: int, algorithm: str) -> dict[str, Any]:
    """Bytes that this host sends over its network and its loopback in an all-reduce.

    What carries them.
    """
    call = Call(
        "all_reduce", (tensor := torch.ones(n)), tensor, dist.ReduceOp.SUM, algorithm=algorithm
    )
    over = backend("p2p").perform(call).transport  # makes the connections
    dist.barrier()
    before = sent()
    dist.barrier()
    backend("p2p").perform(call)
    dist.barrier()
    return {"over": over} | {name: value - before[name] for name, value in sent().items()}


def sent() -> dict[str, int]:
    """Bytes by interface of this network namespace."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()[2:]
    return {
        name.strip(): int(rest.split()[8]) for name, rest in (line.split(":") for line in lines)
    }


def stressed(calls: int) -> bool:
    """Calls of random sizes, some longer than a slot, and ranks that come late."""
    size, late, right = random.Random(1), random.Random(dist.get_rank()), True
    rank, p = dist.get_rank(), dist.get_world_size()
    for _ in range(calls):
        n = size.choice((1, 2, 3, 100, 5_000, size.randrange(400_000)))
        algorithm = size.choice(("ring", "recursive_doubling", "two_tree", "one_shot"))
        tensor = torch.arange(n, dtype=torch.int64) + rank
        if not late.randrange(50):
            time.sleep(late.random() * 3e-3)
        collectives.all_reduce(tensor, algorithm=algorithm)
        right &= torch.equal(tensor, torch.arange(n, dtype=torch.int64) * p + p * (p - 1) // 2)
    return right


def fails(rank: int, p: int, how: str, hosts: str = "1") -> str:
    """Rank 1 is killed or stopped while the others wait for it: what these report.

    On several hosts, which are addresses of this one, ranks of each share memory of their own.
    """
    each, algorithm = p // int(hosts), "ring" if hosts == "1" else "hierarchical_ring"
    mesh.own_address = lambda: f"127.0.0.{1 + rank // each}"
    group = dist.new_group(timeout=timedelta(seconds=SECONDS))
    assert group is not None
    tensor = torch.ones(300_000)
    collectives.all_reduce(tensor, group=group, algorithm=algorithm)
    assert communicator(group).transport().ranks_per_host == each
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), getattr(signal, how))
    try:
        collectives.all_reduce(tensor, group=group, algorithm=algorithm)
    except RuntimeError as error:
        return str(error)
    return "nothing"


def late(rank: int, p: int) -> str:
    """Rank 1 calls when the others have given up: they have sent it all that it needs."""
    del p
    group = dist.new_group(timeout=timedelta(seconds=0.5))
    tensor, said = torch.full((3,), rank + 1.0), "it returned"
    collectives.all_reduce(tensor, group=group, algorithm="one_shot")
    if rank == 1:
        dist.barrier()
    try:
        collectives.all_reduce(tensor, group=group, algorithm="one_shot")
    except RuntimeError as error:
        said = str(error)
    if rank != 1:
        dist.barrier()
    return said


def forked(rank: int, p: int) -> str:
    """Rank 1 forks a process, which calls on its groups; the ranks go on."""
    group = dist.new_group(timeout=timedelta(seconds=SECONDS))
    x, y, z = (torch.full((3,), rank + 1.0) for _ in range(3))
    collectives.all_reduce(x, group=group)
    collectives.all_reduce(y, group=group, async_op=True).wait()  # type: ignore[union-attr]
    said = ""
    if rank == 1:
        early = collectives.all_reduce(z, group=group, async_op=True)
        assert early
        said = in_a_child(
            group,
            [
                lambda: collectives.all_reduce(y, group=group),
                lambda: later(y, group).wait(),
                early.wait,
            ],
        )
    dist.barrier()
    later(z, group).wait() if rank != 1 else early.wait()
    collectives.all_reduce(x, group=group)
    total = p * (p + 1) / 2
    assert (x.tolist(), z.tolist()) == ([p * total] * 3, [total] * 3), (x, z)
    return said


def later(tensor: torch.Tensor, group: Any) -> Any:
    return collectives.all_reduce(tensor, group=group, async_op=True)


def in_a_child(group: Any, calls: list[Callable[[], object]]) -> str:
    """What calls raise in a process that is forked; it is killed if one hangs."""
    reader, writer = os.pipe()
    if not os.fork():
        signal.alarm(20)
        for call in calls:
            try:
                call()
                os.write(writer, b"it returned ")
            except RuntimeError as error:
                os.write(writer, " ".join(str(error).split()[:6]).encode() + b", ")
        communicator(group).close()  # as when it frees the group
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        return pipe.read()


def leaves(rank: int, p: int) -> str:
    """Whether groups that were used and destroyed leave descriptors, mappings or files."""
    before = left()
    for _ in range(3):
        group = dist.new_group()
        collectives.all_reduce(torch.ones(300_000), group=group, algorithm="one_shot")
        assert left() != before
        dist.barrier()
        dist.destroy_process_group(group)
        del group
    gc.collect()
    return "nothing" if left() == before else f"{before} {left()}"


def refused(rank: int, p: int) -> str:
    """What carries a call, and the warning, where the system has no room for shared memory."""
    del p

    def refuse(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    os.memfd_create = refuse
    tensor = torch.full((1000,), rank + 1.0)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        call = Call("all_reduce", tensor, tensor, dist.ReduceOp.SUM, algorithm="ring")
        over = backend("p2p").perform(call).transport
    assert tensor.tolist() == [3.0] * 1000
    return ", ".join([str(over), *(str(each.message) for each in said)])


def left() -> tuple[int, int, list[str]]:
    """Descriptors and mappings of shared memory, and the names of its files and sockets."""
    opened = [str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    maps = Path("/proc/self/maps").read_text().count("memfd:collectives")
    names = [
        each.split()[-1]
        for each in Path("/proc/net/unix").read_text().splitlines()
        if "@collectives" in each
    ]
    segments = sorted(path.name for path in Path("/dev/shm").iterdir())
    return sum("memfd:collectives" in each for each in opened), maps, [*segments, *names]


CASES = {"fails": fails, "forked": forked, "late": late, "leaves": leaves, "refused": refused}


def main(do: str, p: int, *rest: str) -> None:
    """Run p ranks as forks of this process; each prints what it has seen."""
    store = os.path.join(tempfile.mkdtemp(), "store")  # noqa: PTH118

    def one(rank: int) -> None:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=p)
        said = CASES[do](rank, p, *rest)
        sys.stdout.write(f"rank {rank}: {said}\n")
        sys.stdout.flush()
        os._exit(0)

    ranks = [
        multiprocessing.get_context("fork").Process(target=one, args=(rank,)) for rank in range(p)
    ]
    for each in ranks:
        each.start()
    for nth in [0, *range(2, p), 1]:
        if nth == 1 and rest:
            ranks[1].kill()
        ranks[nth].join()
    shutil.rmtree(Path(store).parent)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])

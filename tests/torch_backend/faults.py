"""Ranks that die, fall silent or call differently, for test_faults.py: what every other rank sees, and after how long.

    python tests/torch_backend/faults.py killed-sync          # prints a JSON object

It imports torch once and forks the ranks of each fault. A rank tells in a pipe what its call
raised, or that it returned.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

RANKS = 4
ODD = 1  # the rank that does something else

# Seconds: the group's timeout, and when ranks that have not ended are killed.
TIMEOUT = 4.0
PATIENCE = 150.0


def main(names: list[str]) -> None:
    import torch
    import torch._dynamo  # which DistributedDataParallel imports, one rank sooner than the other

    import collectives.torch_backend  # noqa: F401  # makes the name known

    torch.set_num_threads(1)
    for name in names:
        print(json.dumps({"fault": name, "ranks": forked(name)}), flush=True)


def forked(name: str) -> list[dict[str, Any]]:
    """Run a fault on ranks of its own; an empty object for a rank that told nothing."""
    with tempfile.TemporaryDirectory() as folder:
        pipes, children = [], []
        for rank in range(RANKS):
            reader, writer = os.pipe()
            child = os.fork()
            if not child:
                one_rank(name, rank, folder, writer)
            os.close(writer)
            pipes.append(reader)
            children.append(child)
        try:
            return told(pipes)
        finally:
            for child in children:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)


def told(pipes: list[int]) -> list[dict[str, Any]]:
    """What comes out of each pipe, until all but one have ended and that one is overdue."""
    said = dict.fromkeys(pipes, b"")
    open_ones, until = set(pipes), time.monotonic() + PATIENCE
    while open_ones and time.monotonic() < until:
        if open_ones == {pipes[ODD]}:
            until = min(until, time.monotonic() + TIMEOUT)
        for pipe in select.select(list(open_ones), [], [], 0.5)[0]:
            piece = os.read(pipe, 1 << 16)
            said[pipe] += piece
            if not piece or said[pipe].endswith(b"\n"):
                open_ones.discard(pipe)
    for pipe in pipes:
        os.close(pipe)
    return [json.loads(text) if text.endswith(b"\n") else {} for text in said.values()]


def one_rank(name: str, rank: int, folder: str, pipe: int) -> None:
    """Tell what happened, and stay: connections that close would tell the others something, too."""
    from torch import distributed as dist

    from collectives.processes import die_with

    die_with(os.getppid())
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "COLLECTIVES_ALGORITHM": "ring"}
    fault, _, how = name.rpartition("-")
    began = time.monotonic()
    seen: dict[str, Any] = {"raised": "", "said": "it returned"}
    try:
        if fault == "nothing":
            seen["left"] = [left(rank, f"{folder}/met{i}") for i in range(4)]
        else:
            join("gloo", rank, f"{folder}/met")
            group = dist.new_group(backend="collectives", timeout=timedelta(seconds=TIMEOUT))
            FAULTS[fault](rank, WAYS[how], group)
    except Exception as error:
        seen = {"raised": type(error).__name__, "said": str(error)}
    seen["seconds"] = time.monotonic() - began
    os.write(pipe, json.dumps(seen).encode() + b"\n")
    time.sleep(2 * PATIENCE)
    os._exit(0)


def join(backend: str, rank: int, file: str) -> None:
    from torch import distributed as dist

    store = dist.FileStore(file, RANKS)
    limit = timedelta(seconds=PATIENCE)
    dist.init_process_group(backend, store=store, rank=rank, world_size=RANKS, timeout=limit)
    dist.barrier()


def left(rank: int, file: str) -> dict[str, Any]:
    """Make groups, use and destroy them; what is there afterwards?"""
    join("collectives", rank, file)
    use(rank)
    gc.collect()
    files = [os.readlink(file) for file in Path("/proc/self/fd").iterdir() if file.is_symlink()]  # noqa: PTH115
    return {
        "files": len(files),
        "sockets": sum(file.startswith("socket:") for file in files),
        "names": sorted(thread.name for thread in threading.enumerate()),
        "threads": len(list(Path("/proc/self/task").iterdir())),
    }


def use(rank: int) -> None:
    """Groups in every way, and a call that fails."""
    import torch
    from torch import distributed as dist

    for way in WAYS.values():
        way(torch.ones(N), dist.ReduceOp.SUM, dist.group.WORLD)()
    some, wrong = dist.new_group([0, 2, 3]), dist.new_group()
    if rank != ODD:
        dist.all_reduce(torch.ones(N), group=some)
    with suppress(RuntimeError):
        dist.all_reduce(torch.ones(N + (rank == ODD)), group=wrong)
    dist.barrier()
    dist.destroy_process_group()


# What a way makes of a tensor, an op and a group: something to do again and again.
Call = Callable[[], None]
Way = Callable[[Any, Any, Any], Call]


def sync(tensor: Any, op: Any, group: Any) -> Call:
    from torch import distributed as dist

    return lambda: dist.all_reduce(tensor, op, group)


def in_background(tensor: Any, op: Any, group: Any) -> Call:
    from torch import distributed as dist

    def call() -> None:
        for work in [dist.all_reduce(tensor, op, group, async_op=True) for _ in range(2)]:
            work.wait()

    return call


def under_ddp(tensor: Any, op: Any, group: Any) -> Call:
    """Backward passes in two buckets; one for more elements, a hook for another dtype or op."""
    import torch
    from torch import distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(3)])
    cap = 0.02 if tensor.numel() == N else 1
    replica = torch.nn.parallel.DistributedDataParallel(
        model, process_group=group, bucket_cap_mb=cap, find_unused_parameters=True
    )  # otherwise it takes one bucket first, and then those of rank 0
    if tensor.dtype != torch.float32:
        replica.register_comm_hook(group, default_hooks.fp16_compress_hook)
    if op != dist.ReduceOp.SUM:
        replica.register_comm_hook(group, lambda group, bucket: largest(group, bucket))
    return lambda: replica(torch.ones(2, 64)).sum().backward()


def largest(group: Any, bucket: Any) -> Any:
    """A hook that takes the largest gradient."""
    from torch import distributed as dist

    work = dist.all_reduce(bucket.buffer(), dist.ReduceOp.MAX, group, async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


N = 1000
WAYS: dict[str, Way] = {"sync": sync, "async": in_background, "ddp": under_ddp}
Fault = Callable[[int, Way, Any], None]


def ends(how: signal.Signals) -> Fault:
    def fault(rank: int, way: Way, group: Any) -> None:
        import torch
        from torch import distributed as dist

        call = way(torch.ones(N), dist.ReduceOp.SUM, group)
        call()  # all is well
        if rank == ODD:
            os.kill(os.getpid(), how)
        call()

    return fault


def differs(what: str) -> Fault:
    def fault(rank: int, way: Way, group: Any) -> None:
        import torch
        from torch import distributed as dist

        odd = what if rank == ODD else ""
        dtype = torch.float16 if odd == "dtype" else torch.float32
        op = dist.ReduceOp.MAX if odd == "op" else dist.ReduceOp.SUM
        call = way(torch.ones(N + (odd == "shape"), dtype=dtype), op, group)
        if odd == "order":
            dist.all_gather([torch.ones(3) for _ in range(RANKS)], torch.ones(3), group)
        call()

    return fault


FAULTS = {"killed": ends(signal.SIGKILL), "silent": ends(signal.SIGSTOP)} | {
    what: differs(what) for what in ("shape", "dtype", "op", "order")
}
NAMES = tuple(f"{fault}-{way}" for fault in FAULTS for way in WAYS)

if __name__ == "__main__":
    main(sys.argv[1:] or list(NAMES))

"""Ranks that die, fall silent or call differently, for test_faults.py: what every other rank sees, and after how long.

    python tests/torch_backend/faults.py killed-sync          # prints a JSON object

It imports torch once and forks the ranks of each fault. A rank tells in a pipe what its call raised, or that it returned.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

RANKS = 4
ODD = 1  # the rank that does something else

# Seconds: the group's timeout, and when ranks that have not ended are killed.
TIMEOUT = 4.0
PATIENCE = 25.0


def main(names: list[str]) -> None:
    import torch

    import collectives.torch_backend

    assert collectives.torch_backend
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
    """What comes out of each pipe until it ends, or patience does."""
    said = dict.fromkeys(pipes, b"")
    open_ones, until = set(pipes), time.monotonic() + PATIENCE
    while open_ones and time.monotonic() < until:
        for pipe in select.select(list(open_ones), [], [], 0.5)[0]:
            piece = os.read(pipe, 1 << 16)
            said[pipe] += piece
            if not piece or said[pipe].endswith(b"\n"):
                open_ones.discard(pipe)
        if all(text.endswith(b"\n") for pipe, text in said.items() if pipe != pipes[ODD]):
            break
    for pipe in pipes:
        os.close(pipe)
    return [json.loads(text) if text.endswith(b"\n") else {} for text in said.values()]


def one_rank(name: str, rank: int, folder: str, pipe: int) -> None:
    from torch import distributed as dist

    from collectives.processes.parent_death import die_with

    die_with(os.getppid())
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "COLLECTIVES_ALGORITHM": "ring"}
    store = dist.FileStore(f"{folder}/met", RANKS)
    dist.init_process_group(
        "collectives", store=store, rank=rank, world_size=RANKS, timeout=timedelta(seconds=TIMEOUT)
    )
    fault, _, how = name.rpartition("-")
    began = time.monotonic()
    try:
        FAULTS[fault](rank, WAYS[how])
        seen = {"raised": "", "said": "it returned"}
    except Exception as error:
        seen = {"raised": type(error).__name__, "said": str(error)}
    seen["seconds"] = time.monotonic() - began  # type: ignore[assignment]
    os.write(pipe, json.dumps(seen).encode() + b"\n")
    time.sleep(PATIENCE)  # connections that close would tell the others


Call = Callable[[Any, Any], None]


def sync(tensor: Any, op: Any) -> None:
    """Two all-reduces: the second finds the connections there."""
    from torch import distributed as dist

    dist.all_reduce(tensor, op)
    dist.all_reduce(tensor, op)


def in_background(tensor: Any, op: Any) -> None:
    from torch import distributed as dist

    for work in [dist.all_reduce(tensor, op, async_op=True) for _ in range(2)]:
        work.wait()


def under_ddp(tensor: Any, op: Any) -> None:
    """Backward passes of a model whose gradients are as many as the tensor's elements, in three buckets."""
    import torch
    from torch import distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(3)])
    replica = torch.nn.parallel.DistributedDataParallel(
        model, bucket_cap_mb=CAP if tensor.numel() == N else CAP * 3, find_unused_parameters=True
    )  # otherwise it takes one bucket first, and then rank 0's
    if tensor.dtype != torch.float32:
        replica.register_comm_hook(None, default_hooks.fp16_compress_hook)
    if op != dist.ReduceOp.SUM:
        replica.register_comm_hook(None, largest)
    for _ in range(3):
        replica(torch.ones(2, 64)).sum().backward()


def largest(_: Any, bucket: Any) -> Any:
    """A hook that takes the largest gradient."""
    from torch import distributed as dist

    work = dist.all_reduce(bucket.buffer(), dist.ReduceOp.MAX, async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


N, CAP = 1000, 0.02
WAYS = {"sync": sync, "async": in_background, "ddp": under_ddp}


def ends(how: signal.Signals) -> Callable[[int, Call], None]:
    def fault(rank: int, call: Call) -> None:
        import torch
        from torch import distributed as dist

        call(torch.ones(N), dist.ReduceOp.SUM)  # all is well
        if rank == ODD:
            os.kill(os.getpid(), how)
        call(torch.ones(N), dist.ReduceOp.SUM)

    return fault


def differs(what: str) -> Callable[[int, Call], None]:
    def fault(rank: int, call: Call) -> None:
        import torch
        from torch import distributed as dist

        odd = what if rank == ODD else ""
        if odd == "order":
            dist.all_gather([torch.ones(3) for _ in range(RANKS)], torch.ones(3))
        dtype = torch.float16 if odd == "dtype" else torch.float32
        call(torch.ones(N + (odd == "shape"), dtype=dtype), dist.ReduceOp.MAX if odd == "op" else dist.ReduceOp.SUM)

    return fault


FAULTS = {"killed": ends(signal.SIGKILL), "silent": ends(signal.SIGSTOP)} | {
    what: differs(what) for what in ("shape", "dtype", "op", "order")
}
NAMES = tuple(f"{fault}-{way}" for fault in FAULTS for way in WAYS)

if __name__ == "__main__":
    main(sys.argv[1:] or list(NAMES))

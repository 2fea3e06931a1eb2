"""Run on each rank: all-reduces by torch.distributed, and steps of DistributedDataParallel in buckets.

On two GPUs or more each rank has one, and the back end is NCCL. Otherwise two ranks compute on the
processor with gloo.
"""

import json
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric
import torch.multiprocessing
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import profile

GPUS = torch.cuda.device_count()
ON_GPUS = GPUS >= 2
RANKS = min(GPUS, 8) if ON_GPUS else 2
DEVICE = "cuda" if ON_GPUS else "cpu"
TRACES = 5
LAYERS, WIDTH, ROWS = (64, 1024, 4096) if ON_GPUS else (6, 512, 64)


def wait():
    """Wait until the GPU has done all work, because calls return before that."""
    if ON_GPUS:
        torch.cuda.synchronize()


def timed(call):
    """Call a function on all ranks at the same time, and return the seconds of the slowest rank, on each rank."""
    # solution: a barrier, wait, the clock, the call, wait, the clock; then the maximum over all
    # ranks
    dist.barrier()
    wait()
    start = time.perf_counter()
    call()
    wait()
    seconds = torch.tensor(time.perf_counter() - start, dtype=torch.float64, device=DEVICE)
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    return seconds.item()
    # end


def in_buckets(model, megabytes):
    """Return the model, wrapped so that gradients are averaged over all ranks in buckets of this size."""
    # solution: DistributedDataParallel
    return DistributedDataParallel(model, bucket_cap_mb=megabytes)
    # end


def one_shot(sizes, samples):
    """Return rows of the one-shot all-reduce, by torch's symmetric memory, and of NCCL's: GPUs only."""
    return [_one_shot(nbytes, samples) for nbytes in sizes]


def _one_shot(nbytes, samples):
    group = dist.group.WORLD.group_name
    ones = symmetric.empty(
        nbytes // 4, dtype=torch.float32, device=torch.device("cuda", dist.get_rank())
    ).fill_(1)
    symmetric.rendezvous(ones, group)
    dist.barrier()
    result, zeros = (
        torch.ops.symm_mem.one_shot_all_reduce(ones, "sum", group),
        torch.zeros_like(ones),
    )
    if not (result == RANKS).all():
        raise ValueError(
            f"one_shot_all_reduce, {nbytes} bytes: got {result.unique()}, expected {RANKS}"
        )
    return {
        "bytes": nbytes,
        "one_shot": _samples(
            lambda: torch.ops.symm_mem.one_shot_all_reduce(ones, "sum", group), samples
        ),
        "ring": _samples(lambda: dist.all_reduce(zeros), samples),
    }


def buckets(caps, samples):
    """Return for each size of buckets the seconds of steps, and traces of some more steps on this rank."""
    return [_in_one_size(cap, samples) for cap in caps]


def _in_one_size(cap, samples):
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]).to(DEVICE)
    model = in_buckets(model, cap)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    rows = torch.randn(ROWS, WIDTH, device=DEVICE)

    def step():
        optimizer.zero_grad()
        model(rows).square().mean().backward()
        optimizer.step()

    return {
        "bucket_cap_mb": cap,
        "steps": _samples(step, samples),
        "traces": [_traced(step) for _ in range(TRACES)],
    }


def _traced(call):
    """Return the events of a call's trace on this rank."""
    dist.barrier()
    with profile() as profiler:
        call()
        wait()
    with tempfile.TemporaryDirectory() as folder:
        profiler.export_chrome_trace(f"{folder}/trace.json")
        return json.loads(Path(folder, "trace.json").read_text(encoding="utf8"))["traceEvents"]


def _samples(call, samples):
    """Return the seconds of calls, after three that do not count."""
    return [timed(call) for _ in range(3 + samples)][3:]


def start(function, *arguments):
    """Start all ranks, call the function of this file that has this name on each, and return what rank 0 returned."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_rank, (folder, function, arguments), nprocs=RANKS)
        return json.loads(Path(folder, "result.json").read_text(encoding="utf8"))


def _rank(rank, folder, function, arguments):
    torch.set_num_threads(1)
    if ON_GPUS:
        torch.cuda.set_device(rank)
    backend = "nccl" if ON_GPUS else "gloo"
    dist.init_process_group(
        backend, init_method=f"file://{folder}/meet", rank=rank, world_size=RANKS
    )
    result = globals()[function](*arguments)
    if rank == 0:
        Path(folder, "result.json").write_text(json.dumps(result), encoding="utf8")
    dist.barrier()
    dist.destroy_process_group()

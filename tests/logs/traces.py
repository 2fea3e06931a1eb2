"""Traces of torch.profiler as tests need them: events of a GPU or CPU rank, with times in microseconds."""

import gzip
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

Event = dict[str, Any]

RING = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def event(cat: str, name: str, start: float, duration: float, **args: Any) -> Event:
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": 0,
        "tid": 7,
        "ts": start,
        "dur": duration,
        "args": args,
    }


def all_reduce(
    start: float, duration: float, elements: int = 1 << 20, size: int = 4, name: str = RING
) -> Event:
    told = {
        "In msg nelems": elements,
        "Out msg nelems": elements,
        "Group size": size,
        "dtype": "Float",
    }
    group = {
        "Process Group Name": "0",
        "Process Group Ranks": str([*range(min(size, 99))]),
        "stream": 20,
    }
    return event(
        "kernel", name, start, duration, **{"Collective name": "allreduce"}, **told, **group
    )


def gemm(start: float, duration: float) -> Event:
    return event("kernel", "ampere_sgemm_128x64_tn", start, duration, stream=7)


def step(number: int, start: float, duration: float) -> Event:
    return event("user_annotation", f"ProfilerStep#{number}", start, duration)


def text(
    events: Iterable[Event], rank: int = 0, world: int = 4, backend: str = "nccl", **more: Any
) -> str:
    """As the profiler writes it: the job first, then the events, indented."""
    job = {"backend": backend, "rank": rank, "world_size": world, "pg_count": 1, **more}
    return json.dumps(
        {"schemaVersion": 1, "distributedInfo": job, "traceEvents": [*events], "traceName": "x"},
        indent=2,
    )


def write(folder: Path, texts: Iterable[str], is_gzip: bool = False) -> list[Path]:
    """A file for each rank."""
    paths = []
    for number, each in enumerate(texts):
        path = folder / f"trace-{number}.json{'.gz' if is_gzip else ''}"
        path.write_bytes(gzip.compress(each.encode()) if is_gzip else each.encode())
        paths.append(path)
    return paths


def training(durations: Iterable[float], steps: int = 1) -> Iterator[Event]:
    """Calls of these durations, one each millisecond, of which compute kernels hide the first half."""
    number, given = 0, list(durations)
    for number, duration in enumerate(given):
        start = 1000.0 * number
        yield gemm(start, duration / 2)
        yield all_reduce(start, duration, elements=(number + 1) << 18)
    length = 1000.0 * len(given) / steps
    for number in range(steps):
        yield step(number, number * length, length)

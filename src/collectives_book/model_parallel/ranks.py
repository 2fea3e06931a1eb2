"""What every rank does for the experiment ``model-parallel``: steps divided in three ways, timed, counted, checked.

`run` reports rows. A row of ``part`` "step" is a training step, data parallel or tensor parallel, of one width and
batch; "pipeline" is a step of a pipeline with a number of micro-batches, and "action" one pass of one stage in it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from itertools import chain, product

import torch
from torch import distributed as dist

from collectives.backends import backend, named
from collectives.bench.settings import Row
from collectives.bench.statistics import interval_us, median_interval, microseconds
from collectives.bench.task import report_rows, sent_bytes
from collectives_book.model_parallel import volume
from collectives_book.model_parallel.pipeline_rows import pipelines
from collectives_book.model_parallel.split_steps import (
    MeteredAllReduce,
    Tensors,
    data_step,
    difference,
    forget,
    model,
    samples,
    tensor_step,
)
from collectives_book.model_parallel.tensor_parallel import Block, shard

WARMUPS = 1


def run(settings: Row, report: Callable[[Row], None]) -> None:
    """Measure the widths and batches under "steps" and the "pipelines"; rank 0 reports the environment and rows."""
    device = backend(named(settings["backend"])[0]).device()
    steps = (_steps(settings, width, batch, device) for width, batch in settings["steps"])
    launched = {"where": settings["where"], "backends": [settings["backend"]], "set": settings["set"]}
    report_rows(launched, report, chain(steps, pipelines(settings, device)))


def _steps(settings: Row, width: int, batch: int, device: torch.device) -> list[Row]:
    """A row for each algorithm and each way to divide; all take turns, so that a disturbance meets all."""
    p, rank, blocks = dist.get_world_size(), dist.get_rank(), settings["blocks"]
    whole, (x, target) = model(width, blocks, device), samples(width, batch, device)
    parts = [shard(each, rank, p) for each in whole]
    expected = _expected(x, target, whole, rank, p)
    ways: dict[str, Callable[[MeteredAllReduce], list[Tensors]]] = {
        "data": lambda meter: data_step(x, target, whole, meter),
        "tensor": lambda meter: tensor_step(x, target, parts, meter),
    }
    name, library = named(settings["backend"])
    algorithms = settings["algorithms"] if backend(name).takes_schedules else [library]
    seen: dict[tuple[str, str], list[Row]] = {each: [] for each in product(algorithms, ways)}
    for turn in range(WARMUPS + settings["repetitions"]):
        for algorithm, way in seen:
            forget(parts)
            once = _once(settings["where"], MeteredAllReduce(name, algorithm), ways[way], expected[way])
            if turn >= WARMUPS:
                seen[algorithm, way].append(once)
    same = {"part": "step", "backend": name, "where": settings["where"], "ranks": p, "blocks": blocks}
    return [same | {"way": way, "width": width, "batch": batch} | _summary(rows) for (_, way), rows in seen.items()]


def _expected(
    x: torch.Tensor, target: torch.Tensor, whole: Sequence[Block], rank: int, p: int
) -> dict[str, list[Tensors]]:
    """What one process computes alone: all gradients of the weights, and those of this rank's parts."""
    alone = [shard(each, 0, 1) for each in whole]
    *gradients, last = tensor_step(x, target, alone, lambda _: None)
    parts = [[weight.detach() for weight in shard(Block(*block), rank, p)] for block in gradients]
    return {"data": gradients, "tensor": [*parts, last]}


def _once(
    where: str, meter: MeteredAllReduce, act: Callable[[MeteredAllReduce], list[Tensors]], expected: list[Tensors]
) -> Row:
    """One step of all ranks: the seconds of the slowest, how long it spent in all-reduces, and what was sent."""
    p = dist.get_world_size()
    dist.barrier()
    before, began = _sent_by_host(where), _now()
    gradients = act(meter)
    seconds, on_wire = _now() - began, _sent_by_host(where) - before
    slowest = torch.tensor([seconds, meter.seconds, difference(gradients, expected)], dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    wire = torch.tensor([on_wire], dtype=torch.float64)
    dist.all_reduce(wire)
    sent = meter.elements_sent(p)
    step, communicating, off = slowest.tolist()
    return {
        "algorithm": meter.calls[0][0].algorithm,
        "seconds": step,
        "communicating": communicating,
        "difference": off,
        "calls": len(meter.calls),
        "sent": None if sent is None else sent * volume.ELEMENT,
        "wire": wire.item() / p or None,
    }


def _summary(rows: Sequence[Row]) -> Row:
    """A row out of the steps of one kind: medians with their intervals, and the worst difference."""
    algorithm, calls, sent = (rows[-1][name] for name in ("algorithm", "calls", "sent"))
    seconds = [row["seconds"] for row in rows]
    wire = [row["wire"] for row in rows if row["wire"] is not None]
    return {
        "algorithm": algorithm,
        "samples": microseconds(seconds),
        **interval_us(seconds),
        "communicating_us": microseconds([row["communicating"] for row in rows]),
        "difference": max(row["difference"] for row in rows),
        "calls": calls,
        "sent": sent,
        "wire": median_interval(wire)[1] if wire else None,
    }


def _now() -> float:
    """A clock that the processes of a machine share; a GPU has done by then what it was asked for."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
    return time.monotonic()


def _sent_by_host(where: str) -> int:
    """Bytes that this emulated host has sent, headers included, as its kernel counts them; 0 elsewhere.

    A host's first rank speaks for all of its ranks. On other machines not all that is sent is our ranks'.
    """
    return sent_bytes() if where.startswith("cluster") and os.environ["LOCAL_RANK"] == "0" else 0

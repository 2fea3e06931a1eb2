"""Rows of a pipeline's steps: timed, checked against one process, their bubble measured, their messages counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import distributed as dist

from collectives.bench.settings import Row
from collectives.bench.statistics import interval_us, microseconds
from collectives.bench.task import gathered
from collectives.schedule import cut
from collectives_book.model_parallel import pipeline
from collectives_book.model_parallel.pipeline import BACKWARD, FORWARD, SCHEDULES, Action, bubble, kept
from collectives_book.model_parallel.split_steps import (
    Tensors,
    difference,
    gradients,
    loss,
    model,
    samples,
    tensor_step,
    through,
)
from collectives_book.model_parallel.tensor_parallel import Block, shard

# Launchers whose ranks are on one machine and read the same clock. Elsewhere each begins to count after a barrier.
ONE_CLOCK = ("loopback", "cluster")
# A backward pass has two products, for the gradients of inputs and of weights, where the forward pass has one.
BACKWARD_TIMES = 2


class _Job(NamedTuple):
    """The model, a block for each stage, the samples, and the gradients that one process computes."""

    blocks: list[Block]
    x: torch.Tensor
    target: torch.Tensor
    expected: list[Tensors]


class _Step(NamedTuple):
    """One step of all stages: when each stage computed what, and its seconds from first to last."""

    stages: list[list[tuple[str, int, float, float]]]
    sent: float
    off: float

    def ends(self) -> tuple[float, float]:
        spans = [span for stage in self.stages for span in stage]
        return min(start for _, _, start, _ in spans), max(end for *_, end in spans)

    def seconds(self) -> float:
        first, last = self.ends()
        return last - first

    def idle(self) -> float:
        """The share of all stages' time in which they computed nothing."""
        busy = sum(end - start for stage in self.stages for _, _, start, end in stage)
        return 1 - busy / (len(self.stages) * self.seconds())


def pipelines(settings: Row, device: torch.device) -> Iterator[list[Row]]:
    """Rows of each schedule and number of micro-batches under "pipelines"; ranks beyond the last stage do nothing."""
    stages, width, batch = settings["stages"], settings["stage_width"], settings["stage_batch"]
    line, blocks, (x, target) = _line(stages, device), model(width, stages, device), samples(width, batch, device)
    alone = [shard(each, 0, 1) for each in blocks]
    job = _Job(blocks, x, target, tensor_step(x, target, alone, lambda _: None))
    same = {"backend": settings["backend"], "where": settings["where"], "ranks": dist.get_world_size()}
    same |= {"stages": stages, "width": width, "batch": batch, "waiting_us": settings["forward"] * 1e6}
    for schedule, count in settings["pipelines"]:
        steps = [_once(settings, job, line, schedule, count) for _ in range(1 + settings["repetitions"])][1:]
        which = {"schedule": schedule, "micro_batches": count}
        whole = same | which | {"part": "pipeline", "way": "pipeline"} | _summary(steps, schedule, stages, count)
        middle = sorted(steps, key=_Step.seconds)[len(steps) // 2]
        yield [whole, *(which | row for row in _actions(middle))]


def _summary(steps: Sequence[_Step], schedule: str, stages: int, count: int) -> Row:
    orders = [SCHEDULES[schedule](stage, stages, count) for stage in range(stages)]
    seconds = [step.seconds() for step in steps]
    return {"samples": microseconds(seconds), **interval_us(seconds)} | {
        "bubble": [step.idle() for step in steps],
        "formula": bubble(stages, count),
        "kept": max(map(kept, orders)),
        "sent": steps[-1].sent,
        "difference": max(step.off for step in steps),
    }


def _actions(step: _Step) -> Iterator[Row]:
    """A row for each pass of each stage, with its times from the step's beginning."""
    first, _ = step.ends()
    for stage, spans in enumerate(step.stages):
        for kind, i, start, end in spans:
            at = {"start_us": round((start - first) * 1e6, 3), "end_us": round((end - first) * 1e6, 3)}
            yield {"part": "action", "stage": stage, "action": kind, "micro_batch": i} | at


def _once(settings: Row, job: _Job, line: pipeline.Line | None, schedule: str, count: int) -> _Step:
    """One step on fresh copies of the weights."""
    edges = cut(len(job.x), count)
    sizes = [int(last - first) for first, last in pairwise(edges)]
    dist.barrier()
    told: Row = {"spans": [], "sent": 0, "off": 0.0}
    if line is not None:
        told = _own(settings, job, line, SCHEDULES[schedule](line.stage, line.stages, count), sizes)
    everything = gathered(told)[: settings["stages"]]
    sent, off = sum(each["sent"] for each in everything), max(each["off"] for each in everything)
    return _Step([each["spans"] for each in everything], sent / len(everything), off)


def _own(settings: Row, job: _Job, line: pipeline.Line, order: Sequence[Action], sizes: list[int]) -> Row:
    """What this stage did: the step itself, its times on a clock that all stages share, and its gradients checked."""
    block, count, width = shard(job.blocks[line.stage], 0, 1), len(sizes), job.x.shape[1]
    pieces, targets = (list(torch.split(each, sizes)) for each in (job.x, job.target))
    forward = settings["forward"] / count
    part = pipeline.Part(
        layers=lambda x: through(x, [block]),
        loss=lambda y, i: loss(y, targets[i], job.target.numel()),
        empty=lambda i: job.x.new_empty(sizes[i], width),
        at_least={FORWARD: forward, BACKWARD: BACKWARD_TIMES * forward},
    )
    done = pipeline.step(part, order, line, pieces)
    zero = 0.0 if settings["where"].partition(":")[0] in ONE_CLOCK else done.began
    spans = [(*span.action, span.start - zero, span.end - zero) for span in done.spans]
    return {"spans": spans, "sent": done.sent, "off": difference([gradients(block)], [job.expected[line.stage]])}


def _line(stages: int, device: torch.device) -> pipeline.Line | None:
    """The place of this rank in the pipeline, connected; None if it is beyond the last stage."""
    rank = dist.get_rank()
    if device.type != "cuda":
        return pipeline.Line(rank, stages) if rank < stages else None
    groups = [dist.new_group(list(range(stages)), backend="nccl") for _ in range(2)]
    if rank >= stages:
        return None
    line = pipeline.Line(rank, stages, *groups)
    pipeline.connect(line, device)
    return line

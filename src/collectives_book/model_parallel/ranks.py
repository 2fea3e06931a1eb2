"""The task of every rank in the experiment ``model-parallel``: steps divided in three ways, timed, counted, checked.

`run` reports rows. A row of ``part`` "step" is a training step, data parallel or tensor parallel,
of one width and batch; "pipeline" is a step of a pipeline with a number of micro-batches, and
"action" one pass of one stage in it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, pairwise, product
from statistics import mean

import torch
from torch import distributed as dist

from collectives.backends import backend, named
from collectives.bench.report import gathered, report_rows, sent_bytes
from collectives.bench.settings import Row
from collectives.core.schedule import cut
from collectives.launch.where import parse_where
from collectives.statistics import interval_us, median_interval, microseconds
from collectives_book.model_parallel import pipeline
from collectives_book.model_parallel.pipeline_schedules import (
    BACKWARD,
    FORWARD,
    SCHEDULES,
    bubble,
    kept,
)
from collectives_book.model_parallel.split_steps import (
    MeteredAllReduce,
    Tensors,
    data_step,
    difference,
    gradients,
    loss,
    model,
    samples,
    tensor_step,
    through,
)
from collectives_book.model_parallel.tensor_parallel import Block, shard
from collectives_book.training.clock import now

WARMUPS = 1
# A backward pass has two products, for the gradients of inputs and of weights, where the forward
# pass has one.
BACKWARD_TIMES = 2


def run(settings: Row, report: Callable[[Row], None]) -> None:
    """Measure the widths and batches under "steps" and the "pipelines".

    Rank 0 reports the environment and rows.
    """
    device = backend(named(settings["backend"])[0]).device()
    steps = (_steps(settings, width, batch, device) for width, batch in settings["steps"])
    launched = {
        "where": settings["where"],
        "backends": [settings["backend"]],
        "set": settings["set"],
    }
    report_rows(launched, report, chain(steps, _pipelines(settings, device)))


def _steps(settings: Row, width: int, batch: int, device: torch.device) -> list[Row]:
    """Return a row for each algorithm and way to divide.

    All take turns, so that a disturbance meets all.
    """
    p = dist.get_world_size()
    rank = dist.get_rank()
    blocks = settings["blocks"]
    whole = model(width, blocks, device)
    x, target = samples(width, batch, device)
    parts = [shard(each, rank, p) for each in whole]
    *alone, of_x = tensor_step(x, target, whole, lambda _: None)
    own = [list(shard(Block(*each), rank, p)) for each in alone]
    ways: dict[str, tuple[Callable[[MeteredAllReduce], list[Tensors]], list[Tensors]]] = {
        "data": (lambda meter: data_step(x, target, whole, meter), alone),
        "tensor": (
            lambda meter: tensor_step(x, target, parts, meter),
            [*own, of_x],
        ),
    }
    name, library = named(settings["backend"])
    algorithms = settings["algorithms"] if backend(name).takes_schedules else [library]
    seen: dict[tuple[str, str], list[Row]] = {each: [] for each in product(algorithms, ways)}
    for turn in range(WARMUPS + settings["repetitions"]):
        for algorithm, way in seen:
            once = _step(settings["where"], MeteredAllReduce(name, algorithm), *ways[way])
            if turn >= WARMUPS:
                seen[algorithm, way].append(once)
    same = {
        "part": "step",
        "backend": name,
        "where": settings["where"],
        "ranks": p,
        "blocks": blocks,
    }
    rows = []
    for (_, way), steps in seen.items():
        which = {"way": way, "width": width, "batch": batch}
        rows.append(same | which | _summary(steps) | _calls(steps))
    return rows


def _step(
    where: str,
    meter: MeteredAllReduce,
    act: Callable[[MeteredAllReduce], list[Tensors]],
    expected: list[Tensors],
) -> Row:
    """Return one step of all ranks: the seconds of the slowest, how long it spent in all-reduces, and what was sent."""
    dist.barrier()
    before = _sent_by_host(where)
    began = now()
    found = act(meter)
    seconds = now() - began
    wire = _sent_by_host(where) - before
    own = {
        "seconds": seconds,
        "communicating": meter.seconds,
        "difference": difference(found, expected),
        "wire": wire,
    }
    ranks = gathered(own)
    performed, _ = meter.calls[0]
    return {
        "seconds": max(rank["seconds"] for rank in ranks),
        "communicating": max(rank["communicating"] for rank in ranks),
        "difference": max(rank["difference"] for rank in ranks),
        "sent": meter.bytes_sent(len(ranks)),
        "wire": mean(rank["wire"] for rank in ranks) or None,
        "algorithm": performed.algorithm,
        "calls": len(meter.calls),
    }


def _calls(steps: Sequence[Row]) -> Row:
    """Return what the row of a step says of its all-reduces."""
    wire = [step["wire"] for step in steps if step["wire"] is not None]
    return {
        "algorithm": steps[-1]["algorithm"],
        "calls": steps[-1]["calls"],
        "communicating_us": microseconds([step["communicating"] for step in steps]),
        "wire": median_interval(wire)[1] if wire else None,
    }


def _summary(steps: Sequence[Row]) -> Row:
    """Return what the row of a step of any kind has: its times with their interval, and the worst difference."""
    seconds = [step["seconds"] for step in steps]
    checked = {
        "sent": steps[-1]["sent"],
        "difference": max(step["difference"] for step in steps),
    }
    return {"samples": microseconds(seconds)} | interval_us(seconds) | checked


def _sent_by_host(where: str) -> int:
    """Return the bytes that this emulated host has sent, headers included, as its kernel counts them; 0 elsewhere.

    A host's first rank speaks for all of its ranks. On other machines not all that is sent is our
    ranks'.
    """
    is_first_of_host = os.environ["LOCAL_RANK"] == "0"
    if parse_where(where).is_emulated and is_first_of_host:
        return sent_bytes()
    return 0


def _pipelines(settings: Row, device: torch.device) -> Iterator[list[Row]]:
    """Yield the rows of each schedule and number of micro-batches.

    Ranks beyond the last stage do nothing.
    """
    job = _Pipelines(settings, device)
    for schedule, count in settings["pipelines"]:
        yield job.rows(schedule, count)


class _Pipelines:
    """A model with a block for each stage, the samples, this rank's place, and the gradients of one process."""

    def __init__(self, settings: Row, device: torch.device) -> None:
        self.settings = settings
        self.stages = settings["stages"]
        self.line = _line(self.stages, device)
        self.blocks = model(settings["stage_width"], self.stages, device)
        self.x, self.target = samples(settings["stage_width"], settings["stage_batch"], device)
        self.expected = tensor_step(self.x, self.target, self.blocks, lambda _: None)

    def rows(self, schedule: str, count: int) -> list[Row]:
        """Return the row of a pipeline, and those of the passes in the step with the median time."""
        turns = range(WARMUPS + self.settings["repetitions"])
        steps = [self._step(schedule, count) for _ in turns][WARMUPS:]
        orders = [SCHEDULES[schedule](stage, self.stages, count) for stage in range(self.stages)]
        batch, width = self.x.shape
        which = {"schedule": schedule, "micro_batches": count}
        same = {
            "part": "pipeline",
            "way": "pipeline",
            "ranks": dist.get_world_size(),
            "stages": self.stages,
            "backend": self.settings["backend"],
            "where": self.settings["where"],
            "width": width,
            "batch": batch,
        }
        idle: Row = {
            "waiting_us": self.settings["forward"] * 1e6,
            "bubble": [step["idle"] for step in steps],
            "formula": bubble(self.stages, count),
            "kept": max(kept(order) for order in orders),
        }
        rows = [which | same | _summary(steps) | idle]
        by_time = sorted(steps, key=lambda step: step["seconds"])
        middle = by_time[len(steps) // 2]
        rows += [which | action for action in middle["actions"]]
        return rows

    def _step(self, schedule: str, count: int) -> Row:
        """Return one step of all stages, on fresh copies of the weights: when each stage computed what."""
        dist.barrier()
        own = self._stage(self.line, schedule, count) if self.line else {}
        stages = gathered(own)[: self.stages]
        spans = []
        for number, stage in enumerate(stages):
            spans += [(number, *span) for span in stage["spans"]]
        first = min(start for *_, start, _ in spans)
        last = max(end for *_, end in spans)
        computing = sum(end - start for *_, start, end in spans)
        actions = []
        for number, kind, i, start, end in spans:
            start_us, end_us = microseconds([start - first, end - first])
            actions.append(
                {
                    "part": "action",
                    "stage": number,
                    "action": kind,
                    "micro_batch": i,
                    "start_us": start_us,
                    "end_us": end_us,
                }
            )
        return {
            "seconds": last - first,
            "idle": 1 - computing / (self.stages * (last - first)),
            "sent": mean(stage["sent"] for stage in stages),
            "difference": max(stage["difference"] for stage in stages),
            "actions": actions,
        }

    def _stage(self, line: pipeline.Line, schedule: str, count: int) -> Row:
        """Return this stage's passes on a clock that all stages share, the bytes it sent, and its gradients' error."""
        block = shard(self.blocks[line.stage], 0, 1)
        sizes = [int(last - first) for first, last in pairwise(cut(len(self.x), count))]
        targets = torch.split(self.target, sizes)
        forward = self.settings["forward"] / count
        part = pipeline.Part(
            layers=lambda x: through(x, [block]),
            loss=lambda y, i: loss(y, targets[i], self.target.numel()),
            empty=lambda i: self.x.new_empty(sizes[i], self.x.shape[1]),
            at_least={FORWARD: forward, BACKWARD: BACKWARD_TIMES * forward},
        )
        # Ranks of one machine read the same clock. Elsewhere each begins to count after a barrier.
        zero = 0.0 if parse_where(self.settings["where"]).is_one_machine else now()
        done = pipeline.step(
            part,
            SCHEDULES[schedule](line.stage, line.stages, count),
            line,
            torch.split(self.x, sizes),
        )
        spans = [
            (action.kind, action.micro_batch, start - zero, end - zero)
            for action, start, end in done.spans
        ]
        wrong = difference([gradients(block)], [self.expected[line.stage]])
        return {"spans": spans, "sent": done.sent, "difference": wrong}


def _line(stages: int, device: torch.device) -> pipeline.Line | None:
    """Return the place of this rank in the pipeline, connected.

    None if it is beyond the last stage.
    """
    rank = dist.get_rank()
    groups = []
    if device.type == "cuda":
        groups = [dist.new_group(list(range(stages)), backend="nccl") for _ in range(2)]
    if rank >= stages:
        return None
    line = pipeline.Line(rank, stages, *groups)
    if groups:
        pipeline.connect(line, device)
    return line

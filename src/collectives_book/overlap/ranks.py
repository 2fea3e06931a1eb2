"""What every rank does to measure overlap: training steps with and without communication, in turn.

The exposed time of communication is what a step takes beyond the same step whose hook does nothing.
torch's own counters say how long after the last gradient the last all-reduce ended; a row has both.
Every time is a mean over the ranks, because they begin a step at slightly different times and an
all-reduce ends when the last of them is ready.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from itertools import chain
from typing import NamedTuple

import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from collectives.backends import Backend, backend
from collectives.bench.report import gathered, report_rows, sent_bytes
from collectives.bench.settings import Row
from collectives.simulator.overlap import REDUCE, Activity, computing
from collectives.statistics import interval_us, microseconds
from collectives_book.overlap.hooks import NOTHING, Hook, RecordingHook, hook_of
from collectives_book.overlap.layers import Stack
from collectives_book.training.clock import means, now

# DistributedDataParallel's first step may have other buckets: then it makes them anew, in the order
# of the gradients.
WARMUPS = 2

# How much two orders of adding a layer's gradients may differ, relative to the largest of them.
TOLERANCE = 1e-5


def run(settings: Row, report: Callable[[Row], None]) -> None:
    """Measure each number of buckets under "buckets".

    Rank 0 reports the environment and the algorithms' rows.
    """
    library = backend(settings["backend"])
    hooks = {algorithm: hook_of(library, algorithm) for algorithm in settings["algorithms"]}
    cases = (Trial(settings, buckets, hooks, library).rows() for buckets in settings["buckets"])
    report_rows(
        {"where": settings["where"], "backends": [settings["backend"]]},
        report,
        cases,
    )


class TrainingStep(NamedTuple):
    """A training step on this rank: its seconds, bytes sent meanwhile, wrong elements, and what happened when."""

    seconds: float
    sent: int
    wrong: int
    spans: list[Activity]


class Trial:
    """A stack of layers under DistributedDataParallel whose gradients go into ``buckets`` buckets of the same size."""

    def __init__(
        self,
        settings: Row,
        buckets: int,
        hooks: Mapping[str, Hook],
        library: Backend,
    ) -> None:
        self.settings = settings
        self.buckets = buckets
        self.device = library.device()
        torch.manual_seed(0)  # the same weights on every rank
        self.stack = Stack(settings["widths"], settings["seconds"]).to(self.device)
        self.bytes = sum(4 * weight.numel() for weight in self.stack.parameters())
        self.recorded = RecordingHook(hooks)
        self.ddp = _parallel(self.stack, self.bytes / buckets, library, self.recorded.reduce)
        shape = settings["batch"], settings["widths"][0]
        self.batch = torch.rand(shape, generator=torch.Generator().manual_seed(dist.get_rank())).to(
            self.device
        )
        self.expected = self._average()

    def step(self, name: str) -> TrainingStep:
        """One step, forward and backward, whose buckets go to a hook by its name."""
        self.recorded.use(name)
        self.ddp.zero_grad()
        dist.barrier()
        sent_before = sent_bytes()
        begin = now()
        self._compute()
        seconds = now() - begin
        sent = sent_bytes() - sent_before
        wrong = 0 if name == NOTHING else self._wrong()
        return TrainingStep(seconds, sent, wrong, self._spans(begin))

    def _compute(self) -> None:
        self.ddp(self.batch.detach().requires_grad_()).sum().backward()

    def _average(self) -> list[torch.Tensor]:
        """The gradients of each layer, averaged by torch after a step without communication."""
        self.recorded.use(NOTHING)
        self._compute()
        found = self._gradients()
        for gradient in found:
            dist.all_reduce(gradient.div_(dist.get_world_size()))
        return found

    def _gradients(self) -> list[torch.Tensor]:
        """A copy of each layer's gradients; zeros where a layer has none."""
        found = ((weight, weight.grad) for weight in self.stack.parameters())
        return [
            torch.zeros(weight.shape) if grad is None else grad.cpu().clone()
            for weight, grad in found
        ]

    def _wrong(self) -> int:
        """Count the gradients that are not the average."""
        return sum(_different(*pair) for pair in zip(self._gradients(), self.expected, strict=True))

    def _spans(self, begin: float) -> list[Activity]:
        """Return the spans of a step on a CPU, in seconds from its begin.

        A lane's next all-reduce begins when the one before is done.
        """
        if self.device.type != "cpu":
            return []
        rank = dist.get_rank()
        spans = computing(dist.get_rank(), [at - begin for at in self.stack.marks])
        free = 0.0
        for note in self.recorded.buckets:
            done = (note.done or note.ready) - begin
            spans.append(
                Activity(
                    rank,
                    REDUCE,
                    note.nth,
                    max(free, note.ready - begin),
                    done,
                    note.bytes,
                )
            )
            free = done
        return spans

    def _counted(self) -> float:
        """Exposed seconds by torch's counters, of the step *before* the last: a forward pass completes them."""
        data = self.ddp._get_ddp_logging_data()  # type: ignore[no-untyped-call]
        return float(data["backward_comm_time"] - data["backward_compute_comm_overlap_time"]) * 1e-9

    def rows(self) -> list[Row]:
        """Measure all algorithms, interleaved: round after round each once, and each round begins with another."""
        names = [NOTHING, *self.settings["algorithms"]]
        steps: dict[str, list[TrainingStep]] = {name: [] for name in names}
        counted: dict[str, list[float]] = {name: [] for name in names}
        rounds = WARMUPS + self.settings["repetitions"]
        order = []
        for first in range(rounds):
            shift = first % len(names)
            order += names[shift:] + names[:shift]
        for nth, name in enumerate([*order, NOTHING]):
            steps[name].append(self.step(name))
            if nth:
                counted[order[nth - 1]].append(self._counted())
        seconds = {}
        for name in names:
            measured = steps[name][WARMUPS:rounds]
            seconds[name] = means([step.seconds for step in measured])
        rows = []
        for name in self.settings["algorithms"]:
            by_torch = means(counted[name][WARMUPS:])
            rows.append(self._row(name, steps[name], seconds, by_torch))
        return rows

    def _row(
        self,
        name: str,
        steps: list[TrainingStep],
        seconds: Mapping[str, list[float]],
        counted: list[float],
    ) -> Row:
        """Return the row of one algorithm.

        Times are exposed ones in microseconds, unless their name says more.
        """
        pairs = zip(seconds[name], seconds[NOTHING], strict=True)
        exposed = [step - without for step, without in pairs]
        wrong = torch.tensor(sum(step.wrong for step in steps))
        dist.all_reduce(wrong)
        sent = means([float(step.sent) for step in steps[WARMUPS:]])
        spans = chain(*gathered(steps[-1].spans))
        row = {
            "backend": self.settings["backend"],
            "algorithm": name,
            "where": self.settings["where"],
            "ranks": dist.get_world_size(),
            "layers": len(self.stack.layers),
            "buckets": self.buckets,
            "bytes": self.bytes,
            "device": self.device.type,
            "wrong": int(wrong),
            "samples": microseconds(exposed),
        }
        row |= interval_us(exposed)
        row |= interval_us(seconds[name], "step_")
        row |= interval_us(seconds[NOTHING], "nothing_")
        row |= interval_us(counted, "counted_")
        row["sent_bytes"] = statistics.median(sent)
        row["spans"] = [Activity(*span)._asdict() for span in spans]
        return row


def _parallel(
    stack: Stack, bucket_bytes: float, library: Backend, hook: Hook
) -> DistributedDataParallel:
    """The stack as a replica on this rank, with torch's counters updated in every step."""
    group = library.group()
    ddp = DistributedDataParallel(
        stack,
        process_group=group,
        bucket_cap_mb=bucket_bytes / 2**20,
        gradient_as_bucket_view=True,
    )
    ddp._set_ddp_runtime_logging_sample_rate(1)  # type: ignore[no-untyped-call]
    ddp.register_comm_hook(None, hook)
    return ddp


def _different(found: torch.Tensor, right: torch.Tensor) -> int:
    close = torch.isclose(found, right, rtol=0.0, atol=TOLERANCE * float(right.abs().max()))
    return int((~close).sum())

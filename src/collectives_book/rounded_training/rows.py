"""A row for each training: its model, workers, way of summing and seed, and what came of it.

``python -m collectives_book.rounded_training.rows`` trains all of them on one core in about twenty minutes and writes
the committed table again. A run that was cut off goes on where it ended. The same versions of Python, PyTorch and NumPy
on the same kind of processor give the same rows.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from collectives.bench.results import replace
from collectives_book.rounded_training.models import TASKS
from collectives_book.rounded_training.training import WAYS, Way, train

TABLE = (
    Path(__file__).resolve().parents[3] / "experiments" / "results" / "reference" / "rounded-training" / "trainings.csv"
)

WORKERS = (8, 64)
SEEDS = {"perceptron": 10, "transformer": 5}
# Steps whose mean loss is one value of a curve, and the last ones, whose mean is the final loss.
EVERY, LAST = 10, 20


class Trained(NamedTuple):
    """One training: what it was, and its loss in the end, on what was not learned from, and on the way."""

    model: str
    workers: int
    algorithm: str
    dtype: str
    feedback: int  # whether errors are fed back: 1 or 0
    seed: int
    loss: float  # the mean of the last steps
    quality: float  # of the perceptron the share of test images read right, of the transformer the held-out loss
    curve: str  # the mean loss of every ten steps, with spaces between


class Case(NamedTuple):
    """What a row says before its training."""

    model: str
    workers: int
    way: Way
    seed: int


def cases() -> Iterator[Case]:
    """All trainings; those of one seed follow each other, so that a table that is cut off has whole pairs."""
    for model, seeds in SEEDS.items():
        for seed, workers, way in product(range(seeds), WORKERS, WAYS):
            yield Case(model, workers, way, seed)


def trained(case: Case, steps: int | None = None) -> Trained:
    """The row of a training, with as many steps as its task has, or with these."""
    task = TASKS[case.model]
    losses, model = train(task._replace(steps=steps or task.steps), case.seed, case.way, case.workers)
    curve = " ".join(f"{np.mean(losses[at : at + EVERY]):.5f}" for at in range(0, len(losses), EVERY))
    found = round(float(np.mean(losses[-LAST:])), 6), round(task.quality(model), 6)
    return Trained(case.model, case.workers, *_written(case.way), case.seed, *found, curve)


def _written(way: Way) -> tuple[str, str, int]:
    return way.algorithm, way.dtype, int(way.feedback)


def read(path: Path = TABLE) -> list[Trained]:
    """The rows of a table. Raises ValueError where its heading is another, and names the first line that is no row."""
    with path.open(encoding="utf8", newline="") as file:
        heading, *lines = csv.reader(file)
    if tuple(heading) != Trained._fields:
        raise ValueError(f"heading of {path.name}: got {','.join(heading)[:60]}, expected {','.join(Trained._fields)}")
    return [_row(line, f"line {at} of {path.name}") for at, line in enumerate(lines, 2)]


def _row(line: list[str], where: str) -> Trained:
    try:
        model, workers, algorithm, dtype, feedback, seed, loss, quality, curve = line
        numbers = int(workers), algorithm, dtype, int(feedback), int(seed), float(loss), float(quality)
    except ValueError:
        raise ValueError(f"{where}: got {','.join(line)[:60]!r}, expected {','.join(Trained._fields)}") from None
    return Trained(model, *numbers, curve)


def missing(rows: Iterable[Trained]) -> list[Case]:
    """The trainings that have no row yet."""
    there = {row[:6] for row in rows}
    return [case for case in cases() if (case.model, case.workers, *_written(case.way), case.seed) not in there]


def main(to: Path = TABLE) -> None:
    """Train what the unfinished table lacks, a row at a time, then give the table its name."""
    torch.set_num_threads(1)
    unfinished = to.with_name(f"unfinished-{to.name}")
    unfinished.parent.mkdir(parents=True, exist_ok=True)
    if not unfinished.exists():
        _append(unfinished, Trained._fields)
    for case in missing(read(unfinished)):
        row = trained(case)
        _append(unfinished, row)
        print(*row[:8], file=sys.stderr, flush=True)
    whole = unfinished.read_text(encoding="utf8")
    replace(to, lambda partial: partial.write_text(whole, encoding="utf8"))
    unfinished.unlink()


def _append(to: Path, row: Iterable[object]) -> None:
    with to.open("a", encoding="utf8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerow(row)


if __name__ == "__main__":
    main()

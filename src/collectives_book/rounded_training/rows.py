"""A row for each training: model, workers, summation variant, seed, and results.

``python -m collectives_book.rounded_training.rows`` trains all of them on one core in about half an hour and writes
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
from collectives_book.rounded_training.table import TABLE, Trained, read
from collectives_book.rounded_training.training import train
from collectives_book.rounded_training.variants import VARIANTS, Variant

WORKERS = (8, 64)
SEEDS = {"perceptron": 10, "transformer": 5}
# Steps whose mean loss is one value of a curve, and the last ones, whose mean is the final loss.
EVERY, LAST = 10, 20


class Case(NamedTuple):
    """What a row says before its training."""

    model: str
    workers: int
    variant: Variant
    seed: int


def cases() -> Iterator[Case]:
    """All trainings; those of one seed follow each other, so that a table that is cut off has whole pairs."""
    for model, seeds in SEEDS.items():
        for seed, workers, variant in product(range(seeds), WORKERS, VARIANTS):
            yield Case(model, workers, variant, seed)


def trained(case: Case, steps: int | None = None) -> Trained:
    """The row of a training, with as many steps as its task has, or with these."""
    task = TASKS[case.model]
    losses, model = train(task._replace(steps=steps or task.steps), case.seed, case.variant, case.workers)
    curve = " ".join(f"{np.mean(losses[at : at + EVERY]):.5f}" for at in range(0, len(losses), EVERY))
    found = round(float(np.mean(losses[-LAST:])), 6), round(task.quality(model), 6)
    return Trained(case.model, case.workers, *case.variant.columns, case.seed, *found, curve)


def key(case: Case) -> tuple[str, int, str, str, int, int]:
    """The first columns of a training's row, by which it is found."""
    return case.model, case.workers, *case.variant.columns, case.seed


def missing(rows: Iterable[Trained]) -> list[Case]:
    """The trainings that have no row yet."""
    there = {row[:6] for row in rows}
    return [case for case in cases() if key(case) not in there]


def main(to: Path = TABLE) -> None:
    """Train what the unfinished table lacks, a row at a time, then write the whole table in order."""
    torch.set_num_threads(1)
    unfinished = to.with_name(f"unfinished-{to.name}")
    unfinished.parent.mkdir(parents=True, exist_ok=True)
    if not unfinished.exists():
        _write(unfinished, [Trained._fields])
    for case in missing(read(unfinished)):
        row = trained(case)
        _write(unfinished, [row], "a")
        print(*row[:8], file=sys.stderr, flush=True)
    found = {row[:6]: row for row in read(unfinished)}
    replace(to, lambda partial: _write(partial, [Trained._fields, *(found[key(case)] for case in cases())]))
    unfinished.unlink()


def _write(to: Path, rows: Iterable[Iterable[object]], mode: str = "w") -> None:
    with to.open(mode, encoding="utf8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


if __name__ == "__main__":
    main()

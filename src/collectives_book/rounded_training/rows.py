"""A row for each training: model, workers, summation variant, seed, and results.

``python -m collectives_book.rounded_training.rows`` trains all of them on one core in about half an
hour and writes the committed table again. A run that was cut off goes on where it ended. The same
versions of Python, PyTorch and NumPy on the same kind of processor give the same rows.
"""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from collectives_book.rounded_training.comparison import (
    COLUMNS,
    KEY,
    TABLE,
    VARIANTS,
    Variant,
    read,
)
from collectives_book.rounded_training.models import TASKS
from collectives_book.rounded_training.training import train

WORKERS = (8, 64)
SEEDS = {"perceptron": 10, "transformer": 5}
# Steps whose mean loss is one value of a curve, and the last ones, whose mean is the final loss.
EVERY, LAST = 10, 20


class Case(NamedTuple):
    """The columns of a row that are known before its training."""

    model: str
    workers: int
    variant: Variant
    seed: int

    @property
    def key(self) -> tuple[Any, ...]:
        """The values of the columns `KEY`."""
        return self.model, self.workers, *self.variant, self.seed


def cases() -> list[Case]:
    """Return all trainings.

    Those of one seed follow each other, so that a table that is cut off has whole pairs.
    """
    return [
        Case(model, workers, variant, seed)
        for model, seeds in SEEDS.items()
        for seed, workers, variant in product(range(seeds), WORKERS, VARIANTS)
    ]


def trained(case: Case, steps: int | None = None) -> tuple[Any, ...]:
    """Return the row of a training, with as many steps as its task has, or with these."""
    task = TASKS[case.model]
    losses, model = train(
        task._replace(steps=steps or task.steps), case.seed, case.variant, case.workers
    )
    curve = " ".join(
        f"{np.mean(losses[at : at + EVERY]):.5f}" for at in range(0, len(losses), EVERY)
    )
    return *case.key, round(float(np.mean(losses[-LAST:])), 6), round(task.quality(model), 6), curve


def main(to: Path = TABLE) -> None:
    """Train what the unfinished table lacks, a row at a time in the order of the cases.

    A whole table is moved.
    """
    torch.set_num_threads(1)
    unfinished = to.with_name(f"unfinished-{to.name}")
    unfinished.parent.mkdir(parents=True, exist_ok=True)
    if not unfinished.exists():
        pd.DataFrame(columns=[*COLUMNS]).to_csv(unfinished, index=False)
    there = {*read(unfinished)[KEY].itertuples(index=False, name=None)}
    for case in cases():
        if case.key not in there:
            row = trained(case)
            pd.DataFrame([row]).to_csv(unfinished, mode="a", header=False, index=False)
            print(*row[:8], file=sys.stderr, flush=True)
    unfinished.replace(to)


if __name__ == "__main__":
    main()

"""The committed table, a row for each training: how rows are read, without what is needed to train."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import NamedTuple

TABLE = (
    Path(__file__).resolve().parents[3] / "experiments" / "results" / "reference" / "rounded-training" / "trainings.csv"
)


class Trained(NamedTuple):
    """One training: its configuration, final loss, held-out result, and loss curve."""

    model: str
    workers: int
    algorithm: str
    dtype: str
    feedback: int  # whether errors are fed back: 1 or 0
    seed: int
    loss: float  # the mean of the last steps
    quality: float  # of the perceptron the share of test images read right, of the transformer the held-out loss
    curve: str  # the mean loss of every ten steps, with spaces between


def read(path: Path = TABLE) -> list[Trained]:
    """Read the rows of a table. Raises ValueError for an unexpected header or an invalid line, with its number."""
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

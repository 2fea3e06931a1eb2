"""What the simulator predicts for the measured all-reduces, written down before the held-out ones were read.

``python -m collectives_book.measured_machines.predictions MACHINE`` prints the table of one machine; the committed
``MACHINE-predicted.csv`` is older in the history than the rows that it is compared with.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import NamedTuple

from collectives.machine import machine
from collectives.simulator.scaling import Case, rows


class Held(NamedTuple):
    """What is predicted for a machine: ranks that its file was fitted on, ranks held out, sizes, algorithms."""

    fitted: tuple[int, ...]
    held_out: tuple[int, ...]
    bytes: tuple[int, ...]
    algorithms: dict[str, str]  # the tool's name of an algorithm, and ours


# The tree of NCCL is a pair of trees between the nodes and a chain inside each.
PREDICTED = {
    "marenostrum5": Held(
        fitted=(16, 64),
        held_out=(32, 128, 256),
        bytes=(256, 2 << 10, 16 << 10, 128 << 10, 1 << 20, 8 << 20, 64 << 20, 128 << 20, 512 << 20),
        algorithms={"ring": "ring", "tree": "hierarchical_tree"},
    )
}
COLUMNS = "machine", "algorithm", "ranks", "bytes", "simulated", "segments", "us"


def predict(name: str) -> list[dict[str, object]]:
    """Rows of a machine by algorithm, ranks and bytes, fitted and held-out ones: simulated microseconds."""
    held, on = PREDICTED[name], machine(name)
    cells = [
        (label, ranks, nbytes)
        for label in held.algorithms
        for ranks in sorted(held.fitted + held.held_out)
        for nbytes in held.bytes
    ]
    cases = [Case("all_reduce", held.algorithms[label], ranks, nbytes, on) for label, ranks, nbytes in cells]
    return [
        dict(zip(COLUMNS, (name, *cell, case.algorithm, row["segments"], round(row["seconds"] * 1e6, 3)), strict=True))
        for cell, case, row in zip(cells, cases, rows(cases), strict=True)
    ]


def read(path: Path) -> list[dict[str, str]]:
    """The rows of a table in CSV, as text."""
    with path.open(encoding="utf8", newline="") as file:
        return list(csv.DictReader(file))


if __name__ == "__main__":
    if sys.argv[1:] not in [[name] for name in PREDICTED]:
        raise SystemExit(f"usage: python -m {__spec__.name} {'|'.join(PREDICTED)}")
    table = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    table.writeheader()
    table.writerows(predict(sys.argv[1]))

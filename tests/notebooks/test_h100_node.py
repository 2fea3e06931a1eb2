"""Public measurements of a node of H100: where each is from, and how far the preset is from those it has not seen."""

import re
from collections.abc import Iterable
from statistics import median
from typing import Any

from collectives.machine import Delay, Link, Machine, Protocol, machine
from collectives_book.measured_machines.predictions import node

# The preset before its fit: NVLink's rate from the data sheet, LL up to a fixed size, no start-up for Simple.
BEFORE = Machine(
    name="dgx-h100 before",
    ranks_per_node=8,
    inside=Link(latency=3.4e-6, rate=450e9),
    network=Link(latency=11e-6, overhead=3e-6, rate=50e9),
    protocols=(Protocol(name="LL", up_to="64K", share=0.5, startup=6.6e-6, inside=Delay(latency=0.6e-6)),),
)
FITTED_ON = "waynehacking8/nccl-collectives-bench"


def off(rows: Iterable[dict[str, Any]]) -> float:
    """Return the median error without its sign, as a share."""
    return round(median(abs(row["error"]) for row in rows), 3)


def test_every_row_says_where_it_is_from_and_what_it_is_for() -> None:
    rows = node(machine("dgx-h100"))
    fit, held = ([row for row in rows if row["use"] == use] for use in ("fit", "held out"))
    assert len(fit) + len(held) == len(rows)
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}:\S+", row["source"]) for row in rows)
    assert {(row["gpus"], row["source"].partition("@")[0]) for row in fit} == {("4", FITTED_ON)}
    assert {row["gpus"] for row in held if row["source"].startswith(FITTED_ON)} == {"2", "6"}
    cells = [(row["source"], row["collective"], row["gpus"], row["bytes"]) for row in rows]
    assert len(set(cells)) == len(cells)


def test_cells_that_the_fit_has_not_seen() -> None:
    now, before = ([row for row in node(on) if row["use"] == "held out"] for on in (machine("dgx-h100"), BEFORE))
    table = {"all": (len(now), off(before), off(now))}
    for key in ("collective", "gpus", "source"):
        for value in sorted({row[key].partition("@")[0] for row in now}):
            old, new = ([row for row in rows if row[key].partition("@")[0] == value] for rows in (before, now))
            table[value] = (len(new), off(old), off(new))
    old, new = ([row for row in rows if row["algorithm"] != "nvls"] for rows in (before, now))
    table["without nvls"] = (len(new), off(old), off(new))
    for name, (cells, first, second) in table.items():
        print(f"{name:40} {cells:4} cells, median error {first:.1%} before, {second:.1%} now")
    assert table["all"][1] > 0.3
    assert table["all"][2] <= 0.15
    assert table["without nvls"][2] <= 0.15
    assert table["2"][2] > 0.2, "two GPUs are slower than their rate says"

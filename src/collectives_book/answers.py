"""Tell by machine and size which algorithm NCCL takes, its simulated time, the fastest plan, and what to change."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

from collectives.expected import Expected, asked
from collectives.nccl import formulas
from collectives.search import fastest_plan
from collectives.simulator.scaling import Case, Row, row
from collectives.units import duration, format_bytes
from collectives_book.figures.kit import Rows

ALL_REDUCE = "all_reduce"
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SIZES = (64 * KIB, 25 * MIB, GIB)
# Schedules of this library that have the shape of what NCCL takes.
OURS = {
    "ring": "multi_channel_ring",
    "tree": "multi_channel_tree",
    "nvls": "nvls_tree",
    "nvls_tree": "nvls_tree",
}
# The median error of simulated times on published clusters, in the rows held out of the fits
# (`measured_machines.clusters`). A smaller lead is a tie, and no reason to change anything.
ERRORS = {64 * KIB: 0.16, 25 * MIB: 0.09, GIB: 0.09}


class Place(NamedTuple):
    """A number of nodes of a preset, how the book calls it, and the GPUs whose constants NCCL takes there.

    ``gpus`` is how many of a node are in the group, None for all.
    """

    said: str
    preset: str
    nodes: int
    generation: str | None = None  # None for what the preset's name tells
    gpus: int | None = None


PLACES = (
    Place("8 H100", "h100", 1),
    Place("64 H100", "h100", 8),
    Place("64 H100, 1 a node", "h100", 64, gpus=1),
    Place("NVL72", "gb200-nvl72", 1),
    Place("32 Ethernet", "ethernet", 32, "ampere"),
)

WINDOW = "window"
NOTHING = "nothing"
# What to change, by the preset, the number of nodes and the size.
CHANGES = {
    ("h100", 1, 64 * KIB): WINDOW,
    ("h100", 1, 25 * MIB): NOTHING,
    ("h100", 1, GIB): NOTHING,
    ("h100", 8, 64 * KIB): "join calls",
    ("h100", 8, 25 * MIB): "try Tree",
    ("h100", 8, GIB): "try Ring",
    ("h100", 64, 64 * KIB): "join calls",
    ("h100", 64, 25 * MIB): "try Ring",
    ("h100", 64, GIB): NOTHING,
    ("gb200-nvl72", 1, 64 * KIB): WINDOW,
    ("gb200-nvl72", 1, 25 * MIB): WINDOW,
    ("gb200-nvl72", 1, GIB): NOTHING,
    ("ethernet", 32, 64 * KIB): "a plan",
    ("ethernet", 32, 25 * MIB): NOTHING,
    ("ethernet", 32, GIB): NOTHING,
}


class Answer(NamedTuple):
    """NCCL's choice for a size at a place, the simulation of its shape, and that of the fastest schedule."""

    place: Place
    nbytes: int
    choice: formulas.Prediction
    default: Row
    fastest: Row

    @property
    def gain(self) -> float:
        """Return how many times as long as the fastest schedule NCCL's choice takes."""
        return float(self.default["seconds"] / self.fastest["seconds"])

    @property
    def is_tie(self) -> bool:
        """Return True if the lead of the fastest schedule is within the model's error."""
        return self.gain < 1 + ERRORS[self.nbytes]

    @property
    def change(self) -> str:
        """Return what to change."""
        return CHANGES[self.place.preset, self.place.nodes, self.nbytes]


def answers() -> list[Answer]:
    """Return the answer for each place and size.

    Cost: a search for each, together some ten seconds.
    """
    found = []
    for place in PLACES:
        what = asked(ALL_REDUCE, place.preset, place.nodes, place.gpus, place.generation)
        found += [_answer(place, what, nbytes) for nbytes in SIZES]
    return found


def _answer(place: Place, what: Expected, nbytes: int) -> Answer:
    if what.job is None:
        raise ValueError(f"GPUs of {place.preset}: got none that NCCL's formulas know")
    choice = formulas.predictions(what.job, nbytes, list(what.algorithms))[0]
    default = simulated(what, OURS[choice.algorithm], nbytes)
    plan = fastest_plan(ALL_REDUCE, what.job.ranks, nbytes, what.machine)
    rivals = [default]
    if plan is not None:
        rivals.append(simulated(what, str(plan.plan), nbytes))
    fastest = min(rivals, key=lambda each: each["seconds"])
    return Answer(place, nbytes, choice, default, fastest)


def simulated(what: Expected, algorithm: str, nbytes: int) -> Row:
    """Return the simulated row of an algorithm at a place, in its best number of segments."""
    return row(Case(ALL_REDUCE, algorithm, what.nodes * what.gpus, nbytes, what.machine))


def table(found: list[Answer]) -> Rows:
    """Return the answers as text: a row for each machine and size."""
    lines = [
        {
            "machine": answer.place.said,
            "buffer": format_bytes(answer.nbytes),
            "NCCL": formulas.TITLES[answer.choice.algorithm],
            "expect": _time(answer.default),
            "change": answer.change,
            "fastest": _fastest(answer),
        }
        for answer in found
    ]
    return pd.DataFrame(lines).set_index(["machine", "buffer"])


def _fastest(answer: Answer) -> str:
    """Return the fastest schedule, and how many times as fast as NCCL's choice it is."""
    if answer.fastest is answer.default:
        return "NCCL's choice"
    if answer.is_tie:
        return "a tie"
    return f"{answer.fastest['algorithm']}, {answer.gain:.1f}×"


def _time(simulated_row: Row) -> str:
    """Return the time of a small buffer, the bus bandwidth of a large one."""
    if simulated_row["bytes"] < MIB:
        return duration(simulated_row["seconds"])
    rate = simulated_row["busbw"]
    return f"{rate:,.{0 if rate >= 10 else 2}f} GB/s"

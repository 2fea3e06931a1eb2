"""The claims of HLC-Lab/pico's runs with NCCL: eight labels, each the name of an algorithm, and two ratios of times."""

from __future__ import annotations

from functools import cache

from collectives_book.claims.ledger import EQUAL, Claim, Source, within
from collectives_book.figures.statements import Rows, listed
from collectives_book.measured_machines.comparison import IGNORED, behaviour, compared, measured, sides

PAGE = "measured-machines"
MACHINE, GPUS = "marenostrum5", 256
COMPARED = (256, 64 << 20)


@cache
def near() -> Rows:
    """Which of ring and tree each label's times are near, cell by cell."""
    return sides(measured(MACHINE))


def ran(label: str) -> str:
    """What a label's times are like: the ring's, or the tree's for small and the ring's for large buffers."""
    found = behaviour(near(), label)
    if found.tree == 0:
        return "ring"
    sure = found.expected >= 0.9 * (found.ring + found.tree)
    return "tree for small buffers, ring for large ones" if sure and found.ring else "unclear"


def ratios(column: str) -> tuple[float, ...]:
    """The ring's time over the trees' on the most GPUs: measured (``median_us``) or simulated (``us``)."""
    rows = compared(MACHINE)
    rows = rows[rows.ranks == GPUS].pivot(index="bytes", columns="algorithm", values=column)
    return tuple(float(rows.ring[nbytes] / rows.tree[nbytes]) for nbytes in COMPARED)


def predicted_over_measured() -> tuple[float, ...]:
    """How well the two ratios of times were predicted."""
    pairs = zip(ratios("us"), ratios("median_us"), strict=True)
    return tuple(round(said / seen, 3) for said, seen in pairs)


# fmt: off
ENTRIES = (
    Claim(
        "label.1", "ring", "Runs labelled ring are those of a ring: 16 times the GPUs, 16 times the latency.", 16.0,
        lambda: cells("ring", GPUS) / cells("ring", 16), within(0.15),
        "With 256 B, 256 GPUs take {} times as long as 16.", PAGE,
    ),
    Claim(
        "label.2", "tree", "Runs labelled tree are those of a tree: twice the levels, twice the latency.", 2.0,
        lambda: cells("tree", 64) / cells("tree", 16), within(0.15),
        "With 256 B, 16 nodes take {} times as long as 4.", PAGE,
    ),
    Claim(
        "label.3", "nvlstree", "Runs labelled nvlstree are those of NVLSTree.", "nvlstree",
        lambda: ran("nvlstree"), EQUAL, "Wherever ring and tree differ clearly, their times are those of this: {}.",
        PAGE,
        note="NVLSTree cannot run on these nodes.",
    ),
    Claim(
        " ".join(f"label.{4 + i}" for i in range(len(IGNORED))), "five others",
        f"Runs labelled {listed(IGNORED)} are those of five algorithms.", len(IGNORED),
        lambda: len({ran(name) for name in IGNORED}), EQUAL,
        "Wherever ring and tree differ clearly, the five show this number of behaviours: {}.", PAGE,
        note="It is NCCL's own choice: the tree for small buffers, the ring for large ones.",
    ),
    Claim(
        "figure.1", "ring over tree", "Measured on 256 GPUs, the ring's time over the trees', with 256 B and 64 MiB.",
        (1.0, 1.0), predicted_over_measured, within(0.1),
        "The predicted ratios, which are older than our look at these runs, over the measured ones: {}.", PAGE,
    ),
)
# fmt: on


def cells(label: str, ranks: int, nbytes: int = 256) -> float:
    """The measured median of one cell, in microseconds."""
    rows = measured(MACHINE)
    (value,) = rows[(rows.algorithm == label) & (rows.ranks == ranks) & (rows.bytes == nbytes)].median_us
    return float(value)


SOURCE = Source("PICO", "pico2025", "label", {"label": 8, "figure": 1}, ENTRIES)

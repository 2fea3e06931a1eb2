"""The table of how long synthesis takes: all-gathers on growing topologies, asked one after the other.

``python -m collectives_book.synthesis`` asks again and writes the table, within ten minutes.

Each question has as few steps as the diameter allows, DGX-1's one more. It has as few rounds as
these steps, or as the bound: what a rank receives over what enters in a round.
"""

import csv
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from collectives.core.schedule import Ints
from collectives.machine import machine
from collectives.topology.graph import graph, rank_links
from collectives_interop.synthesis.few_steps import diameter, least_rounds, synthesize

TABLE = (
    Path(__file__).resolve().parents[2]
    / "experiments"
    / "results"
    / "reference"
    / "synthesis"
    / "scaling.csv"
)
LIMIT = 60.0
COLUMNS = (
    "topology",
    "ranks",
    "chunks",
    "steps",
    "rounds",
    "verdict",
    "why",
    "seconds",
)


class Asked(NamedTuple):
    """A topology with its name, and chunks per rank; ``more`` steps than its diameter."""

    name: str
    links: Ints
    chunks: int
    more: int = 0


def links_of(name: str) -> Ints:
    """The links of a machine's ranks.

    >>> links_of("torus:2x2").tolist()
    [[0, 1, 1, 0], [1, 0, 0, 1], [1, 0, 0, 1], [0, 1, 1, 0]]
    """
    return rank_links(graph(machine(name)))


def asked() -> Iterator[Asked]:
    """Every question: small ones first in each family."""
    for chunks in (1, 2):
        yield from (Asked("ring", links_of(f"torus:{p}"), chunks) for p in range(4, 17, 2))
        yield from (
            Asked("torus", links_of(f"torus:{size}"), chunks)
            for size in ("3x3", "3x4", "4x4", "4x5", "5x5")
        )
        yield from (
            Asked("hypercube", links_of(f"torus:{'x'.join('2' * bits)}"), chunks)
            for bits in (2, 3, 4, 5)
        )
    yield from (Asked("dgx1", links_of("dgx1"), chunks, 1) for chunks in (*range(1, 9), 10, 12))


def row(of: Asked, limit: float = LIMIT) -> dict[str, object]:
    """Return the row of one answer: its verdict and what it took."""
    steps = diameter(of.links) + of.more
    rounds = max(steps, least_rounds(of.links, of.chunks))
    answer = synthesize(of.links, "all_gather", steps, rounds, of.chunks, limit)
    values = (
        of.name,
        len(of.links),
        of.chunks,
        steps,
        rounds,
        answer.verdict,
        answer.why,
        round(answer.seconds, 2),
    )
    return dict(zip(COLUMNS, values, strict=True))


def write(path: Path) -> None:
    """The whole table, a row as soon as it is known."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        table.writeheader()
        for of in asked():
            found = row(of)
            table.writerow(found)
            file.flush()
            print(*found.values(), file=sys.stderr, flush=True)


if __name__ == "__main__":
    write(TABLE)

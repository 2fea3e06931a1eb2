"""The table of how long synthesis takes: all-gathers on growing topologies, asked one after the other.

``python -m collectives_book.synthesis.scaling`` asks again and writes the table, within ten minutes.

Each question has as few steps as the diameter allows, DGX-1's one more. It has as few rounds as these steps, or as the
bound: what a rank receives over what enters in a round.
"""

import csv
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from collectives.cli.synthesize import links_of
from collectives.schedule import Ints
from collectives.topology.synthesis import diameter, least_rounds, synthesize

TABLE = Path(__file__).resolve().parents[3] / "experiments" / "results" / "reference" / "synthesis" / "scaling.csv"
LIMIT = 60.0
COLUMNS = ("topology", "ranks", "chunks", "steps", "rounds", "verdict", "why", "seconds")


class Asked(NamedTuple):
    """A topology with its name, and chunks per rank; ``more`` steps than its diameter."""

    name: str
    links: Ints
    chunks: int
    more: int = 0


def torus(*sizes: int) -> Ints:
    """One link between neighbours in each direction; one axis is a ring, and axes of size 2 make a hypercube.

    >>> torus(2, 2).tolist()
    [[0, 1, 1, 0], [1, 0, 0, 1], [1, 0, 0, 1], [0, 1, 1, 0]]
    """
    place = np.stack(np.unravel_index(np.arange(np.prod(sizes)), sizes))
    links = np.zeros((place.shape[1], place.shape[1]), dtype=np.int64)
    for axis, size in enumerate(sizes):
        for way in (1, -1):
            to = place.copy()
            to[axis] = (to[axis] + way) % size
            links[np.arange(len(links)), np.ravel_multi_index(tuple(to), sizes)] = 1
    return links


def asked() -> Iterator[Asked]:
    """Every question: small ones first in each family."""
    for chunks in (1, 2):
        yield from (Asked("ring", torus(p), chunks) for p in range(4, 17, 2))
        yield from (Asked("torus", torus(*sizes), chunks) for sizes in ((3, 3), (3, 4), (4, 4), (4, 5), (5, 5)))
        yield from (Asked("hypercube", torus(*[2] * bits), chunks) for bits in (2, 3, 4, 5))
    yield from (Asked("dgx1", links_of("dgx1"), chunks, 1) for chunks in (*range(1, 9), 10, 12))


def row(of: Asked, limit: float = LIMIT) -> dict[str, object]:
    """What one answer took."""
    steps = diameter(of.links) + of.more
    rounds = max(steps, least_rounds(of.links, of.chunks))
    answer = synthesize(of.links, "all_gather", steps, rounds, of.chunks, limit)
    values = (of.name, len(of.links), of.chunks, steps, rounds, answer.verdict, answer.why, round(answer.seconds, 2))
    return dict(zip(COLUMNS, values, strict=True))


def write(path: Path) -> None:
    """The whole table, a row as soon as it is known."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        table.writeheader()
        for of in asked():
            table.writerow(found := row(of))
            file.flush()
            print(*found.values(), file=sys.stderr, flush=True)


if __name__ == "__main__":
    write(TABLE)

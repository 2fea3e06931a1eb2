"""The ports that two trees fill, as HTML: the second tree appears when a reader ticks a box."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

import numpy as np

from collectives.algorithms.binary_tree import (
    NO_PARENT,
    binary_tree,
    depths,
    edge_colours,
    second_tree,
)
from collectives.core.schedule import Ints
from collectives.figures.trees import TREES
from collectives.units import many

# Pixels: between ranks, between levels, a port's slot, the margin.
COLUMN, LEVEL, SLOT, EDGE = 48, 36, 16, 14
LEFT = 74  # the words beside the slots

# The second tree is faint at first; a reader who asked for no motion sees it at once. On paper it
# is there.
STYLE = """
.filled-ports label { display: inline-flex; gap: 0.5em; align-items: center; margin: 0.5em 0; cursor: pointer; }
.filled-ports input { width: 1.2em; height: 1.2em; }
.filled-ports svg { display: block; margin: auto; }
.filled-ports text { fill: currentColor; font-size: 15px; text-anchor: middle; dominant-baseline: central; }
.filled-ports .second { transition: opacity 0.4s calc(var(--nth) * 0.15s); }
.filled-ports:not(:has(:checked)) .second { opacity: 0.12; transition-delay: 0s; }
.filled-ports:has(:checked) .alone, .filled-ports:not(:has(:checked)) .both { display: none; }
@media (prefers-reduced-motion: reduce) { .filled-ports .second { transition: none; } }
@media print {
  .filled-ports .second { opacity: 1 !important; }
  .filled-ports :is(label, .alone) { display: none !important; }
  .filled-ports .both { display: inline !important; }
}
"""


@dataclass(frozen=True)
class FilledPorts:
    """Both trees and how they use the ports: ``used[tree, way, colour, rank]`` is 1 where a rank works.

    It sends (way 0) or receives (way 1) in steps of this colour.
    """

    parents: Ints
    colours: Ints
    used: Ints

    @property
    def message(self) -> tuple[str, str]:
        """Return the sentence below the drawing, without and with the second tree."""
        slots, first, both = self.used[0].size, int(self.used[0].sum()), int(self.used.sum())
        can = f"in two steps each of {self.parents.shape[1]} ranks can send twice and receive twice"
        return (
            f"The first tree uses {first} of {slots} slots: {can}.",
            f"With the second tree {both} of {slots} slots are in use, and no slot twice.",
        )

    @property
    def alt(self) -> str:
        """Return the alternative text."""
        idle = np.flatnonzero(self.used[0, 1].sum(axis=0) == 0).tolist()
        return (
            f"Two binary trees on {many(self.parents.shape[1], 'rank')} while they reduce, and the ports between them. "
            f"{' '.join(self.message)} In the first tree ranks {', '.join(map(str, idle))} receive nothing."
        )

    def _repr_html_(self) -> str:
        p, levels = self.parents.shape[1], 1 + int(max(depths(tree).max() for tree in self.parents))
        width, height = LEFT + COLUMN * p, 2 * (EDGE + LEVEL * levels) + 4 * SLOT
        body = "".join([*_titles(height), *self._slots(height), *self._edges(height)])
        alone, both = map(escape, self.message)
        return (
            f'<figure class="drawn filled-ports"><style>{STYLE}</style>'
            '<label><input type="checkbox"> Add the second tree</label>'
            f'<svg viewBox="0 0 {width} {height}" width="{1.5 * width:g}" role="img" aria-label="{escape(self.alt)}">'
            f"{body}</svg>"
            f'<figcaption><span class="alone">{alone}</span><span class="both">{both}</span></figcaption></figure>'
        )

    def _edges(self, height: int) -> Iterator[str]:
        """Yield the edges of the first tree from above, and of the second from below, solid and dashed in turn."""
        for tree, (parent, colour) in enumerate(zip(self.parents, self.colours, strict=True)):
            depth = depths(parent)
            at = [(_column(rank), EDGE + LEVEL * down) for rank, down in enumerate(depth.tolist())]
            at = [(x, height - y if tree else y) for x, y in at]
            for rank, up in enumerate(parent.tolist()):
                if up != NO_PARENT:
                    (x, y), (to_x, to_y) = at[rank], at[up]
                    dash = ' stroke-dasharray="4 3"' if colour[rank] else ""
                    line = f'<path d="M{x} {y}L{to_x} {to_y}" stroke="{TREES[tree]}" stroke-width="2"{dash}/>'
                    yield _group(tree, rank, line)
            for rank, (x, y) in enumerate(at):
                circle = f'<circle cx="{x}" cy="{y}" r="12" fill="{TREES[tree]}"/>'
                number = f'<text x="{x}" y="{y}" style="fill: #fff; font-weight: 600">{rank}</text>'
                yield _group(tree, rank, circle + number)

    def _slots(self, height: int) -> Iterator[str]:
        """Yield a row of sends and one of receives, in which each rank has a slot for either colour."""
        for way, colour, rank in np.ndindex(*self.used.shape[1:]):
            x, y = _column(rank) + (colour - 1) * (SLOT + 2), height // 2 + (way - 1) * (SLOT + 4)
            box = f'x="{x}" y="{y}" width="{SLOT}" height="{SLOT}" rx="3"'
            yield f'<rect {box} fill="none" stroke="currentColor" stroke-opacity="0.5"/>'
            for tree in np.flatnonzero(self.used[:, way, colour, rank]).tolist():
                yield _group(tree, rank, f'<rect {box} fill="{TREES[tree]}"/>')


def filled_ports(p: int) -> FilledPorts:
    """Return the ports that the two trees on p ranks use in two consecutive steps of the reduce, with full pipelines.

    >>> filled_ports(8).message[1]
    'With the second tree 28 of 32 slots are in use, and no slot twice.'
    """
    parents = np.stack([binary_tree(p), second_tree(p)])
    colours = edge_colours(parents)
    used = np.zeros((2, 2, 2, p), dtype=np.int64)
    tree, rank = np.nonzero(parents != NO_PARENT)
    colour = colours[tree, rank]
    used[tree, 0, colour, rank] += 1
    used[tree, 1, colour, parents[tree, rank]] += 1
    return FilledPorts(parents, colours, used)


def _column(rank: int) -> int:
    return LEFT + COLUMN // 2 + COLUMN * rank


def _titles(height: int) -> Iterator[str]:
    for way, word in enumerate(("sends", "receives")):
        yield f'<text x="{LEFT // 2}" y="{height // 2 + (way - 1) * (SLOT + 4) + SLOT // 2}">{word}</text>'


def _group(tree: int, nth: int, inside: str) -> str:
    return f'<g class="second" style="--nth: {nth}">{inside}</g>' if tree else inside

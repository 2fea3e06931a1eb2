"""Pictures of schedules (what ranks hold, who sends to whom, messages in time), of trees, and of a machine's links."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from math import ceil
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, Rectangle

from collectives.algorithms.binary_tree import (
    NO_PARENT,
    binary_tree,
    depths,
    edge_colours,
    second_tree,
)
from collectives.algorithms.library_trees import interior_in_both
from collectives.core.contracts import Counts, after, before
from collectives.core.interpret import apply
from collectives.core.schedule import Ints, Schedule, Step, run
from collectives.figures.layout import Placement, Points, bend, between, layout, ring, star, turns
from collectives.figures.style import Colour, Picture, Theme, hues, mark, picture
from collectives.units import many

if TYPE_CHECKING:
    from collectives.machine import Machine
    from collectives.topology.bound import Bound
    from collectives.topology.graph import Graph

LETTERS = "abcdefghijklmnopqrstuvwxyz"
SUBSCRIPTS = "₀₁₂₃₄₅₆₇₈₉"

# Inches. Letters of a drawing this wide can still be read where a phone shrinks it.
WIDTH = 5.4
MAX_DRAWN = 64  # ranks and switches of a machine
TREE, RING = mark("two_tree").colour, mark("ring").colour
TREES = TREE, RING  # of the first tree, and of the second

# Of the ports that trees fill, in pixels.
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


def symbol(rank: int, chunk: int) -> str:
    """Return rank r's own chunk c as a letter with an index, both counted from 0.

    >>> symbol(0, 0), symbol(3, 12)
    ('a₀', 'd₁₂')
    """
    return LETTERS[rank] + "".join(SUBSCRIPTS[int(digit)] for digit in str(chunk))


def label(schedule: Schedule, rank: int) -> str:
    """Return the name of a participant in a picture: a rank's number, or "switch"."""
    return str(rank) if rank < schedule.p else "switch"


def walk(schedule: Schedule, columns: int = 2) -> Picture:
    """Draw the chunks of every rank at the start and after every step: a panel each, ranks top to bottom.

    A cell has its chunk's hue, fills while contributions arrive, and shows their ranks as letters.
    A frame marks what this step has written. For 26 ranks at most, which is one letter each. Cost:
    p * k * p counts for every step.
    """
    states = _states(schedule)
    rows = ceil(len(states) / columns)
    # Of the letters, in points: four and an index fit into a quarter of a panel.
    size = min(9, 21 / columns)

    def paint(figure: Figure, theme: Theme) -> None:
        panels = np.atleast_2d(figure.subplots(rows, columns, squeeze=False))
        for axes in panels.flat:
            axes.set_axis_off()
        for t, (axes, state) in enumerate(zip(panels.flat, states, strict=False)):
            axes.set_title(
                "at the start" if t == 0 else f"after step {t - 1}", fontsize=10, color=theme.ink
            )
            _panel(axes, schedule, state, _written(schedule, t - 1), theme, size)

    end = _holdings(schedule, states[-1])
    alt = (
        f"What each of {schedule.p} ranks holds of {schedule.k} chunks, at the start and after each of "
        f"{schedule.nsteps} steps of {schedule.collective.replace('_', '-')}; at the end {end}."
    )
    return picture(paint, alt, WIDTH, height=rows * (0.36 * schedule.participants + 0.45))


def _states(schedule: Schedule) -> list[Counts]:
    held = before(schedule)[..., :-1]
    states = [held.copy()]
    for step in schedule.steps():
        apply(step, held)
        states.append(held.copy())
    return states


def _written(schedule: Schedule, t: int) -> set[tuple[int, int]]:
    if t < 0:
        return set()
    step = schedule.step(t)
    row, chunk = step.cells()
    return set(zip(step.dst[row].tolist(), chunk.tolist(), strict=True))


def _panel(
    axes: Axes,
    schedule: Schedule,
    state: Counts,
    written: set[tuple[int, int]],
    theme: Theme,
    size: float,
) -> None:
    p, k = schedule.participants, schedule.k
    colours, complete = hues(k), _complete(schedule)
    for rank in range(p):
        axes.text(
            -0.15,
            rank + 0.5,
            label(schedule, rank),
            ha="right",
            va="center",
            fontsize=9,
            color=theme.ink,
        )
        for chunk in range(k):
            filled = state[rank, chunk].sum() / complete
            fresh = (rank, chunk) in written
            _cell(
                axes, (rank, chunk), state[rank, chunk], filled, colours[chunk], fresh, theme, size
            )
    axes.set_xlim(-0.5 - 0.12 * k * min(1, schedule.switches), k + 0.05)
    axes.set_ylim(p + 0.05, -0.05)


def _cell(
    axes: Axes,
    at: tuple[int, int],
    counts: Counts,
    filled: float,
    colour: Colour,
    fresh: bool,
    theme: Theme,
    size: float,
) -> None:
    rank, chunk = at
    who = np.flatnonzero(counts)
    axes.add_patch(Rectangle((chunk, rank), filled, 1, color=colour, alpha=0.55, lw=0))
    edge, width = (theme.ink, 1.6) if fresh else (theme.faint, 0.6)
    axes.add_patch(
        Rectangle((chunk, rank), 1, 1, fill=False, ec=edge, lw=width, zorder=3 if fresh else 2)
    )
    text = "".join(LETTERS[r] for r in who) + ("" if not len(who) else symbol(0, chunk)[1:])
    axes.text(
        chunk + 0.5,
        rank + 0.5,
        text,
        ha="center",
        va="center",
        fontsize=size,
        color=theme.ink,
        zorder=4,
    )


def _complete(schedule: Schedule) -> int:
    """Return the number of contributions that complete a cell: p if the collective reduces, otherwise 1."""
    return int(after(schedule).sum(axis=1).max())


def _holdings(schedule: Schedule, state: Counts) -> str:
    full = (state[: schedule.p].sum(axis=2) == _complete(schedule)).sum(axis=1)
    least, most = int(full.min()), int(full.max())
    count = f"{least}" if least == most else f"{least} to {most}"
    return f"every rank holds {count} complete chunk{'s' if most != 1 else ''}"


def space_time(*schedules: Schedule) -> Picture:
    """Draw messages in time: steps left to right, ranks top to bottom, an arrow in the hue of each first chunk.

    Solid arrows add to what the receiver has, dashed ones replace it. Messages of a step that share
    a port follow each other. Several schedules are below each other, and share the scale of time.
    Cost: an arrow for every message.
    """
    queues = [[turns(schedule, step) for step in schedule.steps()] for schedule in schedules]
    ends = [np.cumsum([0, *(1 + max(turn, default=0) for turn in queue)]) for queue in queues]
    ranks = [schedule.participants for schedule in schedules]

    def paint(figure: Figure, theme: Theme) -> None:
        rows = figure.subplots(
            len(schedules), 1, squeeze=False, gridspec_kw={"height_ratios": ranks}
        )[:, 0]
        for axes, schedule, queue, end in zip(rows, schedules, queues, ends, strict=True):
            _timeline(axes, schedule, queue, end, theme)
            axes.set_xlim(-0.3, max(last[-1] for last in ends) + 0.3)
        rows[-1].set_xlabel("step")

    return picture(
        paint,
        " ".join(map(_describe_messages, schedules, queues)),
        WIDTH,
        0.6 + 0.3 * len(ranks) + 0.34 * sum(ranks),
    )


def _timeline(
    axes: Axes, schedule: Schedule, queue: list[list[int]], ends: Ints, theme: Theme
) -> None:
    """Draw the steps, each as wide as its longest queue, with lines between them if there is one."""
    axes.hlines(
        range(schedule.participants), -0.3, ends[-1] + 0.3, color=theme.faint, lw=0.8, zorder=0
    )
    if ends[-1] > schedule.nsteps:
        axes.vlines(
            ends[1:-1], -0.5, schedule.participants - 0.5, color=theme.faint, lw=0.8, zorder=0
        )
    for begin, step, turn in zip(ends.tolist(), schedule.steps(), queue, strict=False):
        _arrows(axes, begin, step, turn, hues(schedule.k))
    axes.set(ylim=(schedule.participants - 0.5, -0.5), ylabel="rank")
    axes.set_xticks((ends[1:] + ends[:-1]) / 2, [str(t) for t in range(schedule.nsteps)])
    axes.set_yticks(
        range(schedule.participants), [label(schedule, r) for r in range(schedule.participants)]
    )
    axes.grid(False)
    axes.spines[["left", "bottom"]].set_visible(False)


def _describe_messages(schedule: Schedule, queue: list[list[int]]) -> str:
    longest = 1 + max(turn for each in [[0], *queue] for turn in each)
    shared = f" Up to {longest} messages of a step share a port." if longest > 1 else ""
    return (
        f"Messages of {schedule.collective.replace('_', '-')} on {many(schedule.p, 'rank')}: {sum(map(len, queue))} "
        f"arrows between ranks over {many(schedule.nsteps, 'step')}, {many(schedule.k, 'chunk')}.{shared}"
    )


def _arrows(axes: Axes, begin: int, step: Step, columns: list[int], colours: list[Colour]) -> None:
    """Draw each message of a step as an arrow from its sender's row to its receiver's row.

    Message i stands in column ``columns[i]`` of the step, whose first column is at ``begin``. It
    has the colour of its first chunk, and is solid if it is added, dashed if it replaces.
    """
    for column, (src, dst, chunks, is_added) in zip(columns, _messages(step), strict=True):
        # A column is 1 wide, and arrows leave a margin on both sides of it.
        left, right = begin + column + 0.06, begin + column + 0.94
        arrow = FancyArrowPatch(
            (left, src),
            (right, dst),
            shrinkA=0,
            shrinkB=0,
            arrowstyle="-|>",
            mutation_scale=8,  # the size of the head
            color=colours[chunks[0]],
            lw=1.4,
            ls="solid" if is_added else (0, (3, 2)),
        )
        axes.add_patch(arrow)


def steps(
    schedule: Schedule, algorithm: str | None = None, columns: int = 3, most: int = 18
) -> Picture:
    """Draw the messages of each step (the first ``most``) in a panel, as arrows from rank to rank.

    `layout` places the ranks by the algorithm's shape. An arrow has the hue of its chunk; it is
    solid if the chunk is added and dashed if it replaces. In steps of twelve messages or fewer the
    chunk's number is beside the arrow.
    """
    placed, shown = layout(schedule, algorithm), min(schedule.nsteps, most)
    rows = max(1, ceil(shown / columns))

    def paint(figure: Figure, theme: Theme) -> None:
        panels = np.atleast_2d(figure.subplots(rows, columns, squeeze=False))
        for axes in panels.flat:
            axes.set_axis_off()
        for t, axes in zip(range(shown), panels.flat, strict=False):
            axes.set_title(f"step {t}", fontsize=9, color=theme.ink)
            _links(axes, schedule, placed, theme)
            _ranks(axes, schedule, placed, theme)
            _curves(axes, schedule, placed, t, theme)

    return picture(
        paint, _who_sends(schedule, shown), WIDTH, height=rows * (0.25 + WIDTH / columns)
    )


def _links(axes: Axes, schedule: Schedule, placed: Placement, theme: Theme) -> None:
    """Draw the edges of the trees as faint lines, because a single step shows only some of them."""
    if "tree" in placed.shape:
        pairs = {
            (min(pair), max(pair)) for step in schedule.steps() for *pair, _, _ in _messages(step)
        }
        for a, b in sorted(pairs):
            axes.plot(*placed.points[[a, b]].T, color=theme.faint, lw=0.7, zorder=0)


def _ranks(axes: Axes, schedule: Schedule, placed: Placement, theme: Theme) -> None:
    # About the radius in points, where three panels stand side by side.
    size = WIDTH / 3 * 72 * placed.radius
    for ax, ay, bx, by in placed.nodes:
        axes.plot(
            [ax, bx],
            [ay, by],
            color=theme.faint,
            lw=2.4 * size,
            solid_capstyle="round",
            alpha=0.35,
            zorder=0,
        )
    for rank, (x, y) in enumerate(placed.points.tolist()):
        axes.add_patch(
            Circle((x, y), placed.radius, fc=theme.ground, ec=theme.ink, lw=0.9, zorder=3)
        )
        name, most = label(schedule, rank), 9 if rank < schedule.p else 5
        axes.text(
            x,
            y,
            name,
            ha="center",
            va="center",
            fontsize=min(most, 1.1 * size),
            color=theme.ink,
            zorder=4,
        )
    edge = 1.4 * placed.radius + 0.02
    axes.set(xlim=(-edge, 1 + edge), ylim=(1 + edge, -edge), aspect="equal")


def _curves(axes: Axes, schedule: Schedule, placed: Placement, t: int, theme: Theme) -> None:
    colours = hues(schedule.k)
    messages = _messages(schedule.step(t))
    for src, dst, chunks, add in messages:
        curve = bend(placed, src, dst)
        start, end = between(placed, src, dst)
        style = f"arc3,rad={-curve}"  # the y axis points down, which turns a bend to the other side
        look = {
            "color": colours[chunks[0]],
            "lw": 1.3,
            "ls": "solid" if add else (0, (3, 2)),
            "arrowstyle": "-|>",
        }
        look |= {"connectionstyle": style, "shrinkA": 0, "shrinkB": 0, "mutation_scale": 7}
        axes.add_patch(FancyArrowPatch(tuple(start), tuple(end), **look))  # type: ignore[arg-type]
        if len(messages) <= 12:
            left = (end - start)[::-1] * [1, -1]
            x, y = (start + end) / 2 + left * (curve / 2 + 0.055 / float(np.hypot(*left)))
            axes.text(x, y, _short(chunks), ha="center", va="center", fontsize=7, color=theme.ink)


def _messages(step: Step) -> list[tuple[int, int, list[int], bool]]:
    """Return the messages of a step: sender, receiver, the chunks in order, and True if the first row is added."""
    sent, found = step.messages(), []
    for i, (src, dst) in enumerate(zip(sent.src.tolist(), sent.dst.tolist(), strict=True)):
        rows = sent.rows(i)
        runs = zip(step.chunk[rows].tolist(), step.count[rows].tolist(), strict=True)
        found.append(
            (
                src,
                dst,
                [c for chunk, count in runs for c in range(chunk, chunk + count)],
                bool(step.add[rows[0]]),
            )
        )
    return found


def _short(chunks: list[int]) -> str:
    """Return a chunk's number, a run of chunks as first-last, or the number of chunks.

    >>> _short([3]), _short([2, 3, 4]), _short([0, 2])
    ('3', '2-4', '×2')
    """
    first, count = min(chunks), len(chunks)
    return run(first, count) if sorted(chunks) == list(range(first, first + count)) else f"×{count}"


def _who_sends(schedule: Schedule, shown: int) -> str:
    """Return the alternative text: the number of messages in each step, and the first message."""
    counts = [len(schedule.step(t).messages().src) for t in range(shown)]
    part = "" if shown == schedule.nsteps else f", the first {shown} of them drawn"
    text = (
        f"Who sends which chunk to whom in {schedule.collective.replace('_', '-')} on {schedule.p} ranks: "
        f"{schedule.nsteps} steps{part}, {schedule.k} chunks; messages in each step: "
        f"{', '.join(map(str, counts)) or 'none'}."
    )
    if not counts:
        return text
    src, dst, chunks, add = _messages(schedule.step(0))[0]
    kind = "added" if add else "replacing"
    to = f"rank {dst}" if dst < schedule.p else "the switch"
    return (
        f"{text} In step 0, for example, rank {src} sends chunk {_short(chunks)} to {to}, {kind}."
    )


def two_trees(p: int) -> Picture:
    """Draw both trees of the two-tree all-reduce side by side.

    Solid and dashed edges work in alternate steps.
    """
    parents = np.stack([binary_tree(p), second_tree(p)])
    colours = edge_colours(parents)
    first, second = (np.unique(parent[parent != NO_PARENT]) for parent in parents)

    def paint(figure: Figure, theme: Theme) -> None:
        for axes, parent, colour, name in zip(
            figure.subplots(1, 2), parents, colours, ("first", "second"), strict=True
        ):
            axes.set_title(f"{name} tree, {name} half", fontsize=12, color=theme.ink)
            _tree(axes, parent, colour, set(first.tolist()), theme)

    both = np.intersect1d(first, second)
    shared = f"rank {', '.join(map(str, both))} is" if both.size else "no rank is"
    alt = (
        f"Two binary trees on {p} ranks. Interior in the first: ranks {_listed(first)}; in the second: ranks "
        f"{_listed(second)}; {shared} interior in both. Each edge works in even or in odd steps only."
    )
    return picture(paint, alt, WIDTH, height=0.8 + 0.5 * (1 + (p - 1).bit_length()))


def _listed(ranks: Ints) -> str:
    return ", ".join(map(str, ranks.tolist()))


def _tree(axes: Axes, parent: Ints, colour: Ints, inside_first: set[int], theme: Theme) -> None:
    """Draw ranks left to right by number, top to bottom by their distance from the root."""
    depth = depths(parent)
    for rank, up in enumerate(parent.tolist()):
        if up != NO_PARENT:
            style = "solid" if colour[rank] == 0 else (0, (2, 1.5))
            axes.plot(
                [rank, up], [depth[rank], depth[up]], color=theme.ink, lw=1.2, ls=style, zorder=1
            )
        fill = TREE if rank in inside_first else RING
        axes.scatter([rank], [depth[rank]], s=300, color=fill, zorder=2)
        axes.text(
            rank,
            depth[rank],
            str(rank),
            ha="center",
            va="center",
            color="white",
            fontsize=12.5,
            zorder=3,
        )
    axes.set(xlim=(-0.7, len(parent) - 0.3), ylim=(depth.max() + 0.45, -0.45))
    axes.set_axis_off()


def side_by_side(parents: Ints, title: str) -> Picture:
    """Draw two trees. A rank that is interior in both is filled, and the others are rings."""
    both = interior_in_both(parents).tolist()
    levels = [int(depths(parent).max()) for parent in parents]

    def paint(figure: Figure, theme: Theme) -> None:
        for axes, parent, name in zip(
            figure.subplots(1, 2), parents, ("first", "second"), strict=True
        ):
            axes.set_title(f"{title}, {name} tree", fontsize=10, color=theme.ink)
            _labelled_tree(axes, parent, set(both), theme)

    shared = (
        f"Interior in both: {', '.join(map(str, both))}."
        if both
        else "No rank is interior in both."
    )
    alt = f"{title}: two trees on {parents.shape[1]} ranks, {levels[0]} and {levels[1]} levels below the root. {shared}"
    return picture(paint, alt, WIDTH, height=0.9 + 0.55 * (1 + max(levels)))


def _labelled_tree(axes: Axes, parent: Ints, both: set[int], theme: Theme) -> None:
    """Draw each rank above its subtree, level by level."""
    depth, x = depths(parent), x_positions(parent)
    for rank, up in enumerate(parent.tolist()):
        if up != NO_PARENT:
            axes.plot([x[rank], x[up]], [depth[rank], depth[up]], color=theme.ink, lw=1.2, zorder=1)
        fill = TREE if rank in both else theme.ground
        axes.scatter(
            [x[rank]],
            [depth[rank]],
            s=300,
            color=fill,
            edgecolors=theme.ink,
            linewidths=1.0,
            zorder=2,
        )
        ink = "white" if rank in both else theme.ink
        axes.text(
            x[rank],
            depth[rank],
            str(rank),
            ha="center",
            va="center",
            color=ink,
            fontsize=12.5,
            zorder=3,
        )
    axes.set(xlim=(min(x) - 0.6, max(x) + 0.6), ylim=(depth.max() + 0.45, -0.45))
    axes.set_axis_off()


def x_positions(parent: Ints) -> list[float]:
    """Return each rank's x: leaves are in a row, and all others above the middle of their children.

    >>> x_positions(np.array([-1, 0, 0, 1, 1]))
    [1.25, 0.5, 2.0, 0.0, 1.0]
    """
    found, free = [0.0] * len(parent), iter(range(len(parent)))

    def place(rank: int) -> float:
        below = [place(child) for child in np.flatnonzero(parent == rank).tolist()]
        found[rank] = (below[0] + below[-1]) / 2 if below else float(next(free))
        return found[rank]

    place(int(np.flatnonzero(parent == NO_PARENT)[0]))
    return found


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


def cut(of: Machine, found: Bound) -> Picture:
    """Draw a machine's ranks, switches and links, and in colour the links that cross the cut.

    They are drawn where the machine's file has places for them, or on a ring with switches in the
    middle. Without a cut (an all-reduce, an all-to-all) no link is in colour. Raises ValueError for
    more than 64 ranks and switches.
    """
    graph, side = found.graph, set(found.cut)
    if graph.vertices > MAX_DRAWN:
        raise ValueError(
            f"ranks and switches to draw: got {graph.vertices}, expected at most {MAX_DRAWN}"
        )
    points = _places(of, graph)
    joined = np.maximum(graph.capacity, graph.capacity.T)

    def paint(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        axes.set_axis_off()
        # Each pair of joined vertices once.
        for a, b in np.argwhere(np.triu(joined)).tolist():
            crosses = (a in side) != (b in side)
            _link(axes, points, a, b, int(joined[a, b]), crosses, theme)
        has_room_for_numbers = len(points) <= 20
        # Points count y downwards, axes upwards.
        for vertex, (x, y) in enumerate(points):
            axes.plot(
                x,
                -y,
                marker="o" if vertex < graph.p else "s",  # ranks are round, switches square
                ms=24 if has_room_for_numbers else 12,
                color=TREE if vertex in side else RING,
                zorder=3,
            )
            if has_room_for_numbers:
                axes.text(
                    x,
                    -y,
                    str(vertex),
                    ha="center",
                    va="center",
                    color="white",
                    fontsize=11,
                    fontweight="bold",
                    zorder=4,
                )
        axes.margins(0.09)
        if side:
            rate = found.links * float(graph.unit) / 1e9
            message = f"{found.shards} shards cross the cut over links of {rate:g} GB/s in all"
            figure.suptitle(
                message, x=0.01, ha="left", fontsize=10.5, fontweight="bold", color=theme.ink
            )

    alt = f"{of.name}: {many(graph.p, 'rank')}, {many(graph.vertices - graph.p, 'switch')}, and their links."
    if side:
        alt += f" The cut separates {sorted(side)} from the others."
    return picture(paint, alt, width=5.6, height=2.9)


def _places(of: Machine, graph: Graph) -> Points:
    if of.links is not None and len(of.links.places) == graph.vertices:
        return np.array(of.links.places)
    return (
        star(graph.vertices, [*range(graph.p, graph.vertices)])
        if graph.vertices > graph.p
        else ring(graph.p)
    )


def _link(
    axes: Axes, points: Points, a: int, b: int, count: int, crosses: bool, theme: Theme
) -> None:
    """Draw parallel links side by side, up to four, and more than four as one wide line."""
    (ax, ay), (bx, by) = points[[a, b]]
    across = np.array([by - ay, ax - bx]) / np.hypot(bx - ax, by - ay)
    if count > 4:
        axes.plot(
            [ax, bx],
            [-ay, -by],
            color=RING if crosses else theme.faint,
            lw=3.0,
            zorder=2 if crosses else 1,
        )
        return
    for i in range(count):
        shift = 0.02 * (i - (count - 1) / 2) * across
        ends = [ax + shift[0], bx + shift[0]], [-(ay + shift[1]), -(by + shift[1])]
        axes.plot(
            *ends,
            color=RING if crosses else theme.ink,
            lw=2.2 if crosses else 1.2,
            zorder=2 if crosses else 1,
        )

"""Pictures of schedules: what ranks hold, who sends to whom, and messages in time."""

from __future__ import annotations

from math import ceil

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, Rectangle

from collectives.core.contracts import Counts, after, before
from collectives.core.interpret import apply
from collectives.core.schedule import Ints, Schedule, Step, run
from collectives.figures.layout import Placement, bend, between, layout, turns
from collectives.figures.style import WIDTH, Colour, Picture, Theme, hues, picture
from collectives.units import many

LETTERS = "abcdefghijklmnopqrstuvwxyz"
SUBSCRIPTS = "₀₁₂₃₄₅₆₇₈₉"


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

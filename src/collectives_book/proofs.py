"""A program in MSCCL XML as a picture: a column for each block, who waits for whom, and where the proof fails."""

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from collectives.figures.style import Picture, Theme, mark, picture
from collectives.formats import msccl
from collectives.formats.order import Order
from collectives.formats.program import Program, instruction_text
from collectives.formats.prove import prove
from collectives.schedule import ScheduleError

StepPosition = tuple[int, int]  # a block, counted from the left, and a step of it

# Inches, as in `schedules`: legible on a phone.
WIDTH, ROW = 5.4, 0.42

NAMED = re.compile(r"GPU (\d+), thread block (\d+), step (\d+)")


class Panel(NamedTuple):
    """One program: its columns with their steps, and who must be done before whom."""

    title: str
    blocks: Sequence[str]
    steps: Sequence[Sequence[str]]
    messages: Sequence[tuple[StepPosition, StepPosition]]
    waits: Sequence[tuple[StepPosition, StepPosition]]
    marked: frozenset[StepPosition]  # where the proof fails


def verdict(text: str) -> str:
    """Return what is wrong with a program, as ``collectives verify`` says it; empty if it is right."""
    try:
        prove(msccl.program(text.encode()))
    except ScheduleError as error:
        return str(error)
    return ""


def panel(text: str, title: str) -> Panel:
    """Return the program of a text, with the steps marked that the verdict names."""
    program = msccl.program(text.encode())

    def position(number: int) -> StepPosition:
        return program.block_of[number], program.index(number)

    return Panel(
        title,
        [f"GPU {block.gpu}, block {block.id}" for block in program.blocks],
        [[instruction_text(step, block) for step in block.steps] for block in program.blocks],
        [(position(send), position(receive)) for receive, send in Order(program).sender.items()],
        [(position(other), position(step)) for step, other in program.waits.items()],
        frozenset(_marked(program, verdict(text))),
    )


def _marked(program: Program, said: str) -> set[StepPosition]:
    """The steps that the first line names, and the one that the table marks."""
    block_of = {(block.gpu, block.id): b for b, block in enumerate(program.blocks)}
    head, *table = said.split("\n")
    named = [tuple(map(int, found)) for found in NAMED.findall(head)]
    for line in table:
        if "<--" in line:
            cells = line.split("<--")[0].split("|")
            column = next(i for i, cell in enumerate(cells) if re.search(r">.*<\s*$", cell))
            gpu, block = map(int, re.findall(r"\d+", table[0].split("|")[column]))
            named.append((gpu, block, int(cells[0])))
    return {(block_of[gpu, block], step) for gpu, block, step in named}


def waiting(panels: Sequence[Panel]) -> Picture:
    """Draw panels below each other; what is marked is filled, and an arrow between two marked steps is thick."""
    heights = [1.2 + max(map(len, panel.steps)) for panel in panels]

    def paint(figure: Figure, theme: Theme) -> None:
        grid = figure.subplots(len(panels), 1, squeeze=False, gridspec_kw={"height_ratios": heights})
        for axes, panel in zip(grid.flat, panels, strict=True):
            _panel(axes, panel, theme)

    titles = "; ".join(panel.title for panel in panels)
    alt = f"{titles}: thread blocks as columns of steps, arrows for messages and dependencies; faulty steps are filled."
    return picture(paint, alt, WIDTH, height=ROW * sum(heights) + 0.35 * len(panels))


def _panel(axes: Axes, panel: Panel, theme: Theme) -> None:
    axes.set_title(panel.title, fontsize=10, color=theme.ink, loc="left")
    last = max(map(len, panel.steps))
    for block, steps in enumerate(panel.steps):
        axes.text(block, -0.75, panel.blocks[block], ha="center", va="center", fontsize=8.5, color=theme.ink)
        axes.plot([block, block], [0, len(steps) - 1], color=theme.faint, lw=1.5, zorder=0)
        for step, said in enumerate(steps):
            _step(axes, block, step, said, (block, step) in panel.marked, theme)
    for arrows, style in ((panel.messages, "solid"), (panel.waits, (0, (3, 2)))):
        for begin, end in arrows:
            _arrow(axes, begin, end, style, {begin, end} <= panel.marked, theme)
    axes.set(xlim=(-0.55, len(panel.blocks) - 0.45), ylim=(last - 0.4, -1.1))
    axes.set_axis_off()


def _step(axes: Axes, block: int, step: int, said: str, marked: bool, theme: Theme) -> None:
    fill = mark("two_tree").colour if marked else theme.ground
    frame = {"boxstyle": "round,pad=0.25", "facecolor": fill, "edgecolor": theme.ink, "linewidth": 0.8}
    ink = "white" if marked else theme.ink
    axes.text(block, step, said, ha="center", va="center", fontsize=8.5, family="monospace", color=ink, bbox=frame)


def _arrow(axes: Axes, begin: StepPosition, end: StepPosition, style: object, marked: bool, theme: Theme) -> None:
    """From the edge of one box towards the other; arrows between the same columns bend apart."""
    apart = np.sign(end[0] - begin[0]) * 0.22
    look = {
        "arrowstyle": "-|>",
        "connectionstyle": f"arc3,rad={0.12 if begin[1] <= end[1] else -0.12}",
        "linestyle": style,
        "color": mark("two_tree").colour if marked else theme.ink,
        "linewidth": 2.0 if marked else 0.9,
    }
    to, start = (end[0] - apart, end[1]), (begin[0] + apart, begin[1])
    axes.annotate("", to, start, arrowprops=look | {"mutation_scale": 9, "shrinkA": 2, "shrinkB": 2}, zorder=1)

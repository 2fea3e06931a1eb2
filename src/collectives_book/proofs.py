"""A program in MSCCL XML as a picture: a column for each block, who waits for whom, and where the proof fails."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from collectives.core.schedule import ScheduleError
from collectives.figures.style import Picture, Theme, mark, picture
from collectives_interop import msccl
from collectives_interop.program import Program, instruction_text
from collectives_interop.prove import Order, prove

StepPosition = tuple[int, int]  # a block, counted from the left, and a step of it
Arrows = list[tuple[StepPosition, StepPosition]]

# Inches, as in `schedules`: legible on a phone.
WIDTH, ROW = 5.4, 0.42

NAMED = re.compile(r"GPU (\d+), thread block (\d+), step (\d+)")


def verdict(text: str) -> str:
    """Return what is wrong with a program, as ``collectives verify`` says it.

    Empty if it is right.
    """
    try:
        prove(msccl.read(text.encode()))
    except ScheduleError as error:
        return str(error)
    return ""


def marked(text: str) -> set[StepPosition]:
    """Return the steps that the first line of the verdict names, and the one that its table marks."""
    block_of = {
        (block.gpu, block.id): b for b, block in enumerate(msccl.read(text.encode()).blocks)
    }
    head, *table = verdict(text).split("\n")
    named = [tuple(map(int, found)) for found in NAMED.findall(head)]
    for line in table:
        if "<--" in line:
            cells = line.split("<--")[0].split("|")
            column = next(i for i, cell in enumerate(cells) if re.search(r">.*<\s*$", cell))
            gpu, block = map(int, re.findall(r"\d+", table[0].split("|")[column]))
            named.append((gpu, block, int(cells[0])))
    return {(block_of[gpu, block], step) for gpu, block, step in named}


def arrows(program: Program) -> tuple[Arrows, Arrows]:
    """Return who sends to whom, and who must be done before whom."""

    def position(number: int) -> StepPosition:
        return program.block_of[number], program.index(number)

    messages = [
        (position(send), position(receive)) for receive, send in Order(program).sender.items()
    ]
    return messages, [(position(other), position(step)) for step, other in program.waits.items()]


def waiting(programs: Mapping[str, str]) -> Picture:
    """Draw programs below each other, each under its title.

    Where the proof fails, steps are filled; an arrow between two of them is thick.
    """
    read = {title: msccl.read(text.encode()) for title, text in programs.items()}
    heights = [1.2 + max(len(block.steps) for block in program.blocks) for program in read.values()]

    def paint(figure: Figure, theme: Theme) -> None:
        grid = figure.subplots(len(read), 1, squeeze=False, gridspec_kw={"height_ratios": heights})
        for axes, (title, program) in zip(grid.flat, read.items(), strict=True):
            axes.set_title(title, fontsize=10, color=theme.ink, loc="left")
            _panel(axes, program, marked(programs[title]), theme)

    shown = "thread blocks as columns of steps, arrows for messages and dependencies; faulty steps are filled"
    return picture(
        paint, f"{'; '.join(read)}: {shown}.", WIDTH, height=ROW * sum(heights) + 0.35 * len(read)
    )


def _panel(axes: Axes, program: Program, faulty: set[StepPosition], theme: Theme) -> None:
    look: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8.5}
    frame = {"boxstyle": "round,pad=0.25", "edgecolor": theme.ink, "linewidth": 0.8}
    for b, block in enumerate(program.blocks):
        axes.text(b, -0.75, f"GPU {block.gpu}, block {block.id}", color=theme.ink, **look)
        axes.plot([b, b], [0, len(block.steps) - 1], color=theme.faint, lw=1.5, zorder=0)
        for step, instruction in enumerate(block.steps):
            fill, ink = (
                (mark("two_tree").colour, "white")
                if (b, step) in faulty
                else (theme.ground, theme.ink)
            )
            said, box = instruction_text(instruction, block), frame | {"facecolor": fill}
            axes.text(b, step, said, family="monospace", color=ink, bbox=box, **look)
    for some, style in zip(arrows(program), ("solid", (0, (3, 2))), strict=True):
        for begin, end in some:
            _arrow(axes, begin, end, style, {begin, end} <= faulty, theme)
    last = max(len(block.steps) for block in program.blocks)
    axes.set(xlim=(-0.55, len(program.blocks) - 0.45), ylim=(last - 0.4, -1.1))
    axes.set_axis_off()


def _arrow(
    axes: Axes, begin: StepPosition, end: StepPosition, style: object, faulty: bool, theme: Theme
) -> None:
    """From the edge of one box towards the other; arrows between the same columns bend apart."""
    apart = np.sign(end[0] - begin[0]) * 0.22
    look = {
        "arrowstyle": "-|>",
        "connectionstyle": f"arc3,rad={0.12 if begin[1] <= end[1] else -0.12}",
        "linestyle": style,
        "color": mark("two_tree").colour if faulty else theme.ink,
        "linewidth": 2.0 if faulty else 0.9,
    }
    to, start = (end[0] - apart, end[1]), (begin[0] + apart, begin[1])
    axes.annotate(
        "", to, start, arrowprops=look | {"mutation_scale": 9, "shrinkA": 2, "shrinkB": 2}, zorder=1
    )

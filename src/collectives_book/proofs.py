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
    column_of = {}
    for column, block in enumerate(msccl.read(text.encode()).blocks):
        column_of[block.gpu, block.id] = column
    head, *table = verdict(text).split("\n")
    named = []
    for gpu, block, step in NAMED.findall(head):
        named.append((int(gpu), int(block), int(step)))
    for line in table:
        if "<--" in line:
            named += [_marked_in(line, table[0])]
    return {(column_of[gpu, block], step) for gpu, block, step in named}


def _marked_in(line: str, heads: str) -> tuple[int, int, int]:
    """Return GPU, block and step of the cell in a line of the table that is written between > and <."""
    cells = line.partition("<--")[0].split("|")
    (head,) = [
        head
        for head, cell in zip(heads.split("|"), cells, strict=False)
        if re.search(r">.*<\s*$", cell)
    ]
    gpu, block = re.findall(r"\d+", head)
    return int(gpu), int(block), int(cells[0])


def arrows(program: Program) -> tuple[Arrows, Arrows]:
    """Return who sends to whom, and who must be done before whom."""

    def position(number: int) -> StepPosition:
        return program.block_of[number], program.index(number)

    messages = []
    for receive, send in Order(program).sender.items():
        messages.append((position(send), position(receive)))
    waits = []
    for step, earlier in program.waits.items():
        waits.append((position(earlier), position(step)))
    return messages, waits


def waiting(programs: Mapping[str, str]) -> Picture:
    """Draw programs below each other, each under its title.

    Where the proof fails, steps are filled; an arrow between two of them is thick.
    """
    read = {title: msccl.read(text.encode()) for title, text in programs.items()}
    heights = [1.2 + _longest(program) for program in read.values()]

    def paint(figure: Figure, theme: Theme) -> None:
        ratios = {"height_ratios": heights}
        grid = figure.subplots(len(read), 1, squeeze=False, gridspec_kw=ratios)
        for axes, (title, program) in zip(grid.flat, read.items(), strict=True):
            axes.set_title(title, fontsize=10, color=theme.ink, loc="left")
            _panel(axes, program, marked(programs[title]), theme)

    shown = "thread blocks as columns of steps, arrows for messages and dependencies; faulty steps are filled"
    alt = f"{'; '.join(read)}: {shown}."
    height = ROW * sum(heights) + 0.35 * len(read)
    return picture(paint, alt, WIDTH, height)


def _longest(program: Program) -> int:
    return max(len(block.steps) for block in program.blocks)


def _panel(axes: Axes, program: Program, faulty: set[StepPosition], theme: Theme) -> None:
    look: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8.5}
    frame = {"boxstyle": "round,pad=0.25", "edgecolor": theme.ink, "linewidth": 0.8}
    for column, block in enumerate(program.blocks):
        head = f"GPU {block.gpu}, block {block.id}"
        last = len(block.steps) - 1
        axes.text(column, -0.75, head, color=theme.ink, **look)
        axes.plot([column, column], [0, last], color=theme.faint, lw=1.5, zorder=0)
        for step, instruction in enumerate(block.steps):
            fill, ink = theme.ground, theme.ink
            if (column, step) in faulty:
                fill = mark("two_tree").colour
                ink = "white"
            text = instruction_text(instruction, block)
            box = frame | {"facecolor": fill}
            axes.text(column, step, text, family="monospace", color=ink, bbox=box, **look)
    messages, waits = arrows(program)
    for begin, end in messages:
        _arrow(axes, begin, end, "solid", {begin, end} <= faulty, theme)
    for begin, end in waits:
        _arrow(axes, begin, end, (0, (3, 2)), {begin, end} <= faulty, theme)
    right = len(program.blocks) - 0.45
    bottom = _longest(program) - 0.4
    axes.set(xlim=(-0.55, right), ylim=(bottom, -1.1))
    axes.set_axis_off()


def _arrow(
    axes: Axes,
    begin: StepPosition,
    end: StepPosition,
    style: object,
    faulty: bool,
    theme: Theme,
) -> None:
    """From the edge of one box towards the other; arrows between the same columns bend apart."""
    apart = np.sign(end[0] - begin[0]) * 0.22
    bend = 0.12 if begin[1] <= end[1] else -0.12
    look = {
        "arrowstyle": "-|>",
        "connectionstyle": f"arc3,rad={bend}",
        "linestyle": style,
        "color": mark("two_tree").colour if faulty else theme.ink,
        "linewidth": 2.0 if faulty else 0.9,
        "mutation_scale": 9,
        "shrinkA": 2,
        "shrinkB": 2,
    }
    target = end[0] - apart, end[1]
    start = begin[0] + apart, begin[1]
    axes.annotate("", target, start, arrowprops=look, zorder=1)

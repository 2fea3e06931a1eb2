"""A program in MSCCL XML as a panel of a picture: who waits for whom, and where the proof fails."""

import re

from collectives.formats import msccl
from collectives.formats.order import Order
from collectives.formats.program import Program
from collectives.formats.prove import prove
from collectives.formats.table import shown
from collectives.schedule import ScheduleError
from collectives_book.figures.programs import Panel, Place

NAMED = re.compile(r"GPU (\d+), thread block (\d+), step (\d+)")


def verdict(text: str) -> str:
    """What is wrong with a program, as ``collectives verify`` says it; empty if it is right."""
    try:
        prove(msccl.program(text.encode()))
    except ScheduleError as error:
        return str(error)
    return ""


def panel(text: str, title: str) -> Panel:
    """The program of a text, with the steps marked that the verdict names."""
    program = msccl.program(text.encode())

    def place(number: int) -> Place:
        return program.block_of[number], program.index(number)

    return Panel(
        title,
        [f"GPU {block.gpu}, block {block.id}" for block in program.blocks],
        [[shown(step, block) for step in block.steps] for block in program.blocks],
        [(place(send), place(receive)) for receive, send in Order(program).sender.items()],
        [(place(other), place(step)) for step, other in program.waits.items()],
        frozenset(_marked(program, verdict(text))),
    )


def _marked(program: Program, said: str) -> set[Place]:
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

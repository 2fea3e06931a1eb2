"""One run of a program, in one order of its steps, on cells that hold values of any kind."""

from collections.abc import Callable, Iterator
from functools import partial, reduce
from typing import TypeVar

from collectives.formats.layout import Layout
from collectives.formats.order import Order
from collectives.formats.program import Place, Program

T = TypeVar("T")


def replay(
    program: Program,
    order: Order,
    layout: Layout,
    cells: list[T],
    add: Callable[[int, T, T], T],
    receive: Callable[[int], object] | None = None,
) -> Iterator[tuple[int, range, list[T]]]:
    """Run all steps on the cells; after each one: its number, the cells that it wrote, and what it wrote or sent.

    ``add`` gets a step's number and two summands; ``receive`` the number of a step that gets a message, before it uses
    it.
    """
    sent: dict[int, list[T]] = {}
    for gpu, i, o in program.copies:
        source, target = layout.cells(gpu, Place("i", i), 1)[0], layout.cells(gpu, Place("o", o), 1)[0]
        cells[target] = cells[source]
    for number in order.steps:
        step, gpu = program.steps[number], program.gpu_of(number)
        summands = [sent.pop(order.sender[number])] if number in order.sender else []
        if summands and receive:
            receive(number)
        if step.kind.reads:
            summands.append([cells[cell] for cell in layout.cells(gpu, step.src, step.chunks)])
        written = layout.cells(gpu, step.dst, step.chunks) if step.kind.stores else range(0)
        if step.kind.accumulates:
            summands.append([cells[cell] for cell in written])
        total = [reduce(partial(add, number), each) for each in zip(*summands, strict=True)]
        for cell, value in zip(written, total, strict=False):
            cells[cell] = value
        if step.kind.sends:
            sent[number] = total
        yield number, written, total

"""What the thread blocks of one GPU do, as a table with one step marked; and the error that shows it."""

from collectives.formats.program import KINDS, Block, Program, Step
from collectives.schedule import ScheduleError

MOST_BLOCKS, MOST_STEPS = 5, 9


def wrong(program: Program, step: int, what: str, note: str) -> ScheduleError:
    """The verdict on a wrong program, with the table of the GPU around this step."""
    return ScheduleError(f"{what}\n{table(program, step, note)}")


def table(program: Program, marked: int, note: str) -> str:
    """One line per step, one column per thread block, around the marked step.

    ``rrc i2<3`` reads: receive from GPU 3 and add into input cell 2; ``s o4>1``: send output cell 4 to GPU 1;
    ``re i0+=s8``; ``cpy o1=i0``; ``(x4)``: four cells from there on; ``^5.1``: after step 1 of thread block 5.
    """
    block, at = program.block_of[marked], program.index(marked)
    own = [b for b, each in enumerate(program.blocks) if each.gpu == program.blocks[block].gpu]
    blocks = _window(own, own.index(block), MOST_BLOCKS)
    steps = _window(list(range(max(len(program.blocks[b].steps) for b in blocks))), at, MOST_STEPS)
    lines = [["step", *(f"GPU {program.blocks[b].gpu} block {program.blocks[b].id}" for b in blocks)]]
    for t in steps:
        cells = [_cell(program, b, t) for b in blocks]
        if t == at:
            cells[blocks.index(block)] = f">{cells[blocks.index(block)]}<"
        lines.append([f"{t:4}", *cells])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    texts = [" | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    texts[1 + steps.index(at)] += f"   <-- {note}"
    return "\n".join(texts)


def _window(values: list[int], centre: int, most: int) -> list[int]:
    start = max(0, min(centre - most // 2, len(values) - most))
    return values[start : start + most]


def _cell(program: Program, b: int, t: int) -> str:
    block = program.blocks[b]
    if t >= len(block.steps):
        return ""
    waits = program.waits.get(program.first[b] + t)
    after = f"^{program.blocks[program.block_of[waits]].id}.{program.index(waits)} " if waits is not None else ""
    return after + shown(block.steps[t], block)


def shown(step: Step, block: Block) -> str:
    """One step as text."""
    kind = KINDS[step.name]
    if step.name == "nop":
        return "nop"
    place = str(step.dst if kind.stores else step.src)
    if step.name in ("cpy", "re"):
        place += f"{'+=' if kind.accumulates else '='}{step.src}"
    elif kind.stores and kind.reads and step.src != step.dst:
        place += f"={step.src}+"
    peers = (f"<{block.receive}" if kind.receives else "") + (f">{block.send}" if kind.sends else "")
    return f"{step.name} {place}{peers}" + (f"(x{step.chunks})" if step.chunks > 1 else "")

"""A schedule as text: one line per step, one column per rank, what each rank receives.

``+2<0`` reads: chunk 2 from rank 0 is added; ``=2<0``: it replaces what was there; ``+0<1,2``: from ranks 1 and 2;
``+0<1(x3)``: in three rows. Steps run downwards here, as a terminal does.
"""

from collections import Counter, defaultdict

from collectives.schedule import Schedule, Step, run, sign

MOST_STEPS, MOST_RANKS, LONGEST_CELL = 24, 12, 160


def grid(schedule: Schedule, mark: tuple[int, int, str] | None = None) -> str:
    """The schedule as a table of what every rank receives in every step.

    ``mark = (step, rank, note)`` points at one cell. Of a large schedule only a window is shown, around the mark.

    >>> from collectives.algorithms import ALGORITHMS
    >>> print(grid(ALGORITHMS["all_reduce", "ring"](3)))
    step | rank 0 | rank 1 | rank 2
       0 | +1<2   | +2<0   | +0<1
       1 | +0<2   | +1<0   | +2<1
       2 | =2<2   | =0<0   | =1<1
       3 | =1<2   | =2<0   | =0<1
    """
    at_step, at_rank, note = mark or (0, 0, "")
    ranks = _window(schedule.p, at_rank, MOST_RANKS)
    steps = _window(schedule.nsteps, at_step, MOST_STEPS)
    lines = [["step", *(f"rank {r}" for r in ranks)]]
    for t in steps:
        received = _received(schedule.step(t))
        cells = [received.get(r, "") for r in ranks]
        if mark and t == at_step and at_rank in ranks:
            cells[ranks.index(at_rank)] = f">{cells[ranks.index(at_rank)] or '?'}<"
        lines.append([f"{t:4}", *cells])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    texts = [" | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    if mark and at_step in steps:
        texts[1 + steps.index(at_step)] += f"   <-- {note}"
    return "\n".join(texts + _left_out(schedule, steps, ranks))


def _window(length: int, centre: int, most: int) -> range:
    start = max(0, min(centre - most // 2, length - most))
    return range(start, min(length, start + most))


def _received(step: Step) -> dict[int, str]:
    """What each rank receives, by row and not by message, because a fault is in a row.

    Rows that differ only in their source are written together.
    """
    sources: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    rows = zip(*(getattr(step, name).tolist() for name in Step.__slots__), strict=True)
    for src, dst, chunk, count, add in rows:
        sources[dst][sign(add) + run(chunk, count)].append(src)
    return {
        dst: _short(" ".join(f"{what}<{_from(src)}" for what, src in into.items())) for dst, into in sources.items()
    }


def _from(sources: list[int]) -> str:
    """The ranks that rows come from, each once: ``1,2``, or ``1(x3)`` for three rows."""
    return ",".join(f"{src}(x{rows})" if rows > 1 else str(src) for src, rows in sorted(Counter(sources).items()))


def _short(cell: str) -> str:
    return cell if len(cell) <= LONGEST_CELL else f"{cell[: LONGEST_CELL - 1]}…"


def _left_out(schedule: Schedule, steps: range, ranks: range) -> list[str]:
    hidden_steps, hidden_ranks = schedule.nsteps - len(steps), schedule.p - len(ranks)
    if not hidden_steps and not hidden_ranks:
        return []
    return [f"({hidden_steps} more steps and {hidden_ranks} more ranks are not shown)"]

"""One rank's program as arrays, for the compiled loop: tasks, instructions, spans, and which tasks follow which."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from collectives.backends.p2p.program import Average, Flat, Instruction, Recv, Reduce, Send, Span, Task
from collectives.schedule import Ints

# Kinds of instructions.
SEND, RECV, WAIT, REDUCE, AVERAGE = range(5)
# Columns of a task: its first instruction, its first follower, and after how many tasks it comes.
START, FOLLOWER, TIES = range(3)
# Columns of an instruction: its spans are those from FIRST up to LAST; a wait has in FIRST what may be missing.
KIND, NUMBER, PEER, STEP, FIRST, LAST = range(6)
# Columns of a span, in elements.
BEGIN, END, SCRATCH = range(3)


def flatten(program: tuple[Task, ...], ties: tuple[int, ...], followers: tuple[tuple[int, ...], ...]) -> Flat:
    """The program as arrays: a row for each task, and one behind the last; for each instruction; for each span.

    ``ties`` and ``followers`` are those of a `Plan`.

    >>> from collectives.backends.p2p.program import Wait
    >>> task = Task((Send(0, 1, 2, (Span(4, 8),)), Wait(0)), ())
    >>> flatten((task,), (0,), ((),)).instructions.tolist()
    [[0, 0, 1, 2, 0, 1], [2, 0, 0, 0, 0, 0]]
    """
    rows, spans = list[tuple[int, ...]](), list[Span]()
    instructions = [do for task in program for do in task.instructions]
    for do in instructions:
        rows.append(_row(do, len(spans)))
        spans += _spans(do)
    starts = accumulate((len(task.instructions) for task in program), initial=0)
    behind = accumulate(map(len, followers), initial=0)
    sends = [do for do in instructions if isinstance(do, Send)]
    return Flat(
        _table(list(zip(starts, behind, (*ties, 0), strict=True)), 3),
        np.array([follower for each in followers for follower in each], dtype=np.int64),
        _table(rows, 6),
        _table(spans, 3),
        sum(row[KIND] in (SEND, RECV) for row in rows),
        max((sum(span.stop - span.start for span in send.spans) for send in sends), default=0),
    )


def _table(rows: Sequence[tuple[int, ...]], columns: int) -> Ints:
    return np.array(rows, dtype=np.int64).reshape(-1, columns)


def _row(do: Instruction, first: int) -> tuple[int, ...]:
    last = first + len(_spans(do))
    if isinstance(do, Send):
        return SEND, do.number, do.peer, do.step, first, last
    if isinstance(do, Recv):
        return RECV, do.number, do.peer, do.step, first, last
    if isinstance(do, Reduce):
        return REDUCE, 0, 0, 0, first, last
    if isinstance(do, Average):
        return AVERAGE, 0, 0, 0, first, last
    return WAIT, do.number, 0, 0, do.missing, do.missing


def _spans(do: Instruction) -> tuple[Span, ...]:
    if isinstance(do, Send):
        return do.spans
    if isinstance(do, Recv):
        return (do.into,)
    if isinstance(do, Reduce):
        return do.into, *do.operands
    return (do.span,) if isinstance(do, Average) else ()

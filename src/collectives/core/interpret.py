"""Run a step on arrays: the one loop that moves data of any kind.

The state is an array of shape (participants, k, …): what each rank and switch holds of each chunk.
Counts, fingerprints, numbers and even strings move by the same rule, so what is proved of one is
what happens to the other.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collectives.core.schedule import Ints, Schedule, ScheduleError, Step

State = NDArray[Any]
Combine = Callable[[Any, Any], Any]


def apply(step: Step, state: State, combine: Combine = np.add) -> None:
    """Run one step, in place: read everything, then write.

    ``state`` has shape (participants, k, …) and any dtype. Equals the plain program, for every row
    and chunk ``c``::

        moved = state.copy()
        state[dst, c] = moved[src, c]                           # where the row replaces
        state[dst, c] = combine(state[dst, c], moved[src, c])   # where it adds

    but several adds into one cell are reduced in rank order, the destination's own value in its
    place, so that every rank computes the same bits. Raises ScheduleError if a cell is replaced and
    written again in the same step.

    >>> state = np.array([["a"], ["b"], ["c"]], dtype=object)
    >>> apply(Step(src=[0, 2], dst=1, chunk=0, add=True), state)
    >>> state.ravel().tolist()
    ['a', 'abc', 'c']
    """
    row, chunk = step.cells()
    src, dst, add = step.src[row], step.dst[row], step.add[row]
    cell = dst * state.shape[1] + chunk
    moved = state[src, chunk]
    if _are_distinct(cell):
        _write(state, dst, chunk, add, moved, combine)
        return
    _check_no_conflict(cell, add, state.shape[1])
    state[dst[~add], chunk[~add]] = moved[~add]
    if add.any():
        _reduce(state, cell[add], src[add], moved[add], combine)


def _are_distinct(cell: Ints) -> bool:
    ordered = np.sort(cell)
    return bool((ordered[1:] != ordered[:-1]).all())


def _write(
    state: State, dst: Ints, chunk: Ints, add: NDArray[np.bool_], moved: State, combine: Combine
) -> None:
    """Write what was moved into cells of which each is written once, so that neither order nor conflicts matter."""
    if not add.any():
        state[dst, chunk] = moved
    elif add.all():
        state[dst, chunk] = combine(state[dst, chunk], moved)
    else:
        state[dst[~add], chunk[~add]] = moved[~add]
        into = dst[add], chunk[add]
        state[into] = combine(state[into], moved[add])


def _check_no_conflict(cell: Ints, add: NDArray[np.bool_], k: int) -> None:
    if add.all():
        return
    cells, times = np.unique(cell, return_counts=True)
    clash = np.intersect1d(cells[times > 1], cell[~add])
    if clash.size:
        raise ScheduleError(
            f"chunk {clash[0] % k} of rank {clash[0] // k} is replaced and written again in the same step"
        )


def _reduce(state: State, cell: Ints, src: Ints, moved: State, combine: Combine) -> None:
    """Reduce the received values into their cells, each cell's operands in rank order."""
    target, group = np.unique(cell, return_inverse=True)
    into = np.divmod(target, state.shape[1])
    group = np.concatenate([np.arange(len(target)), group])
    order = np.lexsort((np.concatenate([into[0], src]), group))
    operands = np.concatenate([state[into], moved])[order]
    starts = np.searchsorted(group[order], np.arange(len(target)))
    sizes = np.diff(starts, append=len(order))
    total = operands[starts]
    for i in range(1, int(sizes.max())):
        more = np.flatnonzero(sizes > i)
        total[more] = combine(total[more], operands[starts[more] + i])
    state[into] = total


def run(schedule: Schedule, state: State, combine: Combine = np.add) -> State:
    """Run all steps on a state, in place, and return it: ``for step in schedule.steps(): apply(step, state, combine)``.

    ``state`` has shape (participants, k, …) and any dtype. A switch begins with what changes no
    sum, such as 0. Raises ScheduleError as `apply` does. Cost: a copy of what each step moves.

    >>> swap = Schedule("all_reduce", p=2, k=1, nsteps=1, make=lambda t: Step([0, 1], [1, 0], 0, add=True))
    >>> run(swap, np.array([[3.0], [4.0]])).ravel().tolist()
    [7.0, 7.0]
    """
    for step in schedule.steps():
        apply(step, state, combine)
    return state

"""The tasks that are ready, compiled: a binary heap, the first in the program on top."""

from collectives.backends.p2p.loop.state import READIES, READY, LoopState
from collectives.compiled import compiled


@compiled
def push(state: LoopState, task: int) -> None:
    """Add a task; each comes before the two below it."""
    at, heap = state.numbers[READIES], state.tasks
    state.numbers[READIES] += 1
    while at and task < heap[(at - 1) // 2, READY]:
        heap[at, READY] = heap[(at - 1) // 2, READY]
        at = (at - 1) // 2
    heap[at, READY] = task


@compiled
def pop(state: LoopState) -> int:
    """Remove the first task; the last one takes its place and sinks."""
    heap = state.tasks
    first = heap[0, READY]
    state.numbers[READIES] -= 1
    count, at, below = state.numbers[READIES], 0, 1
    last = heap[count, READY]
    while below < count:
        if below + 1 < count and heap[below + 1, READY] < heap[below, READY]:
            below += 1
        if last < heap[below, READY]:
            break
        heap[at, READY] = heap[below, READY]
        at, below = below, 2 * below + 1
    heap[at, READY] = last
    return int(first)

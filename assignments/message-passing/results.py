"""What each rank has to hold after a collective, what it cannot have itself, and whether it was left in its buffer."""

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collectives_course.verdict import Failed
from collectives_course.world import RunResult


def _chunks(n: int, p: int) -> list[slice]:
    ends = np.cumsum([0, *map(len, np.array_split(np.arange(n), p))]).tolist()
    return [slice(start, end) for start, end in pairwise(ends)]


def parts_of(call: str, ranks: list[int], n: int) -> dict[int, slice]:
    """The part of its buffer that a rank has to have right afterwards.

    The rest may hold anything.
    """
    if call == "scatter":
        return dict(zip(ranks, _chunks(n, len(ranks)), strict=True))
    return {rank: slice(0, n if call != "gather" or rank == ranks[0] else 0) for rank in ranks}


def result_of(call: str, ranks: list[int], buffers: list[NDArray[Any]]) -> NDArray[Any]:
    """What the collective brings together: the root's buffer, or every rank's chunk."""
    if call in ("broadcast", "scatter"):
        return buffers[ranks[0]]
    chunks = _chunks(len(buffers[0]), len(ranks))
    return np.concatenate([buffers[rank][chunk] for rank, chunk in zip(ranks, chunks, strict=True)])


def from_others(call: str, ranks: list[int], n: int) -> dict[int, int]:
    """Elements that a rank cannot have itself, so that messages have to bring them."""
    chunks = dict(zip(ranks, _chunks(n, len(ranks)), strict=True))
    own = {rank: chunk.stop - chunk.start for rank, chunk in chunks.items()}
    if call in ("broadcast", "scatter"):
        own = {rank: n if rank == ranks[0] else 0 for rank in ranks}
    return {
        rank: part.stop - part.start - own[rank] for rank, part in parts_of(call, ranks, n).items()
    }


def expected_of(found: Any, right: NDArray[Any], part: slice) -> NDArray[Any]:
    """What a rank found, with the right result in this part."""
    if found is None or found.shape != right.shape:
        return right
    wanted: NDArray[Any] = found.copy()
    wanted[part] = right[part]
    return wanted


def need_in_place(
    played: RunResult, given: list[NDArray[Any]], expected: list[NDArray[Any]], what: str
) -> None:
    """Raise Failed, with the reason, where a rank returns its result and leaves its buffer as it was."""
    for rank, (value, (after,), before, wanted) in enumerate(
        zip(played.values, played.arguments, given, expected, strict=True)
    ):
        if (
            isinstance(value, np.ndarray)
            and np.array_equal(after, before)
            and not np.array_equal(before, wanted)
        ):
            raise Failed(
                f"{what}: rank {rank} returned an array, but its buffer is unchanged: what a function returns is "
                "ignored, so write into the buffer, as buffer[:] = ... does"
            )


def bytes_received(played: RunResult, rank: int) -> int:
    """Bytes that have reached a rank."""
    return sum(message.bytes for message in played.sent if message.dst == rank)

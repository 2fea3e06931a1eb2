"""What criteria share: data that differ for every rank and element, and comparisons whose messages teach."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collectives_course.criterion import Submission
from collectives_course.messages import Played
from collectives_course.verdict import Failed


def random_buffers(submission: Submission, p: int, n: int) -> list[NDArray[np.float64]]:
    """A buffer of n whole numbers for each rank, as float64: sums are exact in any order, and no two are alike."""
    values = submission.random.permutation(max(1, p * n) * 4)[: p * n].astype(np.float64)
    return list(values.reshape(p, n))


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Within it an error is the fault of the value that the submission returned: raises Failed. ``what`` names it."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise Failed(f"{what}: the value returned cannot be read: {type(error).__name__}: {error}") from None


def need_equal(played: Played, expected: Sequence[NDArray[Any]], what: str, argument: int = 0) -> None:
    """Raise Failed unless this argument of every rank is as expected now; names the first wrong rank and element."""
    for rank, (after, wanted) in enumerate(zip(played.arguments, expected, strict=True)):
        found = after[argument]
        if found is None or found.shape != wanted.shape:
            raise Failed(f"{what}: rank {rank} has {_shape(found)}, expected {_shape(wanted)}")
        wrong = np.flatnonzero(~np.isclose(found, wanted, rtol=1e-12, atol=0))
        if wrong.size:
            raise Failed(f"{what}: rank {rank}, {_difference(found, wanted, wrong)}")


def all_equal(played: Played, what: str, argument: int = 0) -> None:
    """Raise Failed unless this argument has the same bits on all ranks."""
    first = played.arguments[0][argument]
    for rank, after in enumerate(played.arguments):
        if after[argument].tobytes() != first.tobytes():
            wrong = np.flatnonzero(after[argument] != first)
            raise Failed(f"{what}: ranks 0 and {rank} differ, {_difference(after[argument], first, wrong)}")


def _difference(found: NDArray[Any], wanted: NDArray[Any], wrong: NDArray[Any]) -> str:
    at = int(wrong[0]) if wrong.size else 0
    more = f"; {wrong.size} of {wanted.size} elements differ" if wrong.size > 1 else ""
    return f"element {at}: got {found.ravel()[at]}, expected {wanted.ravel()[at]}{more}"


def _shape(array: Any) -> str:
    return f"an array of shape {array.shape}" if array is not None else "no array"

"""The data of a measurement: what each rank contributes, and what it must have at the end, without any schedule.

The data are whole numbers hashed from (rank, element), small enough that every result is exact.
Ones would not show a chunk that landed in the wrong place, and equal ranks would not show one
counted twice while another is dropped.
"""

from collections.abc import Callable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from collectives.core.schedule import Ints

T = TypeVar("T")

MAX_VALUE = 999

# The ranks that multiply by 2 in one element, at most, so that a product stays exact in every
# dtype.
DOUBLERS = 8

# Elements that are reduced at a time: the processor's cache holds them.
BLOCK = 1 << 14


def values(rank: int, n: int, op: str, p: int, exact: int, first: int = 0) -> Ints:
    """Return rank ``rank``'s contribution: ``n`` whole numbers whose reduction over ``p`` ranks is at most ``exact``.

    They are those from element ``first`` on. ``op`` is the reduction.

    >>> values(0, 4, "sum", p=4, exact=2**24).tolist() != values(1, 4, "sum", p=4, exact=2**24).tolist()
    True
    """
    bits = _hashed(rank, first, n)
    if op == "prod":
        turn = (rank + np.arange(first, first + n)) % p
        doubles = (bits >> np.uint64(1) & np.uint64(1) == 1) & (turn < DOUBLERS)
        return np.where(bits & np.uint64(1), 1, -1) * np.where(doubles, 2, 1)
    bound = min(MAX_VALUE, exact if op in ("max", "min") else exact // p)
    return (bits % np.uint64(2 * bound + 1)).astype(np.int64) - bound


def reduced(n: int, op: str, p: int, exact: int, first: int = 0) -> Ints:
    """Return the reduction of all ranks' values, computed without the code under test.

    For "avg" the sum.

    It has ``n`` elements, from ``first`` on.
    """
    combine: dict[str, Callable[[Ints, Ints], Ints]] = {
        "prod": np.multiply,
        "max": np.maximum,
        "min": np.minimum,
    }
    total = np.empty(n, dtype=np.int64)
    for start in range(0, n, BLOCK):
        block = total[start : start + BLOCK]
        block[:] = values(0, len(block), op, p, exact, first + start)
        for rank in range(1, p):
            block[:] = combine.get(op, np.add)(
                block, values(rank, len(block), op, p, exact, first + start)
            )
    return total


def share(
    collective: str,
    n: int,
    rank: int,
    p: int,
    root: int,
    given: Callable[[int, int, int], T],
    total: Callable[[int, int], T],
    join: Callable[..., T],
) -> tuple[T | None, T | None]:
    """Return a rank's input and what it must have at the end, computed without any schedule.

    None if it has none.

    The whole buffer has ``n`` elements, a multiple of ``p`` where it consists of parts. ``given(of,
    length, first)`` is what rank ``of`` contributes from element ``first`` on, ``total(length,
    first)`` the reduction of what all ranks contribute; all ranks call that alike. ``join``
    concatenates.
    """
    part, at_root = n // p, rank == root
    match collective:
        case "all_reduce":
            return given(rank, n, 0), total(n, 0)
        case "reduce":
            reduced = total(n, 0)
            return given(rank, n, 0), reduced if at_root else None
        case "broadcast":
            return given(rank, n, 0), given(root, n, 0)
        case "scatter":
            return given(rank, n, 0) if at_root else None, given(root, part, rank * part)
        case "gather":
            return given(rank, part, 0), join(
                [given(of, part, 0) for of in range(p)]
            ) if at_root else None
        case "all_gather":
            return given(rank, part, 0), join([given(of, part, 0) for of in range(p)])
        case "all_to_all":
            return given(rank, n, 0), join([given(of, part, rank * part) for of in range(p)])
        case _:  # reduce_scatter
            return given(rank, n, 0), total(part, rank * part)


def _hashed(rank: int, first: int, n: int) -> NDArray[np.uint64]:
    """Return 64 well-mixed bits for every element (splitmix64: Steele, Lea and Flood 2014)."""
    x = np.arange(first + 1, first + n + 1, dtype=np.uint64) + np.uint64((rank + 1) << 40)
    x *= np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))

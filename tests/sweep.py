"""Numbers of ranks in two parts: a few for `make unit`, and all others for `make test-all`."""

from collections.abc import Iterable
from typing import Any

import pytest

# One rank, powers of two, primes, and numbers that are neither.
FEW = (1, 2, 3, 4, 5, 6, 7, 8, 12, 13, 16)


def sweep(ranks: Iterable[int]) -> list[Any]:
    """Two parameters, each a list of numbers of ranks: the few and the others."""
    numbers = list(ranks)
    few, others = [p for p in numbers if p in FEW], [p for p in numbers if p not in FEW]
    return [pytest.param(few, id="few"), pytest.param(others, id="others", marks=pytest.mark.extended)]


def each(ranks: Iterable[int], few: Iterable[int] = FEW) -> list[Any]:
    """A parameter for each number of ranks."""
    return [pytest.param(p, marks=() if p in few else pytest.mark.extended) for p in ranks]

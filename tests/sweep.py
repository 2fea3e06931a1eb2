"""Parameters in two parts: a few for every tier, and all others for `make test-all`."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest

# One rank, powers of two, primes, and numbers that are neither.
FEW = (1, 2, 3, 4, 5, 6, 7, 8, 12, 13, 16)


def sweep(ranks: Iterable[int]) -> list[Any]:
    """Two parameters, each a list of numbers of ranks: the few and the others."""
    numbers = list(ranks)
    few, others = [p for p in numbers if p in FEW], [p for p in numbers if p not in FEW]
    return [
        pytest.param(few, id="few"),
        pytest.param(others, id="others", marks=pytest.mark.extended),
    ]


def each(values: Iterable[Any], few: Collection[Any]) -> list[Any]:
    """A parameter for each value, or as many as a tuple has."""
    marked = [(value, () if value in few else pytest.mark.extended) for value in values]
    return [
        pytest.param(*(value if isinstance(value, tuple) else [value]), marks=marks)
        for value, marks in marked
    ]

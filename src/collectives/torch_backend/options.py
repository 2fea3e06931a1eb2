"""Which algorithm a process group's collectives take."""

from __future__ import annotations

import os
from dataclasses import dataclass

from collectives.algorithms import ALGORITHMS, executable

VARIABLE = "COLLECTIVES_ALGORITHM"
AUTO = "auto"
NAMES = tuple(sorted({name for _, name in executable()}))


@dataclass(frozen=True)
class Options:
    """An algorithm for all collectives that have one of that name; the others take "auto".

    ``segments`` says into how many pieces a pipelined algorithm cuts its buffer, by default from the size. Raises
    ValueError for a name that no collective has, and for one that ranks cannot execute.
    """

    algorithm: str = AUTO
    segments: int | None = None

    def __post_init__(self) -> None:
        if self.algorithm not in (AUTO, *NAMES):
            raise ValueError(f"algorithm: got {self.algorithm!r}, expected {AUTO} or one of {', '.join(NAMES)}")

    def of(self, collective: str, splits: bool = False) -> str:
        """The algorithm of a collective; an all-to-all with split sizes takes those alone that can do it.

        >>> [Options("bruck").of("all_to_all", splits) for splits in (False, True)], Options("ring").of("broadcast")
        (['bruck', 'auto'], 'auto')
        """
        known = ALGORITHMS.get((collective, self.algorithm))
        return AUTO if known is None or (splits and not known.splits) else self.algorithm


def from_environment() -> Options:
    """What COLLECTIVES_ALGORITHM says. Raises ValueError, which names the variable, for an unknown algorithm."""
    try:
        return Options(os.environ.get(VARIABLE) or AUTO)
    except ValueError as error:
        raise ValueError(f"{VARIABLE}: {error}") from None

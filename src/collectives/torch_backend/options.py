"""Choose the algorithm of each collective in a process group."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache

from collectives.algorithms import ALGORITHMS, executable, is_for_links, is_own, machine_of
from collectives.algorithms.from_file import own
from collectives.machine import machine
from collectives.renamed import current_name

VARIABLE = "COLLECTIVES_ALGORITHM"
AUTO = "auto"
NAMES = tuple(sorted({name for _, name in executable()}))


@dataclass(frozen=True)
class Options:
    """An algorithm for all collectives that have one of that name; the others take "auto".

    It may be one of your own, as ``file.py:function`` or ``file.xml``: that of the collective that
    its schedule is for; or trees packed into the links of a machine, ``packed_trees@dgx1``.
    ``segments`` says into how many pieces a pipelined algorithm cuts its buffer, by default from
    the size. Raises ValueError for a name that no collective has, and for
    one that ranks cannot execute.
    """

    algorithm: str = AUTO
    segments: int | None = None

    def __post_init__(self) -> None:
        if is_own(str(self.algorithm)):
            own(self.algorithm)  # raises where there is none
        elif is_for_links(str(self.algorithm)):
            machine(machine_of(self.algorithm))  # the same
        elif current_name(str(self.algorithm)) not in (AUTO, *NAMES):
            raise ValueError(
                f"algorithm: got {self.algorithm!r}, expected {AUTO} or one of {', '.join(NAMES)}, "
                "or one of your own as FILE.py:FUNCTION or FILE.xml"
            )

    def of(self, collective: str, p: int, splits: bool = False) -> str:
        """Return the algorithm of a collective on p ranks.

        ``splits`` says that it is an all-to-all with split sizes, which not every algorithm can do.

        >>> [Options("bruck").of("all_to_all", 4, splits) for splits in (False, True)]
        ['bruck', 'auto']
        >>> Options("ring").of("broadcast", 4)
        'auto'
        """
        name = current_name(self.algorithm)
        if is_own(name):
            return name if not splits and _collective(name, p) == collective else AUTO
        if is_for_links(name):
            from collectives.topology.trees import COLLECTIVES  # needs scipy

            return name if not splits and collective in COLLECTIVES else AUTO
        known = ALGORITHMS.get((collective, name))
        return AUTO if known is None or (splits and not known.splits) else name


@lru_cache
def _collective(algorithm: str, p: int) -> str:
    """Return the collective that the schedule of your own is for."""
    return own(algorithm)(p).collective


def from_environment() -> Options:
    """Return the options that COLLECTIVES_ALGORITHM names.

    Raises ValueError, which names it, for an unknown one.
    """
    try:
        return Options(os.environ.get(VARIABLE) or AUTO)
    except ValueError as error:
        raise ValueError(f"{VARIABLE}: {error}") from None

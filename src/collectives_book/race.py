"""A race for a page: algorithms for one collective, as a machine would carry their messages."""

from collections.abc import Sequence

from collectives.algorithms import build
from collectives.machine import machine
from collectives.simulator.trace import flights
from collectives_book.figures.race import Lane, Race


def race(
    collective: str, algorithms: Sequence[str], p: int, *, on: str, nbytes: int, name: str, autoplay: bool = False
) -> Race:
    """Algorithms side by side on ``p`` ranks of the machine ``on``, a preset or a YAML file; ``name`` is the id.

    With ``autoplay`` it plays once when it comes into view, unless the reader asked for no motion. Raises ValueError
    like `build` and `machine`.

    >>> [round(lane.seconds * 1e6) for lane in race(
    ...     "all_reduce", ["ring", "two_tree"], 16, on="ethernet", nbytes=8, name="hook").lanes]
    [900, 270]
    """
    return Race(tuple(_lane(collective, each, p, on, nbytes) for each in algorithms), nbytes, name, autoplay)


def _lane(collective: str, algorithm: str, p: int, on: str, nbytes: int) -> Lane:
    schedule = build(collective, algorithm, p)
    return Lane(algorithm, schedule, flights(schedule, machine(on), nbytes, algorithm))

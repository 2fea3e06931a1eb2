"""Simulated times as rows: many cases of collective, algorithm, ranks, bytes and machine, on all cores.

And the fastest algorithm for each machine, number of ranks and size, without simulating what cannot
win.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from collectives.algorithms import build, is_own, takes
from collectives.core.bounds import algbw, busbw
from collectives.core.schedule import Schedule
from collectives.machine import Machine
from collectives.processes import workers
from collectives.simulator.simulation import Simulation, simulate
from collectives.units import duration, format_bytes

Row = dict[str, Any]
T = TypeVar("T")
R = TypeVar("R")


class Case(NamedTuple):
    """One simulation of ``bytes`` bytes.

    ``segments`` of None takes the number with the shortest time (`segmented`).
    """

    collective: str
    algorithm: str
    ranks: int
    bytes: int
    machine: Machine
    segments: int | None = None
    root: int | None = None


def row(case: Case) -> Row:
    """Simulate one case: a row with seconds, GB/s, messages and bytes.

    Raises ValueError as `simulate` does.

    >>> from collectives.machine import machine
    >>> row(Case("all_reduce", "ring", 4, 100_000_000, machine("textbook")))["seconds"]
    0.00603
    """
    segments, result = segmented(case)
    where, busy = result.busiest
    return {
        "collective": case.collective,
        "algorithm": case.algorithm,
        "machine": case.machine.name,
        "ranks": case.ranks,
        "bytes": case.bytes,
        "segments": segments,
        "seconds": float(f"{result.seconds:.9g}"),
        "algbw": algbw(case.bytes, result.seconds),
        "busbw": busbw(case.collective, case.ranks, case.bytes, result.seconds),
        "messages": result.messages,
        "bytes_by_link": result.bytes,
        "busiest_link": where,
        "busy_seconds": float(f"{busy:.9g}"),
    }


def segmented(case: Case) -> tuple[int, Simulation]:
    """Find the best of 1, 2, 4, … segments, and its simulation.

    Double them while the time falls by at least 1 %.

    An algorithm that takes no segments has 1; a case that says its number has that one.
    """
    segments, best = case.segments or 1, _simulated(case, case.segments or 1)
    while not case.segments and best.seconds and _has_segments(case) and 4 * segments <= case.bytes:
        other = _simulated(case, 2 * segments)
        if other.seconds > 0.99 * best.seconds:
            break
        segments, best = 2 * segments, other
    return segments, best


def _has_segments(case: Case) -> bool:
    return not is_own(case.algorithm) and takes(case.collective, case.algorithm, "segments")


def _simulated(case: Case, segments: int) -> Simulation:
    return simulate(
        schedule(case._replace(segments=segments)), case.machine, case.bytes, case.algorithm
    )


def schedule(case: Case) -> Schedule:
    """Build the schedule of a case, on nodes as the machine has them, or on a part of one."""
    node = min(case.machine.ranks_per_node, case.ranks)
    options = {"segments": case.segments, "ranks_per_node": node, "root": case.root}
    return build(case.collective, case.algorithm, case.ranks, **options)


def line(row: Row) -> str:
    """Describe a row in one line."""
    segments = f" in {row['segments']} segments" if row["segments"] > 1 else ""
    return (
        f"{row['collective']} by {row['algorithm']}{segments} on {row['ranks']:,} ranks of {row['machine']}, "
        f"{format_bytes(row['bytes'])}: {duration(row['seconds'])} simulated, busbw {row['busbw']:.3g} GB/s; "
        f"{row['messages']:,} messages; busiest: {row['busiest_link']} ({duration(row['busy_seconds'])})"
    )


def rows(cases: Sequence[Case], on_row: Callable[[Row], None] = lambda _: None) -> list[Row]:
    """Simulate all cases, the largest first, on all cores.

    Return their rows in the cases' order.
    """
    order = sorted(range(len(cases)), key=lambda i: cases[i].ranks, reverse=True)
    found: dict[int, Row] = {}
    for i, simulated in zip(order, _on_all_cores(row, [cases[i] for i in order]), strict=True):
        found[i] = simulated
        on_row(simulated)
    return [found[i] for i in range(len(cases))]


def _on_all_cores(make: Callable[[T], R], over: Sequence[T]) -> Iterator[R]:
    if len(over) == 1:
        yield make(over[0])
        return
    with workers() as pool:
        yield from pool.map(make, over)


def regimes(
    machines: Sequence[Machine],
    nodes: Sequence[int],
    sizes: Sequence[int],
    algorithms: Sequence[str],
    on_row: Callable[[Row], None] = lambda _: None,
) -> list[Row]:
    """Simulate all-reduces by each algorithm wherever it may be the fastest, in its best number of segments.

    An algorithm that takes longer for fewer bytes than another one for this size cannot win,
    because more bytes take no less time: it is left out. Take sizes that are at least four times
    apart: where a machine changes the protocol at a fixed size of message, time falls a little, by
    10% on Summit. Returns rows as `row` makes them, most ranks first.
    """
    ranks = ((machine, count * machine.ranks_per_node) for machine in machines for count in nodes)
    columns = sorted(
        (each for each in ranks if each[1] > 1), key=lambda each: each[1], reverse=True
    )
    found: list[Row] = []
    for made in _on_all_cores(partial(column, sorted(sizes), algorithms), columns):
        found += made
        for each in made:
            on_row(each)
    return found


def column(
    sizes: Sequence[int],
    algorithms: Sequence[str],
    where: tuple[Machine, int],
    collective: str = "all_reduce",
) -> list[Row]:
    """Simulate a collective on a machine and so many ranks, as `regimes` does: sizes from the least on.

    Each begins with the algorithms that were fast for the last one.
    """
    found: list[Row] = []
    for size in sizes:
        last = {row["algorithm"]: row["seconds"] for row in found}
        for name in sorted(algorithms, key=lambda name: last.get(name, 0)):
            case = Case(collective, name, where[1], size, where[0])
            if _may_win(case, found):
                found.append(row(case))
    return found


def _may_win(case: Case, found: Sequence[Row]) -> bool:
    least = min(
        (row["seconds"] for row in found if row["bytes"] == case.bytes), default=float("inf")
    )
    return (
        max((row["seconds"] for row in found if row["algorithm"] == case.algorithm), default=0.0)
        < least
    )


def fastest(found: Any) -> Any:
    """Return the fastest row of each (machine, ranks, bytes), from and as a pandas data frame."""
    return found.loc[found.groupby(["machine", "ranks", "bytes"]).seconds.idxmin()]

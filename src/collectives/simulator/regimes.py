"""The fastest algorithm for each machine, number of ranks and size, without simulating what cannot win."""

from collections.abc import Callable, Sequence
from typing import Any

from collectives.machine import Machine
from collectives.simulator.scaling import Case, Row, rows


def regimes(
    machines: Sequence[Machine],
    nodes: Sequence[int],
    sizes: Sequence[int],
    algorithms: Sequence[str],
    on_row: Callable[[Row], None] = lambda _: None,
) -> list[Row]:
    """All-reduce by each algorithm wherever it may be the fastest, in its best number of segments.

    An algorithm that takes longer for fewer bytes than another one for this size cannot win, because more bytes take no
    less time: it is left out. Algorithms are tried in the given order; put the fast ones first. Returns rows as
    `scaling.row` makes them.
    """
    found: list[Row] = []
    sizes = sorted(sizes)
    for algorithm in algorithms:
        for some in (sizes[:1], sizes[1:]):
            cases = [
                Case("all_reduce", algorithm, count * machine.ranks_per_node, size, machine)
                for machine in machines
                for count in nodes
                for size in some
                if count * machine.ranks_per_node > 1
            ]
            found += rows([case for case in cases if _may_win(case, found)], on_row)
    return found


def _may_win(case: Case, found: Sequence[Row]) -> bool:
    there = [row for row in found if (row["machine"], row["ranks"]) == (case.machine.name, case.ranks)]
    least = min((row["seconds"] for row in there if row["bytes"] == case.bytes), default=float("inf"))
    return max((row["seconds"] for row in there if row["algorithm"] == case.algorithm), default=0.0) < least


def fastest(found: Any) -> Any:
    """The fastest row of each (machine, ranks, bytes); takes and returns a pandas data frame."""
    return found.loc[found.groupby(["machine", "ranks", "bytes"]).seconds.idxmin()]

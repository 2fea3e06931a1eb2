"""A machine's constants, fitted to measured all-reduces as nccl-tests prints them.

A fit begins with a machine file, written by hand from a data sheet, and changes six of its
constants (`CONSTANTS`). It makes the squares of log(simulated / measured) least. A weak pull
towards the file's values keeps those constants near them that the rows say nothing of. The library
chooses: a row counts as the fastest of rings, trees and, where a protocol of the file names
`nvls_tree`, switches that add.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import compress
from typing import Any, NamedTuple

import numpy as np

from collectives.algorithms import build
from collectives.core.schedule import Schedule
from collectives.machine import Delay, Machine, Protocol
from collectives.simulator.scaling import Case, segmented
from collectives.simulator.simulation import simulate

RING, CHANNELS, TREES, SWITCHES = "ring", "multi_channel_ring", "multi_channel_tree", "nvls_tree"

# A machine whose file has no cost of a call begins a fit with this one.
CALL = 5e-6

# The pull towards the file: a constant that is off by a factor e counts as much as one row that is
# off by 20 %. Rows that are off by more than a third count less than by their square.
PULL, FAR = 0.2, 0.3

# A candidate that takes longer than the fastest by more than this factor is not simulated again.
NEAR = 1.6

# Rounds of choosing candidates and fitting, and gradients in each.
ROUNDS, EVALUATIONS = 2, 8

# The difference of a variable from which its gradient is taken.
STEP = 1e-2


class Measured(NamedTuple):
    """The seconds of an all-reduce on some nodes; ``algorithm`` is "" where the library had its choice."""

    nodes: int
    ranks_per_node: int
    bytes: int
    seconds: float
    algorithm: str = ""

    @property
    def ranks(self) -> int:
        """Return the number of ranks."""
        return self.nodes * self.ranks_per_node


class Fitted(NamedTuple):
    """The machine of a fit, and by how much each constant differs: a factor, or seconds that are added."""

    machine: Machine
    changes: dict[str, float]


class Candidate(NamedTuple):
    """A schedule that a row may have taken, on the machine's nodes."""

    algorithm: str
    schedule: Schedule


# What a fit changes. Delays inside are scaled, for all protocols alike; to the network's a time is
# added, as a network with a library of its own adds it to every message.
CONSTANTS = {
    "call": "the cost of a call",
    "inside.rate": "the rate inside a node",
    "inside.latency": "delays inside a node",
    "network.rate": "the rate of a network port",
    "network.added": "seconds added to the network's latencies",
    "switch.share": "the share of the rate that switches which add attain",
}

# The unit of added seconds, in which a change of one counts as much as a factor of e.
ADDED = 5e-6

# By which factor a rate may exceed the sheet's, which the hardware does not exceed.
MOST = 1.05

# Rows of one table that a fit takes at most, evenly spread: more tell little, and take long.
MAX_ROWS = 12


def rows_of(tables: Iterable[Any], on: Machine) -> list[Measured]:
    """Return the all-reduces of tables of nccl-tests, as `collectives_logs.benchmarks.tables_of` reads them.

    A table that names its hosts has as many nodes, another one as many as its ranks fill. The time
    in place counts, where there is one. Raises ValueError if no table is an all-reduce on a known
    number of ranks.
    """
    rows = []
    seen = []
    for table in tables:
        seen.append(f"{table.collective or 'a collective'} on {table.ranks or 'unknown'} ranks")
        if table.collective != "all_reduce" or table.ranks < 2:
            continue
        nodes = len(table.hosts) or -(-table.ranks // on.ranks_per_node)
        if table.ranks % nodes:
            raise ValueError(f"ranks on {nodes} nodes: got {table.ranks}, expected as many on each")
        in_place, out_of_place = table.times[-1], table.times[0]
        seconds = np.where(np.isfinite(in_place), in_place, out_of_place)
        count = len(seconds)
        taken = np.unique(np.linspace(0, count - 1, min(count, MAX_ROWS)).round().astype(int))
        rows += [
            Measured(nodes, table.ranks // nodes, int(table.nbytes[i]), float(seconds[i]))
            for i in taken
        ]
    if not rows:
        got = ", ".join(seen) or "no table"
        raise ValueError(f"rows to fit a machine: got {got}, expected all_reduce of nccl-tests")
    return rows


def constants_of(on: Machine, rows: Sequence[Measured]) -> list[str]:
    """Return the constants that rows of so many nodes may tell.

    >>> from collectives.machine import machine
    >>> constants_of(machine("dgx-h100"), [Measured(1, 8, 8, 2e-5), Measured(1, 8, 1 << 30, 4e-3)])
    ['call', 'inside.rate', 'inside.latency']
    """
    several, shared = (
        any(row.nodes > 1 for row in rows),
        any(row.ranks_per_node > 1 for row in rows),
    )
    tells = {"inside": shared, "network": several, "switch": shared and _has_switches(on)}
    return [name for name in CONSTANTS if tells.get(name.partition(".")[0], True)]


def changed(on: Machine, changes: Mapping[str, float]) -> Machine:
    """Return the machine with constants times their factors, or with added seconds; a share stays at most 1.

    >>> from collectives.machine import machine
    >>> faster = changed(machine("dgx-h100"), {"inside.rate": 2, "network.added": 1e-6})
    >>> faster.inside.rate / 1e9, faster.network.latency
    (674.0, 1.2e-05)
    """
    by = dict.fromkeys(CONSTANTS, 1.0) | {"network.added": 0.0} | dict(changes)

    def inside(of: Delay) -> dict[str, float]:
        factor = by["inside.latency"]
        return {"latency": of.latency * factor, "overhead": of.overhead * factor}

    def network(of: Delay) -> dict[str, float]:
        return {"latency": max(0.0, of.latency + by["network.added"])}

    def protocol(of: Protocol) -> Protocol:
        share = of.share * by["switch.share"] if of.algorithms == (SWITCHES,) else of.share
        delays = {
            "inside": of.inside.model_copy(update=inside(of.inside)),
            "network": of.network.model_copy(update=network(of.network)),
        }
        return of.model_copy(update=delays | {"share": min(1.0, share)})

    rate = {"rate": on.network.rate * by["network.rate"]}
    links = {"network": on.network.model_copy(update=network(on.network) | rate)}
    if on.inside is not None:
        rate = {"rate": on.inside.rate * by["inside.rate"]}
        links["inside"] = on.inside.model_copy(update=inside(on.inside) | rate)
    call = (on.call or CALL) * by["call"] if "call" in changes else on.call
    protocols = tuple(map(protocol, on.protocols))
    return on.model_copy(update=links | {"call": call, "protocols": protocols})


def part_of(on: Machine, ranks_per_node: int, nodes: int) -> Machine:
    """Return the machine for jobs that have so many ranks on each of several nodes, and as many of its ports."""
    if nodes == 1 or ranks_per_node == on.ranks_per_node:
        return on
    if ranks_per_node > on.ranks_per_node:
        raise ValueError(
            f"ranks of a node of {on.name}: got {ranks_per_node}, expected at most {on.ranks_per_node}"
        )
    ports = max(1, on.ports * ranks_per_node // on.ranks_per_node)
    return on.model_copy(update={"ranks_per_node": ranks_per_node, "ports_per_node": ports})


def _has_switches(on: Machine) -> bool:
    return any(SWITCHES in (protocol.algorithms or ()) for protocol in on.protocols)


def library_algorithms(on: Machine, row: Measured) -> list[str]:
    """Return what the library chooses from for a row: rings, trees, and switches where the file has them.

    >>> from collectives.machine import machine
    >>> library_algorithms(machine("dgx-h100"), Measured(2, 8, 8, 2e-5))
    ['multi_channel_ring', 'multi_channel_tree']
    """
    rings = [RING] if row.nodes == 1 else [CHANNELS]
    if row.algorithm == RING:
        return rings
    trees = [TREES] if row.nodes > 1 else []
    has_switches = _has_switches(on) and row.ranks_per_node > 1
    return rings + trees + ([SWITCHES] if has_switches else [])


def predicted(on: Machine, row: Measured) -> tuple[float, str]:
    """Return the simulated seconds of a row and the algorithm that has them, the fastest of the library's.

    Raises ValueError as `simulate` does. Cost: a second for 2 nodes of 8 and 1 GiB.

    >>> from collectives.machine import machine
    >>> predicted(machine("dgx-h100"), Measured(1, 8, 1 << 30, 4e-3))[1]
    'ring'
    """
    here = part_of(on, row.ranks_per_node, row.nodes)
    return min(
        (segmented(Case("all_reduce", name, row.ranks, row.bytes, here))[1].seconds, name)
        for name in library_algorithms(on, row)
    )


def fit(on: Machine, rows: Sequence[Measured], only: Sequence[str] | None = None) -> Fitted:
    """Fit the constants of a machine to rows; ``only`` names those that may change.

    Raises ValueError for fewer than two rows. Cost: a minute for 20 rows of 16 ranks.
    """
    from scipy.optimize import least_squares

    names = [*only] if only is not None else constants_of(on, rows)
    if len(rows) < len(names):
        raise ValueError(
            f"rows to fit {len(names)} constants of {on.name}: got {len(rows)}, expected as many or more"
        )
    found = np.zeros(len(names))
    most = [math.log(MOST) if name.endswith(".rate") else np.inf for name in names]
    for _ in range(ROUNDS):
        start = changed(on, _changes(names, found))
        candidates = [_candidates(start, row) for row in rows]

        def residuals(of: Any, known: list[list[Candidate]] = candidates) -> Any:
            machine = changed(on, _changes(names, of))
            errors = [
                math.log(_seconds(machine, row, some) / row.seconds)
                for row, some in zip(rows, known, strict=True)
            ]
            return np.array([*errors, *(PULL * of)])

        found = least_squares(
            residuals,
            found,
            bounds=(-np.inf, most),
            loss="soft_l1",
            f_scale=FAR,
            diff_step=STEP,
            x_scale=1.0,
            max_nfev=EVALUATIONS,
        ).x
    changes = _changes(names, found)
    return Fitted(_rounded(changed(on, changes)), changes)


def _changes(names: Sequence[str], found: Any) -> dict[str, float]:
    """Return a fit's variables as changes: logarithms of factors, and units of added seconds."""
    return {
        name: value * ADDED if name == "network.added" else math.exp(value)
        for name, value in zip(names, found.tolist(), strict=True)
    }


def _candidates(on: Machine, row: Measured) -> list[Candidate]:
    """Return the schedules near the fastest, in their best segments on this machine."""
    here = part_of(on, row.ranks_per_node, row.nodes)
    names = library_algorithms(on, row)
    found = [segmented(Case("all_reduce", name, row.ranks, row.bytes, here)) for name in names]
    seconds = [simulation.seconds for _, simulation in found]
    is_near = [each <= NEAR * min(seconds) for each in seconds]
    return [
        Candidate(name, _kept(name, row, segments))
        for name, (segments, _) in compress(zip(names, found, strict=True), is_near)
    ]


def _kept(name: str, row: Measured, segments: int) -> Schedule:
    """Return the schedule with its steps made once, because a fit simulates it a hundred times."""
    options = {"ranks_per_node": row.ranks_per_node, "segments": segments}
    made = build("all_reduce", name, row.ranks, **options)
    return replace(made, make=[*made.steps()].__getitem__)


def _seconds(on: Machine, row: Measured, candidates: Sequence[Candidate]) -> float:
    here = part_of(on, row.ranks_per_node, row.nodes)
    return min(simulate(each.schedule, here, row.bytes).seconds for each in candidates)


def _rounded(on: Machine) -> Machine:
    """Round to three digits, which is more than any measurement knows."""

    def short(value: float) -> float:
        return float(f"{value:.3g}")

    def delay(of: Delay) -> Delay:
        return Delay(latency=short(of.latency), overhead=short(of.overhead))

    links = {
        name: link.model_copy(
            update={"rate": short(link.rate)}
            | delay(link).model_dump(include={"latency", "overhead"})
        )
        for name, link in (("inside", on.inside), ("network", on.network))
        if link is not None
    }
    protocols = tuple(
        each.model_copy(
            update={
                "startup": short(each.startup),
                "share": short(each.share),
                "inside": delay(each.inside),
                "network": delay(each.network),
            }
        )
        for each in on.protocols
    )
    return on.model_copy(update=links | {"call": short(on.call), "protocols": protocols})

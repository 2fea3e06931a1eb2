"""A machine's constants, fitted to measured all-reduces as nccl-tests prints them.

A fit begins with a machine file, written by hand from a data sheet, and changes some of its
constants (`CONSTANTS`). It makes the squares of log(simulated / measured) least. A weak pull
towards the file's values keeps those constants near them that the rows say nothing of. The library
chooses among rings, trees and, where a protocol of the file names `nvls_tree`, switches that add.
Where the machine's name tells its GPUs, a row takes what NCCL takes by its own formulas, cut as
NCCL cuts it. That is not always the fastest. On other machines the fastest counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from collectives.algorithms import build
from collectives.core.schedule import Schedule
from collectives.machine import Delay, Machine, Protocol
from collectives.nccl import formulas
from collectives.nccl.chunks import pieces
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


class Way(NamedTuple):
    """A way in which a library may run a row; without protocol and segments the fastest of them."""

    algorithm: str
    protocol: str | None = None
    segments: int | None = None


class Candidate(NamedTuple):
    """A schedule that a row may have taken, on the machine's nodes."""

    way: Way
    schedule: Schedule


# What a fit changes. Delays inside are scaled, for all protocols alike; to the network's a time is
# added, as a network with a library of its own adds it to every message.
CONSTANTS = {
    "call": "the cost of a call",
    "inside.rate": "the rate inside a node",
    "inside.latency": "delays inside a node",
    "network.rate": "the rate of a network port",
    "network.added": "seconds added to the network's latencies",
    "network.each": "seconds added to what a message occupies a network port",
    "switch.share": "the share of the rate that switches which add attain",
}

# What is added and no factor: so many seconds count as much as a factor of e. Networks of clouds add
# some 20 us or more to a message's way.
SECONDS = {"network.added": 20e-6, "network.each": 5e-6}

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
    tells = {"inside": shared, "network": several, "switch": shared and on.has_adding_switches}
    return [name for name in CONSTANTS if tells.get(name.partition(".")[0], True)]


def changed(on: Machine, changes: Mapping[str, float]) -> Machine:
    """Return the machine with constants times their factors, or with added seconds; a share stays at most 1.

    >>> from collectives.machine import machine
    >>> faster = changed(machine("dgx-h100"), {"inside.rate": 2, "network.added": 1e-6})
    >>> faster.inside.rate / 1e9, faster.network.latency
    (674.0, 1.2e-05)
    """
    by = dict.fromkeys(CONSTANTS, 1.0) | dict.fromkeys(SECONDS, 0.0) | dict(changes)

    def inside(of: Delay) -> dict[str, float]:
        factor = by["inside.latency"]
        return {"latency": of.latency * factor, "overhead": of.overhead * factor}

    def network(of: Delay) -> dict[str, float]:
        latency = of.latency + by["network.added"]
        overhead = of.overhead + by["network.each"]
        return {"latency": max(0.0, latency), "overhead": max(0.0, overhead)}

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
    has_switches = on.has_adding_switches and row.ranks_per_node > 1
    return rings + trees + ([SWITCHES] if has_switches else [])


def ways(on: Machine, row: Measured) -> list[Way]:
    """Return the ways from which a row takes the fastest: NCCL's one where its GPUs are known, or each algorithm.

    >>> from collectives.machine import machine
    >>> ways(machine("h100"), Measured(2, 8, 1 << 20, 1e-4))
    [Way(algorithm='multi_channel_tree', protocol='LL128', segments=4)]
    >>> ways(machine("mi300x"), Measured(1, 8, 1 << 20, 1e-4))
    [Way(algorithm='ring', protocol=None, segments=None)]
    """
    names = library_algorithms(on, row)
    generation = formulas.generation_of(on.name)
    if generation is None or not on.fastest_protocol:
        return [Way(name) for name in names]
    here = part_of(on, row.ranks_per_node, row.nodes)
    inside = (here.inside or here.network).rate / 1e9
    network = here.network.rate / 1e9
    job = formulas.job(
        "all_reduce", row.nodes, row.ranks_per_node, generation, inside, here.ports, network
    )
    of_nccl = {_name_in_nccl(name, row.nodes): name for name in names}
    able = [name for name in of_nccl if not name.startswith("nvls") or job.switches]
    choice = formulas.predictions(job, row.bytes, able)[0]
    cut = pieces(job, choice.algorithm, choice.protocol, row.bytes)
    return [Way(of_nccl[choice.algorithm], choice.protocol, cut)]


def _name_in_nccl(algorithm: str, nodes: int) -> str:
    switches = "nvls" if nodes == 1 else "nvls_tree"
    return {TREES: "tree", SWITCHES: switches}.get(algorithm, "ring")


def _with_protocol(on: Machine, way: Way) -> Machine:
    """Return the machine with only the protocol of a way, if it has one of that name and the way tells it."""
    kept = tuple(
        protocol
        for protocol in on.protocols
        if protocol.name == way.protocol or protocol.algorithms == (SWITCHES,)
    )
    is_named = any(protocol.name == way.protocol for protocol in kept)
    return on.model_copy(update={"protocols": kept}) if is_named else on


def predicted(on: Machine, row: Measured) -> tuple[float, str]:
    """Return the simulated seconds of a row and the algorithm that has them, by the library's choice.

    Raises ValueError as `simulate` does. Cost: a second for 2 nodes of 8 and 1 GiB.

    >>> from collectives.machine import machine
    >>> predicted(machine("dgx-h100"), Measured(1, 8, 1 << 30, 4e-3))[1]
    'ring'
    """
    here = part_of(on, row.ranks_per_node, row.nodes)
    found = []
    for way in ways(on, row):
        _, seconds = _simulated(_with_protocol(here, way), row, way)
        found.append((seconds, way.algorithm))
    return min(found)


def _simulated(here: Machine, row: Measured, way: Way) -> tuple[int, float]:
    """Return the segments of a way, the best ones if it does not tell, and its seconds."""
    if way.segments is None:
        case = Case("all_reduce", way.algorithm, row.ranks, row.bytes, here)
        segments, simulation = segmented(case)
        return segments, simulation.seconds
    return way.segments, simulate(_schedule(row, way), here, row.bytes).seconds


def _schedule(row: Measured, way: Way, segments: int | None = None) -> Schedule:
    """Return the schedule of a way; segments that it tells are NCCL's pieces."""
    options = {"ranks_per_node": row.ranks_per_node, "segments": way.segments or segments}
    if way.segments is not None:
        options["pieces"] = 1  # of a segment
    return build("all_reduce", way.algorithm, row.ranks, **options)


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
    """Return a fit's variables as changes: logarithms of factors, and units of `SECONDS`."""
    return {
        name: value * SECONDS[name] if name in SECONDS else math.exp(value)
        for name, value in zip(names, found.tolist(), strict=True)
    }


def _candidates(on: Machine, row: Measured) -> list[Candidate]:
    """Return the schedules near the fastest, in their best segments on this machine."""
    here = part_of(on, row.ranks_per_node, row.nodes)
    found = [(way, *_simulated(_with_protocol(here, way), row, way)) for way in ways(on, row)]
    least = min(seconds for _, _, seconds in found)
    return [
        Candidate(way, _kept(row, way, segments))
        for way, segments, seconds in found
        if seconds <= NEAR * least
    ]


def _kept(row: Measured, way: Way, segments: int) -> Schedule:
    """Return the schedule with its steps made once, because a fit simulates it a hundred times."""
    made = _schedule(row, way, segments)
    return replace(made, make=[*made.steps()].__getitem__)


def _seconds(on: Machine, row: Measured, candidates: Sequence[Candidate]) -> float:
    here = part_of(on, row.ranks_per_node, row.nodes)
    return min(
        simulate(candidate.schedule, _with_protocol(here, candidate.way), row.bytes).seconds
        for candidate in candidates
    )


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

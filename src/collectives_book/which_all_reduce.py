"""Which all-reduce to take: a rule, how far it is from the fastest, and how much of a link's rate busbw can show."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from itertools import product
from math import gcd
from statistics import median
from typing import Any

import pandas as pd

from collectives.algorithms import ALGORITHMS, candidates
from collectives.algorithms.levels import SCATTERED, Plan, PlanLevel, is_plan, parse_plan
from collectives.core.schedule import Schedule, Step
from collectives.core.traffic import traffic
from collectives.figures.style import Picture
from collectives.machine import Machine, machine
from collectives.search import fastest_plan
from collectives.simulator import scaling
from collectives.simulator.scaling import Case, Row, regimes, row
from collectives_book.figures.decisions import Decision, decisions
from collectives_book.figures.kit import Rows
from collectives_book.measured_machines import comparison
from collectives_book.measured_machines.predictions import fitted

KIB = 1 << 10
MIB = 1 << 20
BUCKET = 25 << 20
SIZES = (8, 8 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, BUCKET, 256 * MIB)

# Machines of the map, what its panels say of them, and the numbers of nodes: three are no power of
# two.
NODES = {
    "dgx-h100": (
        "H100: nodes of eight GPUs, each with its own port",
        (2, 3, 8, 12, 16),
    ),
    "summit": ("Summit: nodes of six GPUs that share one port", (2, 3, 4, 8, 16)),
    "ethernet": ("Ethernet: one rank a node, TCP", (4, 6, 8, 12, 16, 64)),
}
# Rules that always take one algorithm.
ALWAYS = ("ring", "recursive_doubling", "halving_doubling")
# Ranks of a level between nodes at most; bytes of a part that is large.
DIGIT = 4
PART = 128 * KIB

# Machines on which others measured all-reduces that have a name here, and what their panels say.
MEASURED = {
    "marenostrum5": "MareNostrum 5, NCCL: ring and two trees on GPUs, four a node",
    "leonardo": "Leonardo, Open MPI: ring, recursive doubling, halving-doubling",
    "lumi": "LUMI, MPI: ring, recursive doubling, halving-doubling",
}

# By machine, number of ranks and size: the simulations of the algorithms that can be the fastest
# there.
Times = Mapping[str, Mapping[int, Mapping[int, Mapping[str, Row]]]]


def rule(on: Machine, p: int, n: int) -> str:
    """Answer three questions by a plan: is the buffer small, are parts large on nodes, or neither.

    >>> [rule(machine("dgx-h100"), 96, n) for n in (8, 1 << 20, 1 << 28)]
    ['one_shot8/one_shot3/one_shot4', 'direct8/direct3/one_shot4', 'direct8/ring12*2']
    """
    small = on.protocols_for("ring", 1)[0]  # the protocol for small messages
    startup = small.network.latency + small.network.overhead
    knee = startup * small.share * on.network.rate
    near = p if p <= on.ranks_per_node else gcd(p, on.ranks_per_node)
    sizes = digits(p // near)
    if near > 1:
        sizes.insert(0, near)
    at_a_port = n * on.ranks_per_node // on.ports
    if at_a_port <= knee:
        return str(Plan(tuple(PlanLevel("one_shot", size) for size in sizes)))
    levels = [PlanLevel("direct", size) for size in sizes]
    if 1 < near < p:
        if n / p >= PART:
            return str(Plan((levels[0], PlanLevel("ring", p // near)), segments=2))
        levels[-1] = PlanLevel("one_shot", sizes[-1])
    return str(Plan(tuple(levels)))


def drawn_rule() -> Picture:
    """Return the rule as a drawing, after the question whether a switch adds; examples are for 12 nodes of eight."""
    return decisions(
        [
            Decision(
                "Does one switch join all\nand add, and is n large?", "Leave it to NCCL: NVLS"
            ),
            Decision(
                "Is n small: does latency\ncost more than bytes?",
                "Whole levels, as\none_shot8/one_shot3/one_shot4",
            ),
            Decision(
                "Several nodes, and is\nn/p 128 KiB or more?",
                "Scatter inside, ring outside, as\ndirect8/ring12*2",
            ),
        ],
        "Scatter near levels, exchange far ones,\nas direct8/direct3/one_shot4",
        "Which all-reduce to take",
    )


def digits(number: int) -> list[int]:
    """Return factors of a number, the least first: its primes, multiplied as long as they stay within `DIGIT`.

    >>> digits(12), digits(16), digits(14), digits(1)
    ([3, 4], [4, 4], [2, 7], [])
    """
    factors: list[int] = []
    prime = 2
    while number > 1:
        if number % prime:
            prime += 1
            continue
        number //= prime
        if factors and factors[-1] * prime <= DIGIT:
            factors[-1] *= prime
        else:
            factors.append(prime)
    return sorted(factors)


def family(algorithm: str) -> str:
    """Return how a plan treats the buffer in its levels; the name of an algorithm stays.

    >>> [family(name) for name in ("ring", "one_shot8/one_shot2", "direct8/one_shot2", "direct8/ring2*4")]
    ['ring', 'whole_levels', 'scattered_then_whole', 'scattered_levels']
    """
    if not is_plan(algorithm):
        return algorithm
    levels = parse_plan(algorithm, "all_reduce").levels
    scattered = [level.algorithm in SCATTERED for level in levels]
    if all(scattered):
        return "scattered_levels"
    return "scattered_then_whole" if any(scattered) else "whole_levels"


@cache
def seconds(on: str, collective: str, name: str, p: int, n: int) -> float:
    """Return the simulated seconds of a call on a preset, in the best number of segments."""
    return float(row(Case(collective, name, p, n, machine(on)))["seconds"])


def computed_rows() -> list[Row]:
    """Return every field of the map: candidates that can be the fastest there, the fastest plan, and what rules pick.

    The ``part`` of a row is "map" or "picked". Pages read them as `computed.rows`, because this
    takes a minute and a half.
    """
    fields = []
    cases = []
    for name, (_, nodes) in NODES.items():
        on = machine(name)
        fields += regimes([on], nodes, SIZES, candidates("all_reduce"))
        for count, n in product(nodes, SIZES):
            p = count * on.ranks_per_node
            fields += fastest_by_plan("all_reduce", p, n, on)
            picks = dict.fromkeys([rule(on, p, n), *ALWAYS])
            cases += [Case("all_reduce", pick, p, n, on) for pick in picks]
    picked = scaling.rows(cases)
    return [
        *({"part": "map"} | field for field in fields),
        *({"part": "picked"} | field for field in picked),
    ]


def fastest_by_plan(collective: str, p: int, n: int, on: Machine) -> list[Row]:
    """Return the row of the fastest plan by levels, none where there are no plans."""
    found = fastest_plan(collective, p, n, on)
    return [row(Case(collective, str(found.plan), p, n, on))] if found else []


def fields(rows: Rows) -> Times:
    """Return the fields of the map, from `computed_rows`."""
    times: dict[str, dict[int, dict[int, dict[str, Row]]]] = {}
    for simulated in rows[rows.part == "map"].to_dict("records"):
        panel = times.setdefault(simulated["machine"], {})
        columns = panel.setdefault(simulated["ranks"], {})
        field = columns.setdefault(simulated["bytes"], {})
        field[simulated["algorithm"]] = simulated
    return times


def best(field: Mapping[str, Row]) -> str:
    """Return the fastest; of those within 1 %, a name before a plan, and the one with the fewest messages."""
    least = min(simulated["seconds"] for simulated in field.values())
    near = [name for name in field if field[name]["seconds"] <= 1.01 * least]
    return min(near, key=lambda name: (is_plan(name), field[name]["messages"], name))


def winners(times: Times) -> Rows:
    """Return the map: ``title``, ``ranks``, ``bytes``, the best ``algorithm`` of each field, and its ``family``.

    ``ahead`` is how much longer the fastest of the others takes, as a share of the winner's time.
    """
    fields = []
    for name, panel in times.items():
        title, _ = NODES[name]
        for p, columns in panel.items():
            place = {"machine": name, "title": title, "ranks": p}
            fields += [place | {"bytes": n} | _won(columns[n]) for n in SIZES]
    won = pd.DataFrame(fields)
    return won.assign(family=won.algorithm.map(family))


def _won(field: Mapping[str, Row]) -> dict[str, Any]:
    winner = best(field)
    next_one = min(row["seconds"] for name, row in field.items() if name != winner)
    return {"algorithm": winner, "ahead": next_one / field[winner]["seconds"] - 1}


def regrets(rows: Rows, name: str, pick: Callable[[Machine, int, int], str]) -> list[float]:
    """Return the times of the picked algorithm over those of the fastest, in each field of a machine."""
    on = machine(name)
    ratios = []
    for (p, n), field in rows[rows.machine == name].groupby(["ranks", "bytes"]):
        algorithm = pick(on, p, n)
        picked = field[field.algorithm == algorithm].seconds.iloc[0]
        fastest = field[field.part == "map"].seconds.min()
        ratios.append(float(picked / fastest))
    return ratios


def by_name(rows: Rows, name: str) -> list[float]:
    """Return the times of the fastest named algorithm over those of the fastest, in each field of a machine."""
    ratios = []
    of_map = rows[(rows.machine == name) & (rows.part == "map")]
    for _, field in of_map.groupby(["ranks", "bytes"]):
        named = field[~field.algorithm.map(is_plan)]
        ratios.append(float(named.seconds.min() / field.seconds.min()))
    return ratios


def compared(rows: Rows) -> Rows:
    """Return `regrets` by machine, as text: of the rule, the best name and single ones, the median and the worst."""
    picks: dict[str, Callable[[Machine, int, int], str]] = {"the three questions": rule}
    for algorithm in ALWAYS:
        picks[f"always {algorithm}"] = _always(algorithm)
    columns = {"the best name": {name: _summary(by_name(rows, name)) for name in NODES}}
    for said, pick in picks.items():
        columns[said] = {name: _summary(regrets(rows, name, pick)) for name in NODES}
    return pd.DataFrame(columns).T


def _always(algorithm: str) -> Callable[[Machine, int, int], str]:
    return lambda *_: algorithm


def _summary(ratios: list[float]) -> str:
    return f"{median(ratios):.2f}, at worst {max(ratios):.1f}"


def measured(name: str) -> Rows:
    """Return the measured all-reduces of a machine, without Leonardo's run of 128 nodes, which has other sizes."""
    rows = comparison.ours(name)
    return rows.query("ranks > 128") if name == "leonardo" else rows


def measured_winners(name: str) -> Rows:
    """Return the measured map of a machine, as `winners` has the simulated one."""
    won = comparison.winners(measured(name)).assign(title=MEASURED[name])
    return won.replace({"algorithm": {"hierarchical_tree": "two_tree"}})


def losses(name: str, rows: Rows) -> list[dict[str, Any]]:
    """For each measured cell, how many times as long as the fastest the rule's algorithm took, where it was measured.

    Nobody measured plans. Recursive doubling replaces those of whole levels, whose members of pairs
    it is, and halving-doubling those that scatter.
    """
    on = fitted(name)
    cells = []
    for (p, n), cell in rows.groupby(["ranks", "bytes"]):
        took = cell.set_index("algorithm").median_us
        is_whole = family(rule(on, p, n)) == "whole_levels"
        pick = "recursive_doubling" if is_whole else "halving_doubling"
        if pick not in took:
            continue
        cells.append(
            {
                "pick": pick,
                "times": float(took[pick] / took.min()),
                "better": took.idxmin(),
                "ranks": p,
                "bytes": n,
            }
        )
    return cells


def busiest(schedule: Schedule) -> float:
    """Buffers that the busiest rank sends or receives, whichever are more.

    >>> busiest(ALGORITHMS["all_reduce", "recursive_doubling"](8))
    3.0
    """
    n = 840 * schedule.p * schedule.k
    counted = traffic(schedule, n)
    most = max(counted.sent.max(), counted.received.max())
    return float(most / n)


def visible(name: str, p: int) -> float:
    """The share of the link's rate that busbw can show.

    >>> visible("ring", 7), visible("recursive_doubling", 16)
    (1.0, 0.46875)
    """
    return 2 * (p - 1) / p / busiest(ALGORITHMS["all_reduce", name](p))


def leaving(schedule: Schedule, g: int) -> float:
    """Buffers that the busiest node of g ranks sends out.

    >>> leaving(ALGORITHMS["all_reduce", "hierarchical_ring"](16, ranks_per_node=8), 8)
    1.0
    """
    n = 840 * schedule.p * schedule.k

    def make(t: int) -> Step:
        step = schedule.step(t)
        far = step.src // g != step.dst // g
        return Step(
            step.src[far],
            step.dst[far],
            step.chunk[far],
            step.count[far],
            step.add[far],
        )

    between_nodes = replace(schedule, make=make)
    by_rank = traffic(between_nodes, n).sent
    by_node = by_rank.reshape(-1, g).sum(axis=1)
    return float(by_node.max() / n)

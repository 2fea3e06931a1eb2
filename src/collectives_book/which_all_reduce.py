"""Which all-reduce to take: a rule, how far it is from the fastest, and how much of a link's rate busbw can show."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import pandas as pd

from collectives.algorithms import ALGORITHMS
from collectives.autotune import choose
from collectives.machine import Machine, machine
from collectives.schedule import Schedule, Step
from collectives.simulator.scaling import Case, row
from collectives.traffic import traffic
from collectives.units import format_bytes
from collectives_book.figures import predicted, statements
from collectives_book.figures.statements import Rows
from collectives_book.measured_machines.predictions import fitted
from collectives_book.needs import MODELS

KIB, MIB, BUCKET = 1 << 10, 1 << 20, 25 << 20
SIZES = (8, 8 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, BUCKET, 256 * MIB)

# Machines of the map, what its panels say of them, and the numbers of nodes: three are no power of two.
NODES = {
    "dgx-h100": ("H100: nodes of eight GPUs, each with its own port", (2, 3, 8, 12, 16, 64)),
    "summit": ("Summit: nodes of six GPUs that share one port", (2, 3, 4, 8, 16, 64)),
    "ethernet": ("Ethernet: one rank a node, TCP", (4, 6, 8, 12, 16, 64)),
}

# By machine, number of ranks and size: the seconds of each algorithm.
Times = Mapping[str, Mapping[int, Mapping[int, Mapping[str, float]]]]


def rule(on: Machine, p: int, n: int) -> str:
    """Three questions: is the buffer small, are links in the node faster, or neither."""
    small = on.protocols_for("ring", 1)[0]  # the protocol for small messages
    alpha = small.network.latency + small.network.overhead
    if n <= alpha * small.share * on.network.rate:  # the knee
        return "recursive_doubling"
    if on.ranks_per_node > 1 and n / p >= 16 * 1024:
        return "hierarchical_ring"
    return "optimal"


def seconds(on: Machine, collective: str, name: str, p: int, n: int) -> float:
    """Simulated, in the number of segments that "auto" takes."""
    return float(row(Case(collective, name, p, n, on, choose(collective, p, n, name, on=on).segments))["seconds"])


def simulated() -> Times:
    """Every field of the map. Cost: half a minute."""
    return {
        name: {count * on.ranks_per_node: _column(on, count * on.ranks_per_node) for count in NODES[name][1]}
        for name, on in ((name, machine(name)) for name in NODES)
    }


def _column(on: Machine, p: int) -> dict[int, dict[str, float]]:
    """By size. A tree that takes longer for fewer bytes than another one for these cannot win, and is left out."""
    names = ["recursive_doubling", "optimal", "halving_doubling", "ring"]
    names += ["hierarchical_ring"] if on.ranks_per_node > 1 else []
    tree = "hierarchical_tree" if on.ranks_per_node > 1 else "two_tree"
    found: dict[int, dict[str, float]] = {}
    for n in SIZES:
        found[n] = {name: seconds(on, "all_reduce", name, p, n) for name in names}
        if all(each.get(tree, 0) < min(found[n].values()) for each in found.values()):
            found[n][tree] = seconds(on, "all_reduce", tree, p, n)
    return found


def panels(times: Times) -> list[predicted.Fastest]:
    """The map's panels: the fastest algorithm of each field."""
    return [
        predicted.Fastest(
            NODES[name][0],
            list(columns),
            {n: [min(each[n], key=each[n].__getitem__) for each in columns.values()] for n in SIZES},
        )
        for name, columns in times.items()
    ]


def regrets(times: Times, name: str, pick: Callable[[Machine, int, int], str]) -> list[float]:
    """How many times as long as the fastest the picked algorithm takes, in each field of a machine."""
    on = machine(name)
    return [each[n][pick(on, p, n)] / min(each[n].values()) for p, each in times[name].items() for n in SIZES]


def compared(times: Times) -> Rows:
    """The rule and single algorithms: by machine the median and the worst of `regrets`, as text."""
    picks: dict[str, Callable[[Machine, int, int], str]] = {"the three questions": rule}
    picks |= {f"always {each}": lambda *_, each=each: each for each in ("ring", "recursive_doubling", "optimal")}
    found = {said: {name: regrets(times, name, pick) for name in times} for said, pick in picks.items()}
    return pd.DataFrame(found).map(lambda each: f"{median(each):.2f}, at worst {max(each):.1f}").T


def losses(name: str, rows: Rows) -> list[dict[str, Any]]:
    """For each measured cell, how many times as long as the fastest the rule's algorithm took, where it was measured.

    Halving-doubling has the counts of `optimal` on powers of two, and replaces it.
    """
    found, on = [], fitted(name)
    for (p, n), cell in rows.groupby(["ranks", "bytes"]):
        took = cell.set_index("algorithm").median_us
        pick = {"optimal": "halving_doubling"}.get(picked := rule(on, p, n), picked)
        if pick in took:
            times = float(took[pick] / took.min())
            found.append({"pick": pick, "times": times, "better": took.idxmin(), "ranks": p, "bytes": n})
    return found


def busiest(schedule: Schedule) -> float:
    """Buffers that the busiest rank sends or receives, whichever are more.

    >>> busiest(ALGORITHMS["all_reduce", "recursive_doubling"](8))
    3.0
    """
    n = 840 * schedule.p * schedule.k
    counted = traffic(schedule, n)
    return float(max(counted.sent.max(), counted.received.max()) / n)


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
        return Step(step.src[far], step.dst[far], step.chunk[far], step.count[far], step.add[far])

    return float(traffic(replace(schedule, make=make), n).sent.reshape(-1, g).sum(axis=1).max() / n)


def calls() -> Rows:
    """What training Llama 3 8B calls: collective, ranks, bytes, the fastest algorithms, and what a plain one loses.

    In 16 bits, with one sequence for each rank. Plain is the ring, or the pairwise all-to-all; simulated on `dgx-h100`.
    """
    llama = next(model for model in MODELS if model.name == "Llama 3 8B")
    layer, activations = int(2 * llama.parameters / llama.layers), 2 * llama.sequence * llama.width
    made = {
        "DDP, a bucket": ("all_reduce", 64, BUCKET),
        "FSDP, parameters": ("all_gather", 64, layer),
        "FSDP, gradients": ("reduce_scatter", 64, layer),
        "tensor parallel": ("all_reduce", 8, activations),
        "tensor, generating": ("all_reduce", 8, 2 * 16 * llama.width),
        "expert parallel": ("all_to_all", 64, 2 * activations),
        "gradient norm": ("all_reduce", 64, 4),
    }
    return pd.DataFrame({said: _call(*call) for said, call in made.items()}).T


CANDIDATES: dict[str, Sequence[str]] = {
    "all_reduce": ("ring", "recursive_doubling", "optimal", "halving_doubling", "hierarchical_ring"),
    "all_gather": ("ring", "bruck", "recursive_doubling"),
    "reduce_scatter": ("ring", "recursive_halving", "optimal"),
    "all_to_all": ("pairwise", "bruck"),
}


def _call(collective: str, p: int, n: int) -> dict[str, Any]:
    on = machine("dgx-h100")
    names = [name for name in CANDIDATES[collective] if p > on.ranks_per_node or "hierarchical" not in name]
    found = {name: seconds(on, collective, name, p, n) for name in names}
    return {
        "calls": f"{collective.replace('_', '-')} on {p}",
        "bytes": format_bytes(n) if n < MIB or n == BUCKET else f"{n / 1e6:,.0f} MB",
        "fastest": statements.least(found).replace(" and ", ", "),
        "plain": found[names[0]] / min(found.values()),
    }

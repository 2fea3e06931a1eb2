"""All-reduces by their closed forms, for the explorer in the book's pages: coefficients as JSON, in an HTML element."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Any, NamedTuple

from collectives.algorithms import ALGORITHMS, Algorithm
from collectives.core.bounds import Cost, lower_bound
from collectives.figures.style import DARK, LIGHT, on_page
from collectives.units import duration, format_bytes, format_rate

COLLECTIVE = "all_reduce"

MAX_RANKS = 24_576

# A switch adds: no rank can run it, and its curve is hidden where there is no such switch.
IN_NETWORK = "in_network"


class Preset(NamedTuple):
    """Hold the places of the sliders for machines that many have.

    ``alpha`` is that of NCCL's protocol for small buffers and ``rate`` that of the link: of a
    node's links where there is one node, of a port where there are several. ``adds`` tells whether
    one switch joins all ranks and adds.
    """

    said: str
    p: int
    alpha: float
    rate: float
    ranks_per_node: int
    adds: bool


PRESETS = (
    Preset("8 H100", p=8, alpha=0.6e-6, rate=365e9, ranks_per_node=1, adds=True),
    Preset("64 H100", p=64, alpha=2.7e-6, rate=48e9, ranks_per_node=8, adds=False),
    Preset("NVL72", p=72, alpha=0.803e-6, rate=707e9, ranks_per_node=1, adds=True),
    Preset("32 Ethernet nodes", p=32, alpha=30e-6, rate=1.25e9, ranks_per_node=1, adds=False),
)

# Powers of two, 3 and 5 times one, one less than one, and round numbers.
RANKS = sorted(
    {
        factor << power
        for factor in (1, 3, 5)
        for power in range(14)
        if 2 <= factor << power <= MAX_RANKS
    }
    | {(1 << power) - 1 for power in range(2, 15)}
    | {1 << 14, 100, 1_000, 10_000}
)


def _steps(powers: Iterable[int], digits: tuple[float, ...]) -> list[float]:
    return [float(f"{digit}e{power}") for power in powers for digit in digits]


# What each slider offers; an explorer adds the value at which it starts.
OFFERED: dict[str, Sequence[Any]] = {
    "p": RANKS,
    "n": [1 << power for power in range(3, 35)],
    "alpha": [*_steps(range(-7, -2), (1, 2, 5)), 1e-2],
    "rate": [*_steps(range(7, 12), (1, 2.5, 5)), 1e12],
    "adding": _steps(range(9, 13), (1, 2.5, 5)),
    "ranks_per_node": [1, 2, 4, 8, 16],
}

# A link inside a node is this many times as fast as one between nodes, both in latency and in rate.
INSIDE = 10


@dataclass(frozen=True)
class Explorer:
    """The sliders' places when the page opens (`explorer`).

    A page without JavaScript shows the times there.
    """

    p: int
    n: int
    alpha: float
    rate: float
    adding: float | None
    ranks_per_node: int

    def _repr_html_(self) -> str:
        data = json.dumps(explorer_data(self), separators=(",", ":")).replace("<", "\\u003c")
        return (
            '<cost-explorer role="group" aria-label="Explorer: the time of an all-reduce by formula">'
            f'<p>{escape(self.sentence())}</p><script type="application/json">{data}</script></cost-explorer>'
        )

    def sentence(self) -> str:
        """Return a sentence with the time of every algorithm of ranks alone at these values, the shortest first.

        >>> explorer(p=8, n=8).sentence().partition("; ")[0]
        'All-reduce of 8 B on 8 ranks, 5 µs and 25GB/s, by formula: recursive doubling 15 µs'
        """
        alone = {name: each for name, each in self.seconds().items() if name != IN_NETWORK}
        times = sorted((seconds, name) for name, seconds in alone.items())
        each = "; ".join(f"{name.replace('_', ' ')} {duration(seconds)}" for seconds, name in times)
        links = f"{duration(self.alpha)} and {format_rate(self.rate)}"
        return f"All-reduce of {format_bytes(self.n)} on {self.p:,} ranks, {links}, by formula: {each}."

    def seconds(self) -> dict[str, float]:
        """Return the seconds by each closed form that applies, which the page must agree with."""
        links = self.alpha, 1 / self.rate, 1 / self.adding if self.adding else 0.0
        found = {}
        for name, known in explored().items():
            if known.inside and _are_full(self.p, self.ranks_per_node):
                inside = links[0] / INSIDE, links[1] / INSIDE, links[2]
                found[name] = known.on_nodes(self.p, self.ranks_per_node, self.n, inside, links)
            elif known.pipeline:
                pipeline = known.pipeline(self.p)
                found[name] = pipeline.seconds(self.n, pipeline.best(self.n, *links), *links)
            elif known.cost and not known.inside:
                found[name] = known.cost(self.p).seconds(self.n, *links)
        return found


def explorer(
    p: int = 64,
    n: int = 25 << 20,
    *,
    alpha: float = 5e-6,
    rate: float = 25e9,
    adding: float | None = None,
    ranks_per_node: int = 1,
) -> Explorer:
    """Return the explorer for a chapter's code cell: the time of each all-reduce over the buffer's size, with sliders.

    ``alpha`` and ``rate`` are those of the slowest link, ``adding`` the bytes that a rank adds in a
    second; None adds in no time. Values that the sliders lack are added to them. Raises ValueError
    outside their ranges.
    """
    start = Explorer(p, n, alpha, rate, adding, ranks_per_node)
    for name, got in asdict(start).items():
        least, most = min(OFFERED[name]), max(OFFERED[name])
        if got is not None and not least <= got <= most:
            raise ValueError(f"{name}: got {got:,}, expected {least:,} to {most:,}")
    return start


def explored() -> dict[str, Algorithm]:
    """Return the all-reduces whose closed form is one in alpha, beta and gamma."""
    return {
        name: each
        for (of, name), each in ALGORITHMS.items()
        if of == COLLECTIVE and (each.cost or each.pipeline) and not each.seconds
    }


def explorer_data(start: Explorer) -> dict[str, Any]:
    """Return the page's data as values that JSON has.

    ===========
    ====================================================================================================
    at           the values of ``start`` p, n, …      for each of them the values that its slider
    offers; an ``adding`` of null is free presets      `PRESETS`, each as an object
    hidden       names of curves that are hidden at first, and by presets whose ``adds`` is false
    inside       how many times as fast a link inside a node
    is bound        for each p [steps, sent, added] of the lower bound, whose time is the longest of
    the three algorithms   each has a name, colours for a light and a dark page, and one of the
    following
    - cost       for each p [steps, sent, added]; sent and added are in p-ths of the buffer
    - pipeline   for each p [fixed, period, share, adds] (`collectives.core.bounds.Pipeline`)
    - nodes      for each number of ranks per node above 1, for each p, [steps, sent, added] outside
      nodes, then inside; 0 where p ranks do not fill several nodes
    - at_once    true if links of nodes and of the network work in the same steps: the longer time
      of the two counts ===========
      ====================================================================================================

    Cost: O(p log p) for the bound on the most ranks.
    """
    values = {name: _offered(name, start) for name in OFFERED}
    ranks, nodes = values["p"], values["ranks_per_node"]
    return {
        "at": asdict(start),
        **values,
        "adding": [*values["adding"], None],
        "presets": [preset._asdict() for preset in PRESETS],
        "hidden": [IN_NETWORK],
        "inside": INSIDE,
        "bound": [_counts(_least(p), p) for p in ranks],
        "algorithms": [_algorithm(name, each, ranks, nodes) for name, each in explored().items()],
    }


def _offered(name: str, start: Explorer) -> list[Any]:
    """Return the values of a slider: those that it offers, where it starts, and those of the presets."""
    of_presets = {getattr(preset, name) for preset in PRESETS if name in Preset._fields}
    return sorted({*OFFERED[name], getattr(start, name), *of_presets} - {None})


def _algorithm(name: str, known: Algorithm, ranks: list[int], nodes: list[int]) -> dict[str, Any]:
    form: dict[str, Any] = {}
    if known.inside:
        form["at_once"] = known.at_once
        form["nodes"] = {g: [_on_nodes(known, p, g) for p in ranks] for g in nodes if g > 1}
    elif known.pipeline:
        form["pipeline"] = [list(known.pipeline(p)) for p in ranks]
    elif known.cost:
        form["cost"] = [_counts(known.cost(p), p) for p in ranks]
    return {
        "name": name,
        "colours": [on_page(known.mark.colour, theme) for theme in (LIGHT, DARK)],
        **form,
    }


def _on_nodes(known: Algorithm, p: int, g: int) -> list[float] | int:
    if not _are_full(p, g):
        return 0
    inside, outside = known.split(p, g)
    return _counts(outside, p) + _counts(inside, p)


def _are_full(p: int, g: int) -> bool:
    """Return True if p ranks fill several nodes of g."""
    return 1 < g < p and p % g == 0


def _least(p: int) -> Cost:
    """Return the three terms of the lower bound, each with the others left out."""
    return Cost(
        lower_bound(COLLECTIVE, p, 0, alpha=1, beta=0),
        lower_bound(COLLECTIVE, p, 1, alpha=0, beta=1),
        lower_bound(COLLECTIVE, p, 1, alpha=0, beta=0, gamma=1),
    )


def _counts(cost: Cost, p: int) -> list[float]:
    """Return steps, and bytes in p-ths of the buffer.

    Most are whole numbers, and short to write.
    """
    return [_short(cost.steps), _short(cost.sent * p), _short(cost.added * p)]


def _short(value: float) -> float:
    """Round off the last digits, in which sums of thirds differ from whole numbers."""
    rounded = float(f"{value:.13g}")
    return int(rounded) if rounded.is_integer() else rounded

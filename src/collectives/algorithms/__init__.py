"""Every algorithm, in one table: ``ALGORITHMS[collective, name](p, ...)`` makes a schedule."""

import inspect
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import NamedTuple

from collectives.algorithms import (
    bruck,
    circulant,
    direct,
    halving,
    hierarchical,
    nvls,
    pat,
    ring,
    swing,
    tree,
)
from collectives.algorithms.from_file import PACKED
from collectives.algorithms.from_file import is_program as is_program
from collectives.algorithms.from_file import own as own
from collectives.algorithms.levels import by_plan
from collectives.algorithms.levels import is_plan as is_plan
from collectives.algorithms.levels import parse_plan as parse_plan
from collectives.core import bounds
from collectives.core.bounds import Cost, Pipeline, height, share
from collectives.core.schedule import Schedule
from collectives.errors import suggest
from collectives.renamed import current_name
from collectives.units import MAX_CHUNKS, MAX_RANKS, MAX_RANKS_IN_PAIRS


class Mark(NamedTuple):
    """A colour and a marker, the same in every figure."""

    colour: str
    marker: str


# Okabe and Ito's colours, which colour-blind readers can tell apart, and Tol's where they do not
# suffice; ring and two-tree differ most. Algorithms that never meet in one collective may look
# alike.
BLUE, VERMILION, ORANGE = Mark("#0072B2", "o"), Mark("#D55E00", "s"), Mark("#E69F00", "^")
GREEN, PURPLE, SKY = Mark("#009E73", "D"), Mark("#CC79A7", "v"), Mark("#56B4E9", "X")
BRICK, NAVY = Mark("#994F00", "H"), Mark("#4B6FC4", "8")
OLIVE, WINE, TEAL = Mark("#999933", "<"), Mark("#882255", "p"), Mark("#44AA99", "d")
INDIGO, FOREST, NEUTRAL = Mark("#332288", "h"), Mark("#117733", ">"), Mark("#8c8c8c", "*")
VIOLET, GOLD, PLUM = Mark("#9467BD", "*"), Mark("#B8860B", "2"), Mark("#AA4499", "+")
MAGENTA, SLATE, ROSE = Mark("#EE3377", "x"), Mark("#5F7A8A", "3"), Mark("#B5651D", "4")
LIME = Mark("#76B900", "1")


Links = tuple[float, float, float]  # seconds a message, a byte, and a byte that is added


@dataclass(frozen=True)
class Algorithm:
    """An algorithm: the function that makes its schedule, and what else is known of it.

    Call it as that function.

    Only ``make`` is needed. Without a closed form (``cost``, ``pipeline`` or ``seconds``) "auto"
    leaves the algorithm out where it compares closed forms. Without a mark and a shape it is drawn
    in grey, on a ring.
    """

    make: Callable[..., Schedule]
    mark: Mark = NEUTRAL
    # Or "star", "tree", "two trees"; where ranks sit on nodes, the nodes decide.
    shape: str = "ring"
    # Of p: what the busiest port pays, step by step, for the whole buffer.
    cost: Callable[..., Cost] | None = None
    # How much of it stays inside nodes; both take ranks_per_node.
    inside: Callable[..., Cost] | None = None
    at_once: bool = False  # links inside nodes and outside work in the same steps
    pipeline: Callable[[int], Pipeline] | None = None  # what it pays for the buffer in segments
    # Of p, n, segments, latency, overhead, beta, where latencies overlap.
    seconds: Callable[..., float] | None = None
    # Of the one rank that alone sends, or receives: how many latencies follow each other.
    latencies: int = 0
    # An all-to-all in which each piece goes straight to its receiver, and may have any size.
    splits: bool = False

    def __call__(self, p: int, *arguments: object, **options: object) -> Schedule:
        """Return the schedule for ``p`` ranks."""
        return self.make(p, *arguments, **options)

    @cached_property
    def is_executable(self) -> bool:
        """Tell if ranks alone perform it.

        No back end commands a switch that adds, so "auto" leaves others out.

        >>> ALGORITHMS["all_reduce", "ring"].is_executable, ALGORITHMS["all_reduce", "in_network"].is_executable
        (True, False)
        """
        return not self.make(2).switches

    def split(self, p: int, g: int | None) -> tuple[Cost, Cost]:
        """Return the parts of ``cost`` inside and outside nodes of g ranks.

        Raises ValueError without such forms.

        >>> ALGORITHMS["all_reduce", "hierarchical_ring"].split(16, 8)
        (Cost(steps=14, sent=1.75, added=0.875), Cost(steps=2, sent=0.125, added=0.0625))
        """
        if self.cost is None or self.inside is None:
            raise ValueError(
                "forms on nodes: got none, expected a cost and what of it stays inside"
            )
        whole, within = self.cost(p, g), self.inside(p, g)
        return within, Cost(*(all_ - part for all_, part in zip(whole, within, strict=True)))

    def on_nodes(self, p: int, g: int | None, n: float, inside: Links, outside: Links) -> float:
        """Return the seconds of n bytes on nodes of g ranks.

        Links are (alpha, beta, gamma), inside and outside.

        >>> ring = ALGORITHMS["all_reduce", "multi_channel_ring"]
        >>> round(ring.on_nodes(16, 8, 8e6, inside=(1e-6, 1e-11, 0), outside=(5e-6, 1e-9, 0)), 5)
        0.00203
        """
        within, beyond = self.split(p, g)
        times = within.seconds(n, *inside), beyond.seconds(n, *outside)
        # Like links: one port for all.
        return max(times) if self.at_once and inside != outside else sum(times)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.make)


# Costs: Chan et al. 2007; Thakur, Rabenseifner and Gropp 2005. Of equal costs "auto" takes the
# first.
# fmt: off
ALGORITHMS: dict[tuple[str, str], Algorithm] = {
    ("broadcast", "flat"): Algorithm(
        direct.broadcast, SKY, "star", lambda p: Cost(p - 1, p - 1, 0), latencies=1),
    ("broadcast", "binomial"): Algorithm(
        tree.binomial_broadcast, GREEN, "tree", lambda p: Cost(height(p), height(p), 0)),
    ("broadcast", "chain"): Algorithm(
        tree.chain_broadcast, PURPLE, cost=lambda p: Cost(p - 1, p - 1, 0), pipeline=bounds.chain),
    ("broadcast", "scatter_allgather"): Algorithm(
        tree.scatter_allgather_broadcast, WINE, cost=lambda p: Cost(height(p) + p - 1, 2 * (p - 1) / p, 0)),
    ("broadcast", "two_tree"): Algorithm(
        tree.two_tree_broadcast, VERMILION, "two trees", pipeline=bounds.fed_trees),
    ("broadcast", "bine"): Algorithm(
        swing.bine_broadcast, TEAL, "tree", lambda p: Cost(height(p), height(p), 0)),
    ("broadcast", "circulant"): Algorithm(
        circulant.broadcast, VIOLET, pipeline=bounds.circulant),
    ("broadcast", "multi_channel_chain"): Algorithm(
        hierarchical.multi_channel_chain, GOLD),
    ("scatter", "flat"): Algorithm(
        direct.scatter, SKY, "star", lambda p: share(p, p - 1), latencies=1),
    ("scatter", "binomial"): Algorithm(
        tree.binomial_scatter, GREEN, "tree", lambda p: share(p, height(p))),
    ("gather", "flat"): Algorithm(
        direct.gather, SKY, "star", lambda p: share(p, p - 1), latencies=1),
    ("gather", "binomial"): Algorithm(
        tree.binomial_gather, GREEN, "tree", lambda p: share(p, height(p))),
    ("all_gather", "direct"): Algorithm(
        direct.all_gather, SKY, cost=lambda p: share(p, p - 1)),
    ("all_gather", "ring"): Algorithm(
        ring.all_gather, BLUE, cost=lambda p: share(p, p - 1)),
    ("all_gather", "recursive_doubling"): Algorithm(
        halving.all_gather, GREEN, cost=bounds.gather_by_doubling),
    ("all_gather", "bruck"): Algorithm(
        bruck.all_gather, ORANGE, cost=lambda p: share(p, height(p))),
    ("all_gather", "pat"): Algorithm(
        pat.all_gather, INDIGO, cost=lambda p: share(p, height(p))),
    ("all_gather", "bidirectional_ring"): Algorithm(
        ring.bidirectional_all_gather, NAVY, cost=lambda p: share(p, p - 1)),
    ("all_gather", "multi_channel_ring"): Algorithm(
        hierarchical.multi_channel_all_gather, GOLD, at_once=True,
        cost=lambda p, g=None: bounds.on_channels(share(p, p - 1), p, g),
        inside=lambda p, g=None: bounds.inside_channels(share(p, p - 1), p, g)),
    ("all_to_all", "direct"): Algorithm(
        direct.all_to_all, SKY, cost=lambda p: share(p, p - 1), splits=True),
    ("all_to_all", "pairwise"): Algorithm(
        direct.pairwise_all_to_all, PURPLE, cost=lambda p: share(p, p - 1), splits=True),
    ("all_to_all", "bruck"): Algorithm(
        bruck.all_to_all, ORANGE, cost=bounds.bruck_all_to_all),
    ("reduce", "flat"): Algorithm(
        direct.reduce, SKY, "star", lambda p: Cost(p - 1, p - 1, p - 1), latencies=1),
    ("reduce", "binomial"): Algorithm(
        tree.binomial_reduce, GREEN, "tree", lambda p: Cost(height(p), height(p), height(p))),
    ("reduce", "chain"): Algorithm(
        tree.chain_reduce, PURPLE, cost=lambda p: Cost(p - 1, p - 1, p - 1),
        pipeline=lambda p: bounds.chain(p)._replace(adds=1)),
    ("reduce", "rabenseifner"): Algorithm(
        tree.rabenseifner_reduce, WINE, cost=lambda p: Cost(p - 1 + height(p), 2 * (p - 1) / p, (p - 1) / p)),
    ("reduce", "two_tree"): Algorithm(
        tree.two_tree_reduce, VERMILION, "two trees", pipeline=lambda p: bounds.fed_trees(p)._replace(adds=1)),
    ("reduce", "bine"): Algorithm(
        swing.bine_reduce, TEAL, "tree", lambda p: Cost(height(p), height(p), height(p))),
    ("reduce", "circulant"): Algorithm(
        circulant.reduce, VIOLET, pipeline=lambda p: bounds.circulant(p)._replace(adds=1)),
    ("reduce_scatter", "ring"): Algorithm(
        ring.reduce_scatter, BLUE, cost=lambda p: share(p, p - 1, adds=True)),
    ("reduce_scatter", "recursive_halving"): Algorithm(
        halving.reduce_scatter, GREEN, cost=bounds.scatter_by_halving),
    ("reduce_scatter", "pairwise"): Algorithm(
        direct.pairwise_reduce_scatter, PURPLE, cost=lambda p: share(p, p - 1, adds=True)),
    ("reduce_scatter", "circulant"): Algorithm(
        bruck.reduce_scatter, VIOLET, cost=lambda p: share(p, height(p), adds=True)),
    ("reduce_scatter", "pat"): Algorithm(
        pat.reduce_scatter, INDIGO, cost=lambda p: share(p, height(p), adds=True)),
    ("reduce_scatter", "multi_channel_ring"): Algorithm(
        hierarchical.multi_channel_reduce_scatter, GOLD, at_once=True,
        cost=lambda p, g=None: bounds.on_channels(share(p, p - 1, adds=True), p, g),
        inside=lambda p, g=None: bounds.inside_channels(share(p, p - 1, adds=True), p, g)),
    ("all_reduce", "one_shot"): Algorithm(
        direct.one_shot, SKY, cost=lambda p: Cost(p - 1, p - 1, p - 1)),
    ("all_reduce", "reduce_broadcast"): Algorithm(
        direct.reduce_broadcast, PURPLE, "star", lambda p: Cost(2 * (p - 1), 2 * (p - 1), p - 1), latencies=2),
    ("all_reduce", "two_shot"): Algorithm(
        direct.two_shot, OLIVE, cost=lambda p: Cost(2 * (p - 1), 2 * (p - 1) / p, (p - 1) / p)),
    ("all_reduce", "ring"): Algorithm(
        ring.all_reduce, BLUE, cost=bounds.ring),
    ("all_reduce", "segmented_ring"): Algorithm(
        ring.segmented_ring, TEAL,
        pipeline=lambda p: Pipeline(0, 2 * (p - 1), p, adds=0.5), seconds=bounds.segmented_ring_seconds),
    ("all_reduce", "recursive_doubling"): Algorithm(
        halving.recursive_doubling, GREEN, cost=bounds.recursive_doubling),
    ("all_reduce", "halving_doubling"): Algorithm(
        halving.halving_doubling, WINE, cost=bounds.halving_doubling),
    ("all_reduce", "circulant"): Algorithm(
        bruck.all_reduce, VIOLET, cost=lambda p: Cost(2 * height(p), 2 * (p - 1) / p, (p - 1) / p)),
    ("all_reduce", "swing"): Algorithm(
        swing.all_reduce, BRICK, cost=lambda p: bounds.halving_doubling(p, bounds.even(p))),
    ("all_reduce", "swing_doubling"): Algorithm(
        swing.doubling, NAVY, cost=bounds.recursive_doubling),
    ("all_reduce", "tree"): Algorithm(
        tree.all_reduce, ORANGE, "tree", pipeline=lambda p: bounds.binary_trees(height(p), 1)),
    ("all_reduce", "overlapped_tree"): Algorithm(
        tree.overlapped, MAGENTA, "tree", pipeline=bounds.overlapped_tree),
    ("all_reduce", "two_tree"): Algorithm(
        tree.two_tree, VERMILION, "two trees", pipeline=lambda p: bounds.binary_trees(height(p), 2)),
    ("all_reduce", "hierarchical_ring"): Algorithm(
        hierarchical.hierarchical_ring, INDIGO, cost=bounds.hierarchical_ring, inside=bounds.inside_nodes),
    ("all_reduce", "hierarchical_tree"): Algorithm(
        hierarchical.hierarchical_tree, FOREST),
    ("all_reduce", "multi_channel_ring"): Algorithm(
        hierarchical.multi_channel_ring, GOLD, at_once=True,
        cost=lambda p, g=None: bounds.on_channels(bounds.ring(p), p, g),
        inside=lambda p, g=None: bounds.inside_channels(bounds.ring(p), p, g)),
    ("all_reduce", "multi_channel_tree"): Algorithm(
        hierarchical.multi_channel_tree, SLATE),
    ("all_reduce", "around_slow_rank"): Algorithm(
        ring.around_slow_rank, ROSE),
    ("all_reduce", "in_network"): Algorithm(
        direct.in_network, PLUM, "star", pipeline=bounds.in_network),
    ("all_reduce", "nvls_tree"): Algorithm(
        nvls.nvls_tree, LIME, "two trees"),
}
# fmt: on
COSTS = {names: each.cost for names, each in ALGORITHMS.items() if each.cost}
PIPELINES = {names: each.pipeline for names, each in ALGORITHMS.items() if each.pipeline}


def build(collective: str, algorithm: str, p: int, **options: int | str | None) -> Schedule:
    """Return the schedule of a named algorithm, built with those ``options`` (``root``, ``segments``, …) that it takes.

    ``algorithm`` may also be a plan by levels, as ``direct8/ring12*4`` (`levels`), one of your own,
    as ``file.py:function`` or ``file.xml`` (`own`), or trees packed into the links of a machine, as
    ``packed_trees@dgx1`` (`collectives.topology.trees`). A name of an earlier version is read as
    the present one (`collectives.renamed`). Raises ValueError for an unknown name, saying which are
    known, for more ranks or chunks than memory allows (`collectives.units`), and where the file's
    schedule is one for another collective or number of ranks. Raises ScheduleError where your
    function fails, or the program is wrong.

    >>> build("all_reduce", "ring", 4, root=0, segments=8).nsteps
    6
    """
    make = _function(collective, algorithm)
    _check_at_most("ranks", p, MAX_RANKS)
    if p > MAX_RANKS_IN_PAIRS and _is_in_pairs(make):
        _check_at_most(
            f"ranks for {collective} {algorithm}, a message for each pair", p, MAX_RANKS_IN_PAIRS
        )
    takes = inspect.signature(make).parameters
    schedule = make(
        p, **{name: value for name, value in options.items() if name in takes and value is not None}
    )
    if (schedule.collective, schedule.p) != (collective, p):
        raise ValueError(
            f"{algorithm} is {schedule.collective} on {schedule.p} ranks, not {collective} on {p}"
        )
    _check_at_most(f"chunks of {collective} {algorithm} on {p:,} ranks", schedule.k, MAX_CHUNKS)
    return replace(schedule, name=current_name(algorithm))


def takes(collective: str, algorithm: str, option: str) -> bool:
    """Tell if an algorithm takes an option such as ``root`` or ``segments``.

    Raises ValueError for an unknown name.

    >>> takes("all_reduce", "two_tree", "segments"), takes("all_reduce", "ring", "root")
    (True, False)
    """
    return option in inspect.signature(_function(collective, algorithm)).parameters


def is_own(algorithm: str) -> bool:
    """Return True if this names a schedule of the user's own: ``file.py:function`` or ``file.xml``."""
    return ".py:" in algorithm or algorithm.endswith(".py") or is_program(algorithm)


def is_for_links(algorithm: str) -> bool:
    """Return True if this names trees packed into a machine's links: ``packed_trees@dgx1`` (`topology.trees`)."""
    return algorithm.startswith(f"{PACKED}@")


def machine_of(algorithm: str) -> str:
    """Return the name of the machine that packed trees are named for.

    >>> machine_of("packed_trees@dgx1")
    'dgx1'
    """
    return algorithm.partition("@")[2]


def _function(collective: str, algorithm: str) -> Callable[..., Schedule]:
    name = current_name(algorithm)
    make = own(name) if is_own(name) else ALGORITHMS.get((collective, name))
    if make is None and is_plan(name):
        return by_plan(collective, name)
    if make is None and is_for_links(name):
        from collectives.topology.trees import on_links  # needs scipy

        return on_links(collective, machine_of(name))
    if make is None:
        if name == PACKED:
            raise ValueError(
                f"{PACKED}: got no machine, expected one after an @, as in {PACKED}@dgx1"
            )
        known = [each for of, each in ALGORITHMS if of == collective]
        near = suggest(name, known) if known else suggest(collective, [of for of, _ in ALGORITHMS])
        raise ValueError(f"no algorithm {name!r} for {collective!r}; {_known(collective)}{near}")
    return make


def _check_at_most(what: str, got: int, most: int) -> None:
    if got > most:
        raise ValueError(f"{what}: got {got:,}, expected at most {most:,}")


def _is_in_pairs(make: Callable[..., Schedule]) -> bool:
    """Return True if a step has a row for each pair of ranks and not for each rank, as 8 ranks show."""
    return any(len(step) > 3 * 8 for step in make(8).steps())


def executable() -> list[tuple[str, str]]:
    """Return the algorithms that ranks alone perform, without switches, as (collective, name)."""
    return [names for names, each in ALGORITHMS.items() if each.is_executable]


def candidates(collective: str, splits: bool = False) -> list[str]:
    """Return the algorithms by which ranks can run a call, on any machine: whatever names a best compares them all.

    Those for nodes are among them: on a flat network each rank is a node, in one node they are its
    rings and chains. With ``splits`` (an all-to-all whose pieces differ) only those whose pieces go
    straight to their receivers.

    >>> candidates("all_to_all"), candidates("all_to_all", splits=True)
    (['direct', 'pairwise', 'bruck'], ['direct', 'pairwise'])
    """
    return [
        name
        for name in names(collective, executable())
        if ALGORITHMS[collective, name].splits or not splits
    ]


def names(collective: str, among: Collection[tuple[str, str]] = ALGORITHMS) -> list[str]:
    """Return the names of a collective's algorithms: all, or those ``among`` some, such as `executable`.

    >>> names("broadcast")[:2]
    ['flat', 'binomial']
    >>> sorted({*names("all_reduce")} - {*names("all_reduce", executable())})
    ['in_network', 'nvls_tree']
    """
    return [name for of, name in among if of == collective]


def _known(collective: str) -> str:
    if names(collective):
        return f"{collective} has {', '.join(names(collective))}"
    return f"collectives with algorithms are {', '.join(dict.fromkeys(of for of, _ in ALGORITHMS))}"


def variants(collective: str, algorithm: str, p: int) -> Iterator[Schedule]:
    """Yield the schedules of one algorithm on p ranks that stand for all of its options.

    Every root up to p = 16 and three beyond; one segment and three; every size of node; messages of
    all parts, one and two; as many channels as a node has ranks, and two; both second trees where
    there are two.

    >>> len(list(variants("broadcast", "flat", 5))), len(list(variants("all_reduce", "two_tree", 6)))
    (5, 4)
    """
    values: dict[str, Sequence[object]] = {
        "root": range(p) if p <= 16 else (0, p // 2, p - 1),
        "segments": (1, 3),
        "ranks_per_node": [g for g in range(1, p + 1) if p % g == 0],
        "aggregate": (None, 1, 2),
        "channels": (None, 2),
        "second": ("shift",) if p % 2 else ("mirror", "shift"),
        "slow": (None, 0, p // 2),
    }
    make = ALGORITHMS[collective, algorithm]
    takes = [name for name in inspect.signature(make).parameters if name in values]
    for chosen in product(*(values[name] for name in takes)):
        yield make(p, **dict(zip(takes, chosen, strict=True)))

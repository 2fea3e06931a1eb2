"""Every algorithm, in one table: ``ALGORITHMS[collective, name](p, ...)`` makes a schedule."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from itertools import product

from collectives.algorithms import bruck, direct, halving, hierarchical, ring, tree
from collectives.algorithms.from_file import own as own
from collectives.limits import MOST_CHUNKS, MOST_RANKS, MOST_RANKS_IN_PAIRS
from collectives.schedule import Schedule

ALGORITHMS: dict[tuple[str, str], Callable[..., Schedule]] = {
    ("broadcast", "flat"): direct.broadcast,
    ("broadcast", "binomial"): tree.binomial_broadcast,
    ("broadcast", "chain"): tree.chain_broadcast,
    ("broadcast", "scatter_allgather"): tree.scatter_allgather_broadcast,
    ("broadcast", "two_tree"): tree.two_tree_broadcast,
    ("scatter", "flat"): direct.scatter,
    ("scatter", "binomial"): tree.binomial_scatter,
    ("gather", "flat"): direct.gather,
    ("gather", "binomial"): tree.binomial_gather,
    ("all_gather", "direct"): direct.all_gather,
    ("all_gather", "ring"): ring.all_gather,
    ("all_gather", "recursive_doubling"): halving.all_gather,
    ("all_gather", "bruck"): bruck.all_gather,
    ("all_to_all", "direct"): direct.all_to_all,
    ("all_to_all", "pairwise"): direct.pairwise_all_to_all,
    ("all_to_all", "bruck"): bruck.all_to_all,
    ("reduce", "flat"): direct.reduce,
    ("reduce", "binomial"): tree.binomial_reduce,
    ("reduce", "chain"): tree.chain_reduce,
    ("reduce", "rabenseifner"): tree.rabenseifner_reduce,
    ("reduce", "two_tree"): tree.two_tree_reduce,
    ("reduce_scatter", "ring"): ring.reduce_scatter,
    ("reduce_scatter", "recursive_halving"): halving.reduce_scatter,
    ("reduce_scatter", "pairwise"): direct.pairwise_reduce_scatter,
    ("all_reduce", "exchange"): direct.exchange,
    ("all_reduce", "root"): direct.root,
    ("all_reduce", "parameter_server"): direct.parameter_server,
    ("all_reduce", "ring"): ring.all_reduce,
    ("all_reduce", "segmented_ring"): ring.segmented_ring,
    ("all_reduce", "recursive_doubling"): halving.recursive_doubling,
    ("all_reduce", "halving_doubling"): halving.halving_doubling,
    ("all_reduce", "tree"): tree.all_reduce,
    ("all_reduce", "two_tree"): tree.two_tree,
    ("all_reduce", "hierarchical_ring"): hierarchical.hierarchical_ring,
    ("all_reduce", "hierarchical_tree"): hierarchical.hierarchical_tree,
}


def build(collective: str, algorithm: str, p: int, **options: int | str | None) -> Schedule:
    """The schedule of a named algorithm; of the options (``root``, ``segments``, …) it gets those that it takes.

    ``algorithm`` may also be one of your own, as ``file.py:function``. Raises ValueError for an unknown name, saying
    which are known, for more ranks or chunks than memory allows (`collectives.limits`), and where your function makes
    a schedule for another collective or number of ranks. Raises ScheduleError where your function fails (`own`).

    >>> build("all_reduce", "ring", 4, root=0, segments=8).nsteps
    6
    """
    make = _function(collective, algorithm)
    _need_at_most("ranks", p, MOST_RANKS)
    if p > MOST_RANKS_IN_PAIRS and _is_in_pairs(make):
        _need_at_most(f"ranks for {collective} {algorithm}, a message for each pair", p, MOST_RANKS_IN_PAIRS)
    takes = inspect.signature(make).parameters
    made = make(p, **{name: value for name, value in options.items() if name in takes and value is not None})
    if (made.collective, made.p) != (collective, p):
        raise ValueError(f"{algorithm} is {made.collective} on {made.p} ranks, not {collective} on {p}")
    _need_at_most(f"chunks of {collective} {algorithm} on {p:,} ranks", made.k, MOST_CHUNKS)
    return made


def takes(collective: str, algorithm: str, option: str) -> bool:
    """Whether an algorithm has an option such as ``root`` or ``segments``; ValueError for an unknown name.

    >>> takes("all_reduce", "two_tree", "segments"), takes("all_reduce", "ring", "root")
    (True, False)
    """
    return option in inspect.signature(_function(collective, algorithm)).parameters


def is_own(algorithm: str) -> bool:
    """Whether this names a schedule of your own, as ``file.py:function``, and none of ours."""
    return ".py:" in algorithm or algorithm.endswith(".py")


def _function(collective: str, algorithm: str) -> Callable[..., Schedule]:
    make = own(algorithm) if is_own(algorithm) else ALGORITHMS.get((collective, algorithm))
    if make is None:
        raise ValueError(f"no algorithm {algorithm!r} for {collective!r}; {_known(collective)}")
    return make


def _need_at_most(what: str, got: int, most: int) -> None:
    if got > most:
        raise ValueError(f"{what}: got {got:,}, expected at most {most:,}")


def _is_in_pairs(make: Callable[..., Schedule]) -> bool:
    """Whether steps have as many rows as there are pairs of ranks, and not as there are ranks: for 8 ranks it shows."""
    return any(len(step) > 3 * 8 for step in make(8).steps())


def names(collective: str) -> list[str]:
    """The algorithms of one collective.

    >>> names("broadcast")
    ['flat', 'binomial', 'chain', 'scatter_allgather', 'two_tree']
    """
    return [name for of, name in ALGORITHMS if of == collective]


def _known(collective: str) -> str:
    if names(collective):
        return f"{collective} has {', '.join(names(collective))}"
    return f"collectives with algorithms are {', '.join(dict.fromkeys(of for of, _ in ALGORITHMS))}"


def variants(collective: str, algorithm: str, p: int) -> Iterator[Schedule]:
    """The schedules of one algorithm that stand for all of it on p ranks.

    Every root up to p = 16 and three beyond; one segment and three; every size of node; both second trees where
    there are two.

    >>> len(list(variants("broadcast", "flat", 5))), len(list(variants("all_reduce", "two_tree", 6)))
    (5, 4)
    """
    values: dict[str, Sequence[object]] = {
        "root": range(p) if p <= 16 else (0, p // 2, p - 1),
        "segments": (1, 3),
        "ranks_per_node": [g for g in range(1, p + 1) if p % g == 0],
        "second": ("shift",) if p % 2 else ("mirror", "shift"),
    }
    make = ALGORITHMS[collective, algorithm]
    takes = [name for name in inspect.signature(make).parameters if name in values]
    for chosen in product(*(values[name] for name in takes)):
        yield make(p, **dict(zip(takes, chosen, strict=True)))

"""Check claims, by the names in ``claims.yaml``: counts of schedules, models, recorded rows.

`check` puts a function under its name. Its arguments are validated where the file is read, its value is found later.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial, wraps
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
from pydantic import BeforeValidator, ValidationError, validate_call

from collectives.algorithms import COSTS, build, names
from collectives.algorithms.binary_tree import NO_PARENT, binary_tree, second_tree
from collectives.bench.results import read
from collectives.bounds import best_segments, lower_bound, pipelined_seconds
from collectives.errors import explain, short, unknown
from collectives.interpret import apply, run
from collectives.machine import Link, Machine, machine
from collectives.schedule import Ints, Schedule, ScheduleError, Step
from collectives.simulator import overlap
from collectives.simulator.simulation import simulate
from collectives.traffic import traffic
from collectives.verify import verify
from collectives_book.massive_scale import published as article
from collectives_book.measured_machines import comparison
from collectives_book.needs import H100, MODELS, state_bytes
from collectives_book.overlap.layers import BACKWARD
from collectives_book.overlap.published import COMPUTING, ring_seconds

RANKS = (2, 3, 4, 8, 9, 64)  # where the file names no others
ALPHA, RATE = 5e-6, 25e9  # a message's seconds and the bytes per second of a node of the book's sample machine
UNIT = 1000  # elements of a chunk, where bytes are counted
TREES = {"tree": 1, "two_tree": 2}  # pipelined in the best number of segments
MACHINE = "marenostrum5"  # of PICO's samples

# The claims belong to the book's checkout: a wheel has neither the recorded rows nor the list of references.
CHECKOUT = Path(__file__).resolve().parents[2]

Found = Callable[[], Any]
# Of the values of other checks, as the file has them: one value, or several.
VALUES: dict[str, Callable[[Any], Any]] = {
    "ratio": lambda of: np.divide(*of),
    "difference": lambda of: np.subtract(*of),
    "product": lambda of: np.multiply(*of),
    "power": lambda of: np.divide(*np.diff(np.log(of))),  # by which the first pair grows where the second does
    "increments": lambda of: np.round(np.diff(of), 1),
    "spread": lambda of: np.max(np.abs(of / np.mean(of) - 1)),  # the largest distance from the mean, as a share of it
    "grows": lambda of: bool(np.all(np.diff(of) > 0)),
    "total": np.sum,
    "greatest": np.max,
    "least": np.min,
    "distinct": lambda of: len(set(of)),
}
# The other functions of this file, by their names.
CHECKS: dict[str, Callable[..., Found]] = {}


def check(function: Callable[..., Any]) -> Callable[..., Any]:
    """Register a function under its name; from there, a call with valid arguments returns what finds the value."""

    @wraps(function)
    def prepared(*args: Any, **options: Any) -> Found:
        return partial(function, *args, **options)

    prepared.__annotations__ = function.__annotations__ | {"return": Any}
    CHECKS[function.__name__] = validate_call(prepared)
    return function


def prepare(call: Any) -> Found:
    """Return what finds the value of a check as the file has it; raises ValueError for what the file cannot have.

    A number stands for itself, a list for all of its checks, ``{name: check}`` for one of `VALUES`, and
    ``{name: argument, other: argument}`` for one of `CHECKS`, or a bare name where it needs no argument.

    >>> prepare([1, {"steps": "ring", "ranks": [2, 4]}])()
    (1, (2, 6))
    """
    if isinstance(call, list):
        parts = [prepare(each) for each in call]
        return lambda: tuple(part() for part in parts)
    if isinstance(call, int | float):
        return lambda: call
    if not isinstance(call, str | dict) or not call:
        raise ValueError(f"not a check: got {short(call)}, expected a number, a list, a name or {{name: argument}}")
    name, *first = (call,) if isinstance(call, str) else next(iter(call.items()))
    options = {} if isinstance(call, str) else {key: call[key] for key in list(call)[1:]}
    if name in VALUES and first and not options:
        of = prepare(*first)
        return lambda: VALUES[name](of())
    if name not in CHECKS:
        raise ValueError(unknown("check", name, [*VALUES, *CHECKS]))
    try:
        return CHECKS[name](*first, **options)
    except ValidationError as error:
        raise ValueError(f"check {name}: {explain(error)}") from None


def several(given: Any) -> Any:
    """Return a list of numbers from one number, from a list, or from text such as "2 to 40"."""
    if isinstance(given, str):
        low, _, high = given.partition(" to ")
        return range(int(low), int(high) + 1)
    return given if isinstance(given, list) else [given]


Numbers = Annotated[tuple[int, ...], BeforeValidator(several)]


# Schedules.


@cache
def schedule(algorithm: str, p: int, collective: str = "all_reduce", segments: int | None = None) -> Schedule:
    """Return one of the library's schedules."""
    return build(collective, algorithm, p, segments=segments)


@check
def steps(algorithm: str, ranks: Numbers = RANKS, collective: str | list[str] = "all_reduce") -> tuple[int, ...]:
    """Return the number of steps on each number of ranks; of several collectives, one after the other."""
    parts = [collective] if isinstance(collective, str) else collective
    return tuple(sum(schedule(algorithm, p, part).nsteps for part in parts) for p in ranks)


@check
def chunks(algorithm: str, ranks: Numbers = RANKS) -> tuple[int, ...]:
    """Return the number of chunks on each number of ranks."""
    return tuple(schedule(algorithm, p).k for p in ranks)


@check
def buffers(
    algorithm: str,
    what: Literal[
        "sent in all",
        "sent by the busiest",
        "sent by rank 0",
        "received by rank 0",
        "through rank 0",
        "share of the busiest",
    ],
    ranks: Numbers = RANKS,
    collective: str = "all_reduce",
    times: float = 1.0,
) -> tuple[float, ...]:
    """Return what ranks send or receive on each number of ranks, in buffers, a buffer being ``times`` what is asked."""
    found = []
    for of in (schedule(algorithm, p, collective) for p in ranks):
        moved = traffic(of, of.k * UNIT)
        sent, received = (np.asarray(each) / (of.k * UNIT) for each in (moved.sent, moved.received))
        values = {
            "sent in all": sent.sum(),
            "sent by the busiest": sent.max(),
            "sent by rank 0": sent[0],
            "received by rank 0": received[0],
            "through rank 0": sent[0] + received[0],
            "share of the busiest": (sent + received).max() / max(sent.sum(), 1),
        }
        found.append(round(float(values[what]) * times, 9))
    return tuple(found)


@check
def proved(algorithm: str, ranks: Numbers = RANKS) -> bool:
    """Return True if `verify` accepts an all-reduce on all of these numbers of ranks; or every one of the library."""
    try:
        for name in names("all_reduce") if algorithm == "every" else [algorithm]:
            for p in ranks:
                verify(schedule(name, p))
    except ScheduleError:
        return False
    return True


@check
def complete_chunks(algorithm: str, ranks: int, collective: str = "all_reduce") -> tuple[int, ...]:
    """Return the number of chunks on each rank to which every rank has contributed exactly once."""
    return complete(schedule(algorithm, ranks, collective))


@check
def complete_after_turns(turns: Numbers) -> tuple[int, ...]:
    """Return the same of scatter-reduce as two sources number it, with each rank's number of turns.

    At turn i rank r sends chunk r - i to rank r + 1.
    """
    p, wanted = len(turns), np.array(turns)

    def make(t: int) -> Step:
        rank = np.flatnonzero(wanted > t)
        return Step(rank, (rank + 1) % p, (rank - t) % p, add=True)

    return complete(Schedule("reduce_scatter", p, p, max(turns), make))


def complete(of: Schedule) -> tuple[int, ...]:
    """Return the number of complete chunks on each rank."""
    held = np.zeros((of.p, of.k, of.p), dtype=np.int64)
    held[np.arange(of.p), :, np.arange(of.p)] = 1
    return tuple((run(of, held) == 1).all(axis=2).sum(axis=1).tolist())


@check
def messages(algorithm: str, ranks: int) -> tuple[str, ...]:
    """Return every pair of ranks that exchanges a message, as ``0>1``."""
    parts = schedule(algorithm, ranks).steps()
    pairs = {(int(a), int(b)) for step in parts for a, b in zip(step.src, step.dst, strict=True)}
    return tuple(f"{a}>{b}" for a, b in sorted(pairs))


@check
def added(algorithm: str, ranks: int) -> tuple[bool, ...]:
    """Return, of each step, True if all of its messages are added where they arrive."""
    return tuple(bool(np.all(step.add)) for step in schedule(algorithm, ranks).steps())


@check
def crossing(nodes: int) -> int:
    """Return the messages of a ring's step that cross the network, on so many nodes of as many ranks, one by one."""
    step = schedule("ring", nodes**2).step(0)
    return int(np.sum(step.src // nodes != step.dst // nodes))


@check
def letters_after(turns: int) -> tuple[str, ...]:
    """Return whose parts are in chunks 1 to 4, on the rank that received each last in a ring's first steps.

    Our ring calls those chunks 3, 0, 1, 2.
    """
    ring, held = schedule("ring", 4), np.array([[letter] * 4 for letter in "abcd"], dtype=object)
    for t in range(turns):
        apply(ring.step(t), held)
    return tuple("".join(sorted(held[(c + turns) % 4, (c - 1) % 4])) for c in range(4))


@check
def sums_of_squares(ranks: int) -> Any:
    """Return element 0 of every rank after a ring, where rank i starts with i squared."""
    held = np.repeat((np.arange(ranks) ** 2)[:, None], ranks, axis=1)
    return run(schedule("ring", ranks), held)[:, 0]


@check
def exchanged() -> tuple[str, ...]:
    """Return what the four ranks have after an all-to-all, where rank A starts with A0 to A3."""
    labels = np.array([f"{letter}{to}" for letter in "ABCD" for to in range(4)], dtype=object)
    held = run(schedule("pairwise", 4, "all_to_all"), np.tile(labels, (4, 1)))
    return tuple(" ".join(held[rank, rank::4]) for rank in range(4))


@check
def same_order(algorithms: list[str]) -> bool:
    """Return True if all-reduces on 64 ranks have the same order by the busiest rank's messages and by its bytes."""
    schedules = [schedule(name, 64) for name in algorithms]
    by_messages = np.argsort([int(traffic(each, each.k).messages_sent.max()) for each in schedules], kind="stable")
    by_bytes = np.argsort([buffers(name, "sent by the busiest", (64,))[0] for name in algorithms], kind="stable")
    return bool((by_messages == by_bytes).all())


@check
def shards(samples: int, ranks: int) -> Any:
    """Return how this library divides a batch among ranks."""
    return np.diff(schedule("ring", ranks).cut(samples))


@check
def product_by_shards() -> bool:
    """Return True if the shards' rows of X W + b are the batch's, on numbers."""
    x, w, b = np.arange(64.0).reshape(16, 4), np.arange(12.0).reshape(4, 3), np.arange(3.0)
    return bool((np.concatenate([part @ w + b for part in np.split(x, 4)]) == x @ w + b).all())


# Trees.


def inside(parent: Ints) -> set[int]:
    """Return the ranks of a tree that have children."""
    return set(parent[parent != NO_PARENT].tolist())


def other_tree(p: int, how: str) -> Ints:
    """Return a second tree; a mirrored one, where rank r plays p - 1 - r, also of an odd number of ranks."""
    if how != "mirror":
        return second_tree(p, how)
    other_way = binary_tree(p)[::-1]
    return np.where(other_way == NO_PARENT, NO_PARENT, p - 1 - other_way)


@check
def internal(ranks: Numbers) -> tuple[float, ...]:
    """Return the share of a tree's ranks that have children, on each number of ranks."""
    return tuple(len(inside(binary_tree(p))) / p for p in ranks)


@check
def internal_in_both(second: list[Literal["shift", "mirror"]], ranks: Numbers) -> tuple[int, ...]:
    """Return the number of ranks that have children in the first and in each second tree, on each number of ranks."""
    return tuple(len(inside(binary_tree(p)) & inside(other_tree(p, how))) for how in second for p in ranks)


@check
def with_two_children(ranks: Numbers) -> tuple[float, ...]:
    """Return the share of the inner ranks that has two children, in a textbook's complete tree: 2r + 1 and 2r + 2."""
    counts = [np.bincount((np.arange(1, p) - 1) // 2) for p in ranks]
    return tuple(float(np.mean(each[each > 0] == 2)) for each in counts)


@check
def parents(of: list[int], mirrored: bool = False) -> Any:
    """Return the parents of ranks in the first tree of 32 ranks, or in its mirror image."""
    return (other_tree(32, "mirror") if mirrored else binary_tree(32))[of]


@check
def parents_and_children(ranks: int) -> tuple[int, ...]:
    """Return parents, then children, in both trees of each rank that is no root; the same numbers once."""
    trees = binary_tree(ranks), second_tree(ranks, "mirror")
    others = [r for r in range(ranks) if r not in {0, ranks - 1}]
    above = {sum(int(tree[r]) >= 0 for tree in trees) for r in others}
    below = {sum(int((tree == r).sum()) for tree in trees) for r in others}
    return (*sorted(above), *sorted(below))


@check
def leaves_both_ways(algorithm: str) -> tuple[int, ...]:
    """Return the number of steps in which a leaf of one tree on 32 ranks sends and receives: one segment, and eight."""
    leaves = set(range(32)) - inside(binary_tree(32))
    trees = (schedule(algorithm, 32, segments=segments).steps() for segments in (1, 8))
    return tuple(sum(bool(leaves & {*step.src.tolist()} & {*step.dst.tolist()}) for step in each) for each in trees)


@check
def duplex() -> float:
    """Return the share of the steps of two trees, 32 ranks and segments, in which nine in ten send and receive."""
    parts = schedule("two_tree", 32, segments=32).steps()
    return float(np.mean([len(np.intersect1d(step.src, step.dst)) / 32 >= 0.9 for step in parts]))


@check
def first_trees_share() -> float:
    """Return the share of the bytes that flow through the first of two trees on 32 ranks."""
    trees = schedule("two_tree", 32, segments=4)
    return float(np.mean(np.concatenate([step.chunk for step in trees.steps()]) < trees.k // 2))


# Times by models.


def seconds(name: str, p: int, n: float) -> float:
    """Return the time of an all-reduce of n bytes on the sample machine, or the lower bound, by closed forms."""
    if name == "bound":
        return lower_bound("all_reduce", p, n, ALPHA, 1 / RATE)
    if trees := TREES.get(name):
        return pipelined_seconds(p, n, best_segments(p, n, ALPHA, 1 / RATE, trees), ALPHA, 1 / RATE, trees)
    return COSTS["all_reduce", name](p).seconds(n, ALPHA, 1 / RATE)


@check
def model(algorithm: str, over: str, n: float, ranks: Numbers = RANKS) -> tuple[float, ...]:
    """Return one time of the sample machine over another, "bound" for the least possible, on each number of ranks."""
    return tuple(seconds(algorithm, p, n) / seconds(over, p, n) for p in ranks)


@check
def hops(algorithm: str, ranks: Numbers = RANKS) -> tuple[float, ...]:
    """Return the latencies that pass one after the other: the time of a few bytes where nothing else takes time."""
    only = Machine(name="latency only", network=Link(latency=1.0, overhead=0.0, rate=1e30))
    each = [schedule(algorithm, p) for p in ranks]
    return tuple(round(simulate(of, only, of.k * 4).seconds, 6) for of in each)


@check
def one_slow_node(sizes: Numbers, factor: float = 4.0) -> tuple[float, ...]:
    """Return the time of a ring with one slow node over that with all links as slow, 16 ranks of the sample machine."""
    ring = schedule("ring", 16)
    one = Machine(name="one slow", network=Link(overhead=ALPHA, rate=RATE), slower={3: factor})
    every = Machine(name="all slow", network=Link(overhead=ALPHA, rate=RATE / factor))
    return tuple(round(simulate(ring, one, n).seconds / simulate(ring, every, n).seconds, 6) for n in sizes)


@check
def exposed_by_model(count: int) -> float:
    """Return the exposed seconds of Baidu's 40 GPUs with that many buckets, by the model of two lanes."""
    return overlap.exposed(overlap.ready_times(count, BACKWARD * COMPUTING), [ring_seconds(40) / count] * count)


@check
def of_an_h100(parameters: float) -> float:
    """Return the state of a model that is trained, in memories of an H100."""
    return state_bytes(parameters) / H100.memory


@check
def models_beyond_an_h100() -> int:
    """Return the number of the book's models whose state exceeds the memory of an H100."""
    return sum(state_bytes(each.parameters) > H100.memory for each in MODELS)


@check
def ranks_per_node(preset: str) -> int:
    """Return the ranks of a node of a preset machine."""
    return machine(preset).ranks_per_node


# Recorded rows, and what others published.


def in_checkout(*parts: str) -> Path:
    """Return a path of the checkout; raises FileNotFoundError where this package is installed without one."""
    if not (CHECKOUT / "chapters").is_dir() or not (CHECKOUT / "experiments").is_dir():
        raise FileNotFoundError(f"no checkout: got {CHECKOUT}, expected a folder with chapters/ and experiments/")
    return CHECKOUT.joinpath(*parts)


@cache
def rows(name: str) -> Any:
    """Return recorded rows, such as ``reference/slow-motion/scaling``."""
    return read(in_checkout("experiments", "results", name))[0]


TABLES: dict[str, Callable[[], Any]] = {
    "weak scaling": lambda: rows("reference/slow-motion/weak-scaling").assign(
        exposed=lambda found: found.median_us / found.slower / 1e6  # seconds in the time of the original
    ),
    "simulated Summit": lambda: rows("reference/computed/massive-scale").loc[lambda found: found.part == "figures"],
    "MareNostrum 5": lambda: comparison.compared(MACHINE).assign(
        predicted_over_measured=lambda found: found.us / found.median_us
    ),
    "figures 3 and 4": lambda: pd.DataFrame(article.POINTS),
    "figure 5": lambda: pd.DataFrame(article.IMAGES, index=["ring", "hierarchical ring", "tree"]).T,
}


@check
def recorded(
    table: Literal["weak scaling", "simulated Summit", "MareNostrum 5", "figures 3 and 4", "figure 5"],
    column: str,
    where: dict[str, Any] | None = None,
) -> list[float]:
    """Return a column of recorded or published rows: all of it, or a value for each combination of ``where``'s values.

    Each combination has one row.
    """
    found = TABLES[table]()
    if where is None:
        return [float(each) for each in found[column]]
    wanted = product(*(each if isinstance(each, list) else [each] for each in where.values()))
    values = [found.loc[(found[list(where)] == list(each)).all(axis=1), column] for each in wanted]
    return [float(each.item()) for each in values]


@check
def lost_accuracy(batches: list[int]) -> float:
    """Return the most accuracy that a batch costs after the same samples, with the better rule for the rate."""
    found = rows("reference/slow-motion/data-parallel")
    by = found[found.part == "rates"].groupby(["rule", "batch"]).accuracy.median().groupby("batch").max()
    return float(by[min(by.index)] - min(by[batch] for batch in batches))


@check
def simulation_error(nbytes: int) -> float:
    """Return the largest relative error of that simulation against the article's points of one size."""
    compared = article.compare(TABLES["simulated Summit"]().to_dict("records"))
    return max(abs(float(one["error"])) for one in compared if one["bytes"] == nbytes)


@check
def series_of_figure_5() -> int:
    """Return the number of series that figure 5 shows."""
    return len(article.IMAGES[256])


@check
def reference(key: str, fields: list[Literal["author", "year"]]) -> tuple[str, ...]:
    """Return fields of the book's list of references, of the authors their surnames."""
    text = in_checkout("chapters", "references.bib").read_text(encoding="utf8")
    lines = [line.strip() for line in text.partition(f"{{{key},")[2].partition("\n}")[0].splitlines()]
    values = [next(line.partition("{")[2].rstrip("},") for line in lines if line.startswith(each)) for each in fields]
    return tuple(name.partition(",")[0] for value in values for name in value.split(" and "))


@check
def behaves(labels: list[str]) -> tuple[str, ...]:
    """Return what each label's times are like: the ring's, or the tree's for small buffers alone."""
    near = comparison.sides(comparison.measured(MACHINE))

    def like(label: str) -> str:
        found = comparison.behaviour(near, label)
        if found.tree == 0:
            return "ring"
        sure = found.expected >= 0.9 * (found.ring + found.tree)
        return "tree for small buffers, ring for large ones" if sure and found.ring else "unclear"

    return tuple(map(like, labels))

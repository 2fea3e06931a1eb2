"""The claims of NVIDIA's article on NCCL 2.4, Jeaugey 2019, by its text and its figures."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from collectives.algorithms.binary_tree import binary_tree, second_tree
from collectives.algorithms.tree import both_trees, double_down
from collectives.machine import machine
from collectives_book.claims import checks
from collectives_book.claims.checks import inside
from collectives_book.claims.ledger import AT_LEAST, AT_MOST, EQUAL, LESS, Claim, Excluded, Given, Source, within
from collectives_book.claims.subonis import COUNTS, EVEN, ON_COUNTS, by_parity, interior_in_both, mirrored
from collectives_book.figures.statements import listed
from collectives_book.massive_scale import published
from collectives_book.massive_scale.published import POINTS

PAGE, TWO = "massive-scale", "two-tree-all-reduce"
LAST, FIRST = POINTS[-1], POINTS[0]
FLAT, HIERARCHICAL, TREE = 0, 1, 2
GPUS = tuple(point.ranks for point in POINTS)
ON_GPUS = f"On {listed([f'{p:,}' for p in GPUS])} GPUs"


def simulated(algorithm: str, ranks: int, nbytes: int = published.SMALL, column: str = "seconds") -> float:
    """A recorded row of the simulation on Summit."""
    found = checks.rows("quick/massive-scale")
    wanted = (
        (found.part == "figures") & (found.algorithm == algorithm) & (found.ranks == ranks) & (found.bytes == nbytes)
    )
    (value,) = found[wanted][column]
    return float(value)


def added_by_doubling() -> tuple[float, ...]:
    """Microseconds that the tree's latency grows by when the GPUs double, from 96 to 24,576."""
    times = [simulated("hierarchical_tree", 96 << i) * 1e6 for i in range(9)]
    return tuple(float(each) for each in np.round(np.diff(times), 1))


def over_2d(first: int) -> float:
    """The simulated latency of the tree over that of the 2D ring, at most, from 96 << first GPUs on."""
    gpus = (96 << i for i in range(first, 9))
    return max(simulated("hierarchical_tree", p) / simulated("hierarchical_ring", p) for p in gpus)


def nodes(counts: tuple[int, ...]) -> tuple[float, ...]:
    """The share of a tree's ranks that are no leaves."""
    return tuple(len(inside(binary_tree(p))) / p for p in counts)


def neighbours(p: int) -> tuple[int, ...]:
    """Parents, then children in both trees, of each rank that is no root; the same numbers once."""
    first, second = binary_tree(p), second_tree(p, "mirror")
    roots = {0, p - 1}
    parents = {sum(int(tree[r]) >= 0 for tree in (first, second)) for r in range(p) if r not in roots}
    below = {sum(int((tree == r).sum()) for tree in (first, second)) for r in range(p) if r not in roots}
    return (*sorted(parents), *sorted(below))


def half_twice(p: int) -> float:
    """What the busiest rank sends in the broadcast, in buffers."""
    return max(checks.sent(double_down(both_trees(p), 4)))


def errors(nbytes: int) -> float:
    """The largest relative error of our simulation against the published points of one size."""
    rows = checks.rows("quick/massive-scale")
    found = published.compare(rows[rows.part == "figures"].to_dict("records"))
    return max(abs(float(one["error"])) for one in found if one["bytes"] == nbytes)


def gain(series: int, over: int, as_share: bool) -> tuple[float, ...]:
    """Images a second that one series has more than another: as a share of it, or their number."""
    bars = published.IMAGES.values()
    return tuple(bar[series] / bar[over] - 1 if as_share else float(bar[series] - bar[over]) for bar in bars)


def spread(gains: tuple[float, ...]) -> float:
    """By which share of their mean values differ from it at most."""
    mean = sum(gains) / len(gains)
    return max(abs(each / mean - 1) for each in gains)


def grows(gains: tuple[float, ...]) -> bool:
    """Whether each value is above the one before."""
    return all(after > before for before, after in pairwise(gains))


# fmt: off
ENTRIES: tuple[Claim | Excluded, ...] = (
    Claim(
        "text.1", "full bandwidth", "Rings have the full bandwidth.", (1.0,) * 3,
        lambda: checks.endless((96, 768, 24576)),
        EQUAL, "On 96, 768 and 24,576 ranks, the closed form over the lower bound, for an endless buffer: {}.",
        "ring-all-reduce",
    ),
    Claim(
        "text.2", "latency linear in GPUs", "A ring's latency grows linearly with the GPUs.", 1.0,
        lambda: math.log(simulated("ring", 24576) / simulated("ring", 96)) / math.log(256), within(0.05),
        "Simulated on Summit from 96 to 24,576 GPUs, it grows with the power {} of their number.", PAGE,
    ),
    Excluded(
        "text.3", "above hundreds of GPUs", "Rings do not scale above hundreds of GPUs.",
        "a judgement without a limit to compare with; its reason is the claim above",
    ),
    Excluded(
        "text.4", "ImageNet in four minutes", "Others trained ImageNet in 4 minutes and in 224 s.",
        "other people's runs, on machines that cannot be had here",
    ),
    Claim(
        "text.5", "logarithmic latency", "Two trees have full bandwidth and a latency that grows with the logarithm.",
        (15.0,) * 8, added_by_doubling, within(0.1), "Simulated on Summit, every doubling of the GPUs adds {} µs.",
        PAGE, note="NCCL 2.4 itself reckons 15 µs for a level of nodes.",
    ),
    Claim(
        "text.6", "even lower than 2D ring", "The trees' latency is below that of the 2D ring.", 1.0,
        lambda: over_2d(0), LESS,
        "On 96 to 24,576 GPUs, the simulated tree takes up to {} times as long as the 2D ring.", PAGE,
        Given("there are 192 GPUs or more", lambda: over_2d(1)),
        note="The article shows no latency of a 2D ring. Ours is simulated.",
    ),
    Claim(
        "text.7", "MPI 2009", "Double binary trees were introduced in 2009.", "2009",
        lambda: checks.reference("sanders2009", "year"), EQUAL, "The paper is of {}.", TWO,
        note="A shorter version appeared at a conference in 2007.",
    ),
    Claim(
        "text.8", "half or fewer", "Half or fewer of a tree's ranks are nodes, half or more are leaves.",
        (0.5,) * len(COUNTS), lambda: nodes(COUNTS), AT_MOST,
        f"{ON_COUNTS}, {{}} are nodes.", TWO,
        Given("the number of ranks is even", lambda: nodes(EVEN), (0.5,) * len(EVEN)),
        note="An odd number has one node more than leaves, because the root has a single child.",
        form=checks.percentages,
    ),
    Claim(
        "text.9", "no rank is a node", "No rank is a node in both trees; one may be a leaf in both.",
        (0,) * len(COUNTS), lambda: tuple(interior_in_both(p, "shift") for p in COUNTS), EQUAL,
        "Ranks that are nodes in both: {}.", TWO,
        Given(
            "the number of ranks is even", lambda: tuple(interior_in_both(p, "shift") for p in EVEN), (0,) * len(EVEN)
        ),
        form=by_parity,
        note="An odd number has it the other way round: one rank is a node in both, none a leaf in both.",
    ),
    Claim(
        "text.10", "two parents and two children", "Every rank but the roots has two parents and two children.",
        (2, 2), lambda: neighbours(32), EQUAL, "Counted on 32 ranks: {}.", TWO,
    ),
    Claim(
        "text.11", "half twice", "Every rank sends half of the data at most twice.", (1.0,) * len(EVEN[:-1]),
        lambda: tuple(half_twice(p) for p in EVEN[:-1]), AT_MOST,
        f"On {listed([str(p) for p in EVEN[:-1]])} ranks, the busiest rank sends {{}} n in the broadcast.", TWO,
        note="That is one phase. An all-reduce has two, so that a rank sends 2 n, as in a ring.",
    ),
    Claim(
        "text.12", "24,576 GPUs", "Up to 24,576 GPUs were tested: 4,096 nodes of six.", 24576,
        lambda: 4096 * machine("summit").ranks_per_node, EQUAL, "The preset of Summit has so many in 4,096 nodes: {}.",
        PAGE,
    ),
    Claim(
        "text.13", "up to 180x improvement", "With 24,576 GPUs the latency is 180 times lower.",
        float(published.IMPROVEMENT),
        lambda: simulated("ring", LAST.ranks) / simulated("hierarchical_tree", LAST.ranks), within(0.1),
        f"Simulated, {{}} times. The article's figure shows {LAST.ring_seconds / LAST.tree_seconds:.0f}.", PAGE,
    ),
    Claim(
        "text.14", "degrades a bit", "At scale the trees' bandwidth degrades a bit. (As a rule: by a tenth at most.)",
        0.1, lambda: 1 - LAST.tree_busbw / FIRST.tree_busbw, AT_MOST,
        "From 96 to 24,576 GPUs the article's own figure falls by {}.", PAGE,
        note="Our simulation falls as well, where messages cross between racks; that limit was fitted.",
        form=lambda share: f"{share:.0%}",
    ),
    Claim(
        "text.15", "show a clear advantage", "Trees keep an advantage when bandwidth limits them.", 1.0,
        lambda: min(point.tree_busbw / point.ring_busbw for point in POINTS), AT_LEAST,
        f"{ON_GPUS}, by the article's figure, the trees' bandwidth is at least {{}} times the ring's.", PAGE,
        note="The page compares our simulation with that figure.",
    ),
    Claim(
        "text.16", "advantage remains constant",
        "The hierarchical ring's advantage over the flat ring remains constant. (As a rule: within a "
        "quarter of its mean.)",
        0.25, lambda: spread(gain(HIERARCHICAL, FLAT, True)), AT_MOST,
        "As a share of the flat ring's images a second, it differs from its mean by up to {}.", PAGE,
        Given("it is counted in images a second", lambda: spread(gain(HIERARCHICAL, FLAT, False))),
        form=lambda share: f"{share:.0%}",
        note="As a share it goes from {:.0%} to {:.0%}.".format(*gain(HIERARCHICAL, FLAT, True)[::2]),
    ),
    Claim(
        "text.17", "advantage increases", "The trees' advantage increases with the GPUs.", True,
        lambda: grows(gain(TREE, FLAT, True)), EQUAL, "As a share of the flat ring's images a second: {}.", PAGE,
        Given(
            "it is counted in images a second, or over the hierarchical ring",
            lambda: grows(gain(TREE, FLAT, False)) and grows(gain(TREE, HIERARCHICAL, True)),
        ),
        note="Over the flat ring it goes from {:.1%} to {:.1%}.".format(*gain(TREE, FLAT, True)[::2]),
    ),
    Claim(
        "figure.1", "32 ranks", "The first tree of 32 ranks: 0, then 16, then 8 and 24, then 4, 12, 20, 28.",
        (0, 16, 16, 8, 8, 24, 24), lambda: tuple(binary_tree(32)[[16, 8, 24, 4, 12, 20, 28]].tolist()), EQUAL,
        "The parents of 16, 8, 24, 4, 12, 20 and 28: {}.", TWO,
    ),
    Claim(
        "figure.2", "31, 15, 7, 23", "The second tree is its mirror image: 31, then 15, then 7 and 23.", (31, 15, 15),
        lambda: tuple(mirrored(32)[[15, 7, 23]].tolist()), EQUAL, "The parents of 15, 7 and 23: {}.", TWO,
        note="What was measured was shifted: NCCL's code of that time mirrored odd numbers only.",
    ),
    Claim(
        "figure.3", "8 bytes", "Latency of 8 bytes, five points each. (As a rule: we come within 15%.)", 0.15,
        lambda: errors(published.SMALL), AT_MOST, "The largest error of our simulation is {}.", PAGE,
        form=lambda share: f"{share:.1%}",
    ),
    Claim(
        "figure.4", "64MB", "Bandwidth of 64 MB, five points each. (As a rule: we come within 15%.)", 0.15,
        lambda: errors(published.LARGE), AT_MOST, "The largest error of our simulation is {}.", PAGE,
        form=lambda share: f"{share:.1%}",
    ),
    Excluded(
        "figure.5", "ResNet-50", "Images a second on 256 to 1,024 GPUs.",
        "the article gives neither batch nor computing time, so nothing can be simulated; only its "
        "ratios are judged, above",
    ),
)
# fmt: on

SOURCE = Source("NVIDIA", "jeaugey2019", "claim", {"text": 17, "figure": 5}, ENTRIES)

"""The places of ranks in a picture (a ring, a hub, the levels of a tree, nodes), and the turns in which they send."""

from itertools import count
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives.algorithms import ALGORITHMS, is_for_links, machine_of
from collectives.algorithms.binary_tree import depths
from collectives.core.contracts import contract
from collectives.core.schedule import Schedule, Step
from collectives.machine import machine
from collectives.renamed import current_name

Points = NDArray[np.float64]
Line = tuple[float, float, float, float]

SHAPES = {name: each.shape for (_, name), each in reversed(ALGORITHMS.items())}
# How far arrows bend that do not follow a circle; other shapes 0.13.
BENDS = {"tree": 0.07, "two trees": 0.07, "nodes": 0.28}


class Placement(NamedTuple):
    """Points in the unit square (float64, shape (participants, 2), y downwards), and the radius of a rank in that unit.

    ``around`` is the number of places on a circle whose neighbours are joined by its arc; 0 without
    a circle. ``nodes`` are the lines (x, y, x, y) from the first rank of each node to its last.
    """

    shape: str
    points: Points
    radius: float
    around: int
    nodes: list[Line]


def layout(schedule: Schedule, algorithm: str | None = None) -> Placement:
    """Return the places of a schedule's ranks, with switches in the middle.

    An unknown algorithm is drawn on a ring.

    Trees packed into a machine's links are drawn where the machine has its ranks.

    >>> from collectives.algorithms import ALGORITHMS
    >>> layout(ALGORITHMS["all_reduce", "ring"](4), "ring").points.tolist()
    [[0.5, 0.0], [1.0, 0.5], [0.5, 1.0], [0.0, 0.5]]
    >>> layout(ALGORITHMS["broadcast", "binomial"](4), "binomial").points.tolist()
    [[0.5, 0.0], [0.0, 0.5], [1.0, 0.5], [0.0, 1.0]]
    """
    lines: list[Line] = []
    shape = (
        "nodes"
        if schedule.ranks_per_node > 1
        else SHAPES.get(current_name(algorithm or ""), "ring")
    )
    hubs = list(range(schedule.p, schedule.participants))
    shape = "star" if hubs else shape
    placed = _places(algorithm, schedule.p) if algorithm and is_for_links(algorithm) else None
    if placed is not None:
        shape, points = "links", placed
    elif shape == "nodes":
        points, lines = _nodes(schedule.p // schedule.ranks_per_node, schedule.ranks_per_node)
    elif shape == "star":
        points = star(schedule.participants, hubs or [schedule.root or 0])
    elif shape == "tree":
        points = _levels(parents(schedule, 0, schedule.k))
    elif shape == "two trees":
        half = schedule.k // 2
        points = _two_trees(parents(schedule, 0, half), parents(schedule, half, schedule.k))
    else:
        points = ring(schedule.p)
    around = {"ring": schedule.p, "nodes": schedule.p // schedule.ranks_per_node}.get(shape, 0)
    return Placement(shape, points.round(4), _radius(points), around if around > 2 else 0, lines)


def _places(algorithm: str, p: int) -> Points | None:
    """Return the places that a machine's file gives its ranks, node by node, or None if it gives none."""
    on = machine(machine_of(algorithm))
    if on.links is None or not on.links.places:
        return None
    one, nodes = np.array(on.links.places)[: on.ranks_per_node], p // on.ranks_per_node
    left = np.repeat(np.arange(nodes), on.ranks_per_node)
    return np.tile(one, (nodes, 1)) * [0.85 if nodes > 1 else 1.0, 1.0] / [nodes, 1] + np.stack(
        [left / nodes, 0 * left], 1
    )


def bend(placed: Placement, src: int, dst: int) -> float:
    """Return the bend of an arrow between two ranks to its left, as a share of its length.

    From a rank to the next one on the circle it follows the circle. All others bend a little, so
    that two messages in opposite directions do not cover each other.
    """
    if placed.around and _clockwise(placed, src, dst):
        return float(np.tan(np.pi / (2 * placed.around)))
    return BENDS.get(placed.shape, 0.13)


def between(placed: Placement, src: int, dst: int) -> tuple[Points, Points]:
    """Return the ends of an arrow, just outside the circles of its ranks, in the unit square."""
    a, b = placed.points[src], placed.points[dst]
    gap = (b - a) * min(0.4, 1.25 * placed.radius / float(np.hypot(*(b - a))))
    return a + gap, b - gap


def _clockwise(placed: Placement, src: int, dst: int) -> bool:
    x, y = (placed.points[[src, dst]] - 0.5).T
    (here, there), (near, far) = np.arctan2(y, x), np.hypot(x, y)
    turn = (there - here) % (2 * np.pi)
    return bool(abs(turn - 2 * np.pi / placed.around) < 0.01 and abs(near - far) < 0.01)


def _radius(points: Points) -> float:
    """Return the largest radius that leaves room for an arrow between the two nearest ranks."""
    apart = np.hypot(*(points[:, None] - points).T)
    nearest = apart[apart > 0].min(initial=1.0)
    return round(min(0.075, 0.32 * float(nearest)), 4)


def ring(p: int, turn: float = 0.0) -> Points:
    """Return points on a ring: rank 0 at the top, then clockwise."""
    angle = 2 * np.pi * (np.arange(p) + turn) / p
    return (np.stack([0.5 + 0.5 * np.sin(angle), 0.5 - 0.5 * np.cos(angle)], axis=1)).round(9) + 0.0


def star(places: int, hubs: list[int]) -> Points:
    """Return points of a star: one hub in the middle or several on a small ring, and the others around."""
    points = np.full((places, 2), 0.5)
    points[~np.isin(np.arange(places), hubs)] = ring(places - len(hubs))
    if len(hubs) > 1:
        points[hubs] += 0.4 * (ring(len(hubs)) - 0.5)
    return points


def parents(schedule: Schedule, first: int, last: int) -> list[int]:
    """Return every rank's parent in the tree of chunks ``first`` to ``last - 1``, and -1 for the root.

    >>> from collectives.algorithms import ALGORITHMS
    >>> parents(ALGORITHMS["all_reduce", "tree"](8), 0, 1)
    [-1, 2, 4, 2, 0, 6, 4, 6]
    """
    up = contract(schedule).upwards
    parent = [-1] * schedule.p
    for step in schedule.steps():
        row, chunk = step.cells()
        row = row[(chunk >= first) & (chunk < last) & (up | ~step.add[row])]
        above, below = (step.dst, step.src) if up else (step.src, step.dst)
        for one, other in zip(above[row].tolist(), below[row].tolist(), strict=True):
            parent[other] = one
    return parent


def _levels(parent: list[int]) -> Points:
    """Return points of a tree: leaves side by side, every other rank above the middle of its children."""
    depth = depths(np.array(parent))
    children = [[c for c, up in enumerate(parent) if up == rank] for rank in range(len(parent))]
    x, leaves = np.zeros(len(parent)), iter(range(len(parent)))

    def place(rank: int) -> float:
        below = [place(child) for child in children[rank]]
        x[rank] = (below[0] + below[-1]) / 2 if below else next(leaves)
        return float(x[rank])

    place(parent.index(-1))
    if not x.any():  # a chain of two
        x[:] = 0.5
    return np.stack([x / max(1.0, x.max()), depth / max(1, depth.max())], axis=1)


def _two_trees(first: list[int], second: list[int]) -> Points:
    """Return points from left to right: interior ranks of the first tree are above the middle, of the second below."""
    y = np.full(len(first), 0.5)
    for tree, top, towards in ((second, 1.0, -1), (first, 0.0, 1)):
        inside = sorted(set(tree) - {-1})
        depth = depths(np.array(tree))[inside]
        y[inside] = top + towards * 0.37 * depth / max(1, depth.max())
    return np.stack([np.arange(len(first)) / max(1, len(first) - 1), y], axis=1)


def _nodes(nodes: int, g: int) -> tuple[Points, list[Line]]:
    """Return points of nodes round a ring, their ranks on a line to the middle.

    Two nodes are columns instead.
    """
    deep = np.arange(g) * min(0.3, 0.36 / max(1, g - 1))
    if nodes > 2:
        spokes = ring(nodes)[:, None] - 0.5
        points = 0.5 + spokes * (1 - 2 * deep[:, None])
    else:
        x, y = np.array([[0.2], [0.8]])[:nodes], np.linspace(0.1, 0.9, g)
        points = np.stack(np.broadcast_arrays(x, y), axis=2)
    ends = points[:, [0, -1]].reshape(-1, 4).round(4)
    return points.reshape(-1, 2), [(a, b, c, d) for a, b, c, d in ends.tolist()]


def turns(schedule: Schedule, step: Step) -> list[int]:
    """Return the turn of each message of a step, from 0.

    A rank sends one and receives one in a turn.

    All are 0 if the schedule promises that no port has a queue. A switch has a port for each rank,
    and so no queue.

    >>> from collectives.algorithms import ALGORITHMS
    >>> scatter = ALGORITHMS["scatter", "flat"](4)
    >>> turns(scatter, scatter.step(0))
    [0, 1, 2]
    """
    sent = step.messages()
    found, busy = [0] * len(sent.src), set[tuple[str, int, int]]()
    # Neighbours first: if all ranks send the same distances, each distance is one turn.
    order = np.argsort((sent.dst - sent.src) % schedule.participants, kind="stable")
    for i in [] if schedule.one_port else order.tolist():
        ends = ("sends", int(sent.src[i])), ("receives", int(sent.dst[i]))
        ports = [port for port in ends if port[1] < schedule.p]
        found[i] = next(
            turn for turn in count() if busy.isdisjoint({(*port, turn) for port in ports})
        )
        busy |= {(*port, found[i]) for port in ports}
    return found

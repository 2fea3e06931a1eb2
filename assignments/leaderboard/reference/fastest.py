"""The fastest all-reduce for a machine and a size: a function that makes a schedule.

Your grader proves it first, then plays it in the simulator, on a machine and with sizes that you do
not know.
"""

import numpy as np

from collectives.core.schedule import Schedule, Step, on, parallel, reverse, then


def ring(p):
    """An all-reduce that works, but not the fastest.

    This is given: begin with it, or with something better.
    """
    rank = np.arange(p)

    def make(t):
        return Step(rank, (rank + 1) % p, (rank - t) % p)

    gather = Schedule("all_gather", p, p, p - 1, make)
    return then(reverse(gather, "reduce_scatter", add=True), gather, "all_reduce")


# reference only
def gather_by_doubling(p):
    """An all-gather's steps on a power of two: blocks of 1, 2, 4, … chunks change places."""
    rank = np.arange(p)

    def make(t):
        return Step(rank, rank ^ (1 << t), rank >> t << t, 1 << t)

    return Schedule("shares", p, p, p.bit_length() - 1, make)


def gather_by_ring(p):
    rank = np.arange(p)
    return Schedule("shares", p, p, p - 1, lambda t: Step(rank, (rank + 1) % p, (rank - t) % p))


def halving(p):
    gather = gather_by_doubling(p)
    return then(reverse(gather, "shares", add=True), gather, "all_reduce")


def doubling(p):
    """Whole buffers, log2 p times.

    Ranks beyond a power of two hand theirs in, and get the result at the end.
    """
    core = 1 << (p.bit_length() - 1)
    rank, rest = np.arange(core), np.arange(core, p)
    steps = [Step(rank, rank ^ (1 << t), 0, add=True) for t in range(core.bit_length() - 1)]
    if len(rest):
        steps = [Step(rest, rest - core, 0, add=True), *steps, Step(rest - core, rest, 0)]
    return Schedule("all_reduce", p, 1, len(steps), steps.__getitem__)


def parents(p, root):
    parent = [-1] * p
    for role in range(1, p):
        lowest = role & -role
        up = role ^ lowest | lowest << 1
        parent[(role + root) % p] = ((up if up < p else role ^ lowest) + root) % p
    return parent


def colours(trees):
    """0 or 1 for the edge above each rank of each tree, so that no port has two edges of one colour."""
    edges = []
    for tree, parent in enumerate(trees):
        edges += [(tree, rank) for rank, up in enumerate(parent) if up >= 0]
    ends = {}
    for tree, rank in edges:
        ends.setdefault(("sends", trees[tree][rank]), []).append((tree, rank))
        ends.setdefault(("receives", rank), []).append((tree, rank))
    colour = {}
    for start in edges:
        todo = [(start, 0)]
        while todo:
            (tree, rank), value = todo.pop()
            if (tree, rank) not in colour:
                colour[tree, rank] = value
                met = ends["sends", trees[tree][rank]] + ends["receives", rank]
                todo += [(other, 1 - value) for other in met if other != (tree, rank)]
    return colour


def down(parent, colour, segments):
    arrival = {parent.index(-1): -1}
    while len(arrival) < len(parent):
        for rank, up in enumerate(parent):
            if rank not in arrival and up in arrival:
                after = arrival[up] + 1
                arrival[rank] = after + (after + colour[rank]) % 2
    steps = [[] for _ in range(max(arrival.values()) + 2 * segments - 1)]
    for rank, first in arrival.items():
        for segment in range(segments) if parent[rank] >= 0 else ():
            steps[first + 2 * segment].append((parent[rank], rank, segment))
    made = [Step(*zip(*rows, strict=True)) if rows else Step([], [], []) for rows in steps]
    return Schedule(
        "broadcast", len(parent), segments, len(made), made.__getitem__, parent.index(-1)
    )


def two_tree(p, segments):
    trees = parents(p, 0), parents(p, 1)
    colour = colours(trees)
    one, other = (
        on(
            down(parent, {rank: colour.get((tree, rank), 0) for rank in range(p)}, segments),
            p,
            2 * segments,
            range(p),
            range(tree * segments, (tree + 1) * segments),
        )
        for tree, parent in enumerate(trees)
    )
    to_all = parallel(one, other, "two broadcasts")
    return then(reverse(to_all, "two reduces", add=True), to_all, "all_reduce")


def hierarchical(gather, outside, nodes):
    """Reduce-scatter inside each node, all-reduce of each share between the nodes, all-gather inside each node."""
    g, width = gather.p, outside.k
    p, k = g * nodes, g * width
    rank, share = np.arange(p).reshape(nodes, g), np.arange(g) * width
    inside = on(gather, p, k, rank, share, width=width)
    between = on(outside, p, k, rank.T, share[:, None] + np.arange(width))
    first = then(reverse(inside, "shares", add=True), between, "all_reduce")
    return then(first, inside, "all_reduce")


def short(g, nodes):
    """Whole buffers, first inside the nodes and then between them: fewest start-ups."""
    rank = np.arange(g * nodes).reshape(nodes, g)
    inside, between = (
        on(doubling(g), g * nodes, 1, rank, [0]),
        on(doubling(nodes), g * nodes, 1, rank.T, [0]),
    )
    return then(inside, between, "all_reduce")


def pieces(whole, count, delay):
    """The same for each of so many pieces of the buffer, one ``delay`` steps after the other.

    Links inside a node work on one piece while the network works on another.
    """
    p, k = whole.p, whole.k
    parts = [on(whole, p, count * k, range(p), range(j * k, (j + 1) * k)) for j in range(count)]
    made = [[] for _ in range(whole.nsteps + (count - 1) * delay)]
    for j, part in enumerate(parts):
        for t in range(whole.nsteps):
            made[t + j * delay].append(part.step(t))
    columns = [
        Step(*(np.concatenate([getattr(step, name) for step in steps]) for name in Step.__slots__)) if steps
        else Step([], [], [])
        for steps in made
    ]  # fmt: skip
    return Schedule("all_reduce", p, count * k, len(columns), columns.__getitem__)


def flat(p):
    """All-reduces that know nothing of nodes."""
    made = [ring(p), doubling(p)]
    return [*made, halving(p)] if p & (p - 1) == 0 else made


def candidates(machine, n):
    g, nodes = machine["ranks_per_node"], machine["nodes"]
    yield from flat(g * nodes)
    if g == 1 or nodes == 1:
        return
    yield short(g, nodes)
    trees = [two_tree(nodes, s) for s in (1, 4, 16) if n / g / s > 4096]
    for gather in [gather_by_ring(g), *([gather_by_doubling(g)] if g & (g - 1) == 0 else [])]:
        for outside in [*flat(nodes), *trees]:
            whole = hierarchical(gather, outside, nodes)
            yield whole
            for count in (2, 4, 8) if n > 1 << 20 and outside.k <= 8 else ():
                yield pieces(whole, count, max(gather.nsteps, outside.nsteps))


class Model:
    """Clocks for ports and chunks: when each message of a step begins and ends."""

    def __init__(self, schedule, machine, n):
        self.g, self.machine, self.schedule = machine["ranks_per_node"], machine, schedule
        self.edges = schedule.cut(n)
        self.ready = np.zeros((schedule.p, schedule.k))
        self.egress, self.ingress = np.zeros((2, schedule.p)), np.zeros((2, schedule.p))
        self.leaves, self.enters = np.zeros(machine["nodes"]), np.zeros(machine["nodes"])

    def seconds(self):
        """When the last message has arrived."""
        for step in self.schedule.steps():
            if len(step):
                self.play(step)
        return float(self.ready.max())

    def play(self, step):
        """One step: a message begins when its data and its ports are there."""
        row, chunk = step.cells()
        size = self.edges[step.chunk + step.count] - self.edges[step.chunk]
        data = np.zeros(len(step))
        np.maximum.at(data, row, self.ready[step.src[row], chunk])
        kind = (step.src // self.g != step.dst // self.g).astype(int)
        links = self.machine["inside"], self.machine["network"]
        alpha, beta = (np.array([link[name] for link in links])[kind] for name in ("alpha", "beta"))
        costs = np.where(size > 0, alpha + beta * size, 0)
        start = np.maximum(
            data, np.maximum(self.egress[kind, step.src], self.ingress[kind, step.dst])
        )
        sends, receives = np.zeros_like(self.egress), np.zeros_like(self.ingress)
        np.add.at(sends, (kind, step.src), costs)
        np.add.at(receives, (kind, step.dst), costs)
        lasts = np.maximum(sends[kind, step.src], receives[kind, step.dst])
        if self.machine["ports_per_node"] < self.g and kind.any():
            self.share(step, kind == 1, alpha, beta * size, start, lasts)
        end = start + lasts
        np.maximum.at(self.egress, (kind, step.src), end)
        np.maximum.at(self.ingress, (kind, step.dst), end)
        np.maximum.at(self.ready, (step.dst[row], chunk), end[row])

    def share(self, step, out, alpha, costs, start, lasts):
        """A node's network ports carry the bytes of all its ranks: messages begin later, and last longer."""
        ends = ((self.leaves, step.src[out] // self.g), (self.enters, step.dst[out] // self.g))
        for free, node in ends:
            start[out] = np.maximum(start[out], free[node])
        for free, node in ends:
            total, first = np.zeros_like(free), np.full_like(free, np.inf)
            np.add.at(total, node, costs[out] / self.machine["ports_per_node"])
            np.minimum.at(first, node, start[out])
            lasts[out] = np.maximum(lasts[out], alpha[out] + total[node])
            free[:] = np.where(total > 0, first + total, free)


# end


def schedule(machine, n):
    """An all-reduce schedule for this machine and a buffer of n bytes.

    ``machine`` is a dict: "nodes", "ranks_per_node" and "ports_per_node" (network ports that a
    node's ranks share), and for "inside" (between two ranks of a node) and "network" a dict of
    "alpha" (seconds a message) and "beta" (seconds a byte). Ranks fill the nodes in order.
    """
    # solution: make the schedule that takes least time on this machine
    return min(candidates(machine, n), key=lambda each: Model(each, machine, n).seconds())
    # end

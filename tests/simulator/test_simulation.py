"""The simulator against a plain program, against closed forms, against itself, and against what is known."""

import json
from collections import defaultdict
from dataclasses import replace
from itertools import islice, pairwise, product
from math import ceil, log2

import numpy as np
import pytest

from collectives import Machine
from collectives.algorithms import ALGORITHMS, COSTS, PIPELINES, build, executable, variants
from collectives.core.bounds import (
    lower_bound,
    reach_seconds,
    segmented_ring_seconds,
    star_seconds,
)
from collectives.core.schedule import Schedule, ScheduleError, Step
from collectives.core.traffic import traffic
from collectives.machine import Delay, Level, Link, Protocol, machine
from collectives.simulator import simulation
from collectives.simulator.simulation import simulate
from collectives.simulator.trace import trace

ALPHA, BETA = 5e-6, 1 / 25e9
TEXTBOOK = machine("textbook")
LATENCY_AND_OVERHEAD = [(5e-6, 0), (5e-6, 1e-6), (0, 1e-6), (1e-7, 1e-8)]


# The plain program.
# ---------------------------------------------------------------------------------------------------


class Busy:
    """A port or a wire: when it is taken last, and the gap before that."""

    def __init__(self):
        self.gap = self.begin = self.end = 0.0

    def free_at(self, ready):
        at = max(ready, self.gap)
        return at if at < self.begin else max(ready, self.end)

    def done_at(self, begin, lasts):
        interrupted = begin < self.begin < begin + lasts
        return begin + lasts + (self.end - self.begin if interrupted else 0)

    def take(self, begin, end):
        if end <= self.begin:
            self.gap = end
        elif begin > self.end:
            self.gap, self.begin, self.end = self.end, begin, end
        else:
            self.gap = self.begin = min(self.begin, begin)
            self.end = max(self.end, end)


def plain(schedule, on, n, algorithm=None):
    """What `simulation` says, message by message and in the order in which it says it.

    The last rank's finish.
    """
    g, edges, protocols = (
        on.ranks_per_node,
        schedule.cut(n).tolist(),
        on.protocols_for(algorithm, n),
    )
    p = schedule.p
    ready, busy, finish, largest = defaultdict(float), defaultdict(Busy), 0.0, 0

    def node(r):
        return r // g if r < p else 0 if p == g and on.inside else -1

    def path(s, d):
        """Ports, wires with their betas, the slowest beta at either port, and further latency.

        A switch has a port for each rank, and no wire of its own.
        """
        a, b = node(s), node(d)
        out, into = s if s < p else (s, d), d if d < p else (d, s)
        if a == b:
            return (
                ("inside", "out", out),
                ("inside", "in", into),
                {},
                (on.inside.beta, on.inside.beta),
                0.0,
            )
        share, wires, own = (
            g // on.ports,
            {},
            [on.network.beta * on.slower.get(node, 1) for node in (a, b)],
        )
        if share > 1:
            wires = {("port", "out", s // share): own[0], ("port", "in", d // share): own[1]}
        beta, late = on.network.beta, 0.0
        for level in on.levels:
            if a // level.nodes != b // level.nodes:
                uplink = 1 / level.uplink if level.uplink else 0.0
                wires |= {
                    (level.name, "out", a // level.nodes): uplink,
                    (level.name, "in", b // level.nodes): uplink,
                }
                beta, late = max(beta, 1 / level.rate if level.rate else 0.0), late + level.latency
        wires = {wire: each for wire, each in wires.items() if (s if wire[1] == "out" else d) < p}
        return (
            ("network", "out", out),
            ("network", "in", into),
            wires,
            [max(beta, each) for each in own],
            late,
        )

    for step in schedule.steps():
        messages, loads = {}, defaultdict(float)
        columns = step.src, step.dst, step.chunk, step.count, step.add
        for s, d, c, m, add in zip(*(a.tolist() for a in columns), strict=True):
            if size := edges[c + m] - edges[c]:
                one = messages.setdefault(
                    (s, d), {"size": 0, "added": 0, "cells": [], "ready": 0.0}
                )
                one["size"] += size
                one["added"] += size * add
                one["cells"] += [(d, cell) for cell in range(c, c + m)]
                one["ready"] = max([one["ready"], *(ready[s, cell] for cell in range(c, c + m))])
        for (s, d), one in messages.items():
            size = one["size"]
            q = next(q for q in protocols if q.up_to is None or size <= q.up_to)
            out, into, wires, betas, late = path(s, d)
            delay = q.inside if out[0] == "inside" else q.network
            one |= {
                "path": (out, into, wires),
                "overhead": delay.overhead,
                "late": delay.latency + late,
            }
            loads[out] += delay.overhead + betas[0] / q.share * size
            loads[into] += delay.overhead + betas[1] / q.share * size
            loads["adding", d, into[0]] += on.gamma * one["added"] * (d < p)
            for wire, wire_beta in wires.items():
                loads[wire] += wire_beta / q.share * size
            if size > largest:
                largest, startup = size, q.startup
        first = {}
        for (_, d), one in messages.items():
            (out, into, wires), late = one["path"], one["late"]
            adding = loads["adding", d, into[0]]
            lasts = max(
                [loads[out], loads[into], *(one["overhead"] + loads[wire] for wire in wires)]
            )
            begin = one["ready"]
            for _ in range(2):
                begin = busy[out].free_at(begin)
                begin = busy[into].free_at(begin + late) - late
                for wire in wires:
                    begin = busy[wire].free_at(begin)
            left = max(
                busy[out].done_at(begin, lasts), busy[into].done_at(begin + late, lasts + adding) - late - adding,
                *(busy[wire].done_at(begin, loads[wire]) for wire in wires), 0.0,
            )  # fmt: skip
            one |= {"begin": begin, "left": left, "arrival": left + late + adding}
            for wire in wires:
                first[wire] = min(first.get(wire, begin), begin)
        for one in messages.values():
            (out, into, _), late = one["path"], one["late"]
            busy[out].take(one["begin"], one["left"])
            busy[into].take(one["begin"] + late, one["arrival"])
            finish = max(finish, one["arrival"])
        for wire, begin in first.items():
            if loads[wire] > 0:
                busy[wire].take(begin, busy[wire].done_at(begin, loads[wire]))
        for one in messages.values():
            for cell in one["cells"]:
                ready[cell] = max(ready[cell], one["arrival"])
    return finish + (startup if largest else 0.0)


def some_machine(rng):
    g = int(rng.choice([1, 2, 3, 4]))

    # Of many digits: where two times tie but for rounding, either order of the messages is right.
    def seconds():
        return float(rng.choice([0, 1e-6, 2.5e-6, 7e-6]) * rng.uniform(1, 1.1))

    def rate():
        return float(rng.choice([1e9, 2.3e9, 1e10]))

    def link():
        return Link(latency=seconds(), overhead=seconds(), rate=rate())

    def delay():
        return Delay(latency=seconds(), overhead=seconds())

    levels = [
        Level(name=f"level {i}", nodes=2 << i, latency=seconds(), rate=rate(), uplink=rate())
        for i in range(rng.integers(0, 3))
    ]
    protocols = [
        Protocol(name="small", up_to=64, startup=1e-6, share=0.5, inside=delay(), network=delay())
    ]
    return Machine(
        name="random",
        ranks_per_node=g,
        ports_per_node=int(rng.choice([d for d in (1, 2, 3, 4) if g % d == 0])),
        inside=link(),
        network=link(),
        levels=tuple(levels),
        protocols=tuple(protocols[: rng.integers(0, 2)]),
        gamma=float(rng.choice([0, 1e-10])),
    )


def some_cases(seed, count, most=24):
    """(schedule, machine, bytes): every algorithm in turn, on machines of any shape."""
    rng, every = np.random.default_rng(seed), list(ALGORITHMS)
    for i in range(count):
        on = some_machine(rng)
        p = on.ranks_per_node * int(rng.integers(1, 1 + most // on.ranks_per_node))
        choices = list(islice(variants(*every[i % len(every)], p), 24))
        yield (
            choices[rng.integers(len(choices))],
            on,
            int(rng.choice([0, 1, 3, 7, 100, 1000, 99_999])),
        )


@pytest.mark.integration  # seconds
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("are_slower", [False, True], ids=["nodes alike", "slower nodes"])
def test_it_equals_the_plain_program(seed, are_slower):
    rng = np.random.default_rng(seed)
    for schedule, on, n in some_cases(seed, 40):
        nodes = rng.integers(0, schedule.p // on.ranks_per_node, 2).tolist()
        slow = on.model_copy(
            update={"slower": dict(zip(nodes, (3.0, 16.0), strict=True)) if are_slower else {}}
        )
        expected = pytest.approx(plain(schedule, slow, n), rel=1e-9)
        assert simulate(schedule, slow, n).seconds == expected, (schedule, slow, n)


@pytest.mark.integration
@pytest.mark.parametrize("seed", range(10, 14))
def test_one_clock_for_a_rank_equals_one_for_every_chunk(seed):
    """Also the fast path for steps that repeat: whatever it may be taken for, it leaves all clocks the same."""
    sure = 0
    every = list(some_cases(seed, 60))
    every += [(build("all_reduce", name, s.p), on, n) for s, on, n in every for name in ("ring",)]
    for schedule, on, n in every:
        setting = simulation._setting(schedule, on, n, on.choices(None, n)[-1])
        try:
            fast, _ = simulation._run(setting, None, by_cell=False)
        except simulation.UnsureError:
            continue
        slow, _ = simulation._run(setting, None, by_cell=True)
        for name in ("finish", "arrived", "bytes", "messages", "busy", "shared_busy"):
            assert np.allclose(getattr(fast, name), getattr(slow, name), rtol=1e-9, atol=1e-15), (
                name,
                schedule,
                on,
                n,
            )
        sure += 1
    assert sure > 60


@pytest.mark.parametrize("name", ["src", "dst", "count", "add"])
@pytest.mark.parametrize("nodes", [1, 2], ids=["the fast path", "with a slower node"])
def test_a_false_declaration_of_what_repeats_is_rejected(name, nodes):
    """Whatever the steps do, and whichever way they are played: nobody believes the declaration."""
    ring = build("all_reduce", "ring", 4)
    other = {
        "src": [1, 2, 3, 0],
        "dst": [3, 0, 1, 2],
        "count": [1, 1, 1, 2],
        "add": [True, True, True, False],
    }[name]

    def make(t):
        columns = {each: getattr(ring.step(t), each) for each in Step.__slots__}
        return Step(**(columns | {name: other, "chunk": 0})) if t == 2 else ring.step(t)

    lying = replace(ring, make=make)
    on = machine("textbook").model_copy(update={"slower": {} if nodes == 1 else {0: 2.0}})
    with pytest.raises(
        ScheduleError, match=f"step 2 differs from step 1 in {name}, but is declared to repeat it"
    ):
        simulate(lying, on, 4000)
    assert simulate(replace(lying, repeats=()), on, 4000).seconds > 0


def test_a_schedule_that_fills_one_array_for_all_its_steps_takes_the_same_time():
    """Formerly the same array meant the same content."""
    src, dst = np.arange(6), np.zeros(6, np.int64)

    def make(t):
        dst[:] = (src + 1 + t) % 6
        return Step(src, dst, src * 6 + dst)

    reusing = Schedule("all_to_all", 6, 36, 5, make)
    fresh = build("all_to_all", "pairwise", 6)
    for n in (36, 10_000):
        assert (
            simulate(reusing, machine("summit"), n).seconds
            == simulate(fresh, machine("summit"), n).seconds
        )


# Closed forms.
# --------------------------------------------------------------------------------------------------------

# On any p, or where p is a power of two: there every rank is busy in every step, and nobody can be
# ahead.
EVERYWHERE = {
    "flat", "direct", "pairwise", "one_shot", "reduce_broadcast", "two_shot", "ring", "binomial", "chain",
    "recursive_doubling", "halving_doubling",
}  # fmt: skip


@pytest.mark.parametrize(
    ("collective", "name"),
    [names for names in COSTS if names != ("all_reduce", "hierarchical_ring")],
)
def test_without_latency_it_is_the_closed_form(collective, name):
    for p in (1, 2, 4, 8, 16, 3, 5, 6, 7, 13):
        schedule = build(collective, name, p)
        n = 840 * schedule.k * (p if collective == "all_to_all" else 1)
        formula = COSTS[collective, name](p).seconds(n, ALPHA, BETA)
        found = simulate(schedule, TEXTBOOK, n).seconds
        if p & (p - 1) == 0 or name in EVERYWHERE:
            assert found == pytest.approx(formula, rel=1e-9, abs=1e-12), p
        else:  # who has nothing to wait for is ahead of the lock step that the formula assumes
            assert found <= formula * (1 + 1e-9), p


@pytest.mark.parametrize("name", ["ring", "recursive_doubling", "halving_doubling"])
def test_where_all_ranks_are_alike_the_slowest_link_sets_the_pace_of_all(name):
    for p, slow, factor in product((2, 4, 8), (0, 1), (1, 2, 16)):
        n, on = 840 * p, TEXTBOOK.model_copy(update={"slower": {slow: factor}})
        formula = COSTS["all_reduce", name](p).seconds(n, ALPHA, factor * BETA)
        assert simulate(build("all_reduce", name, p), on, n).seconds == pytest.approx(
            formula, rel=1e-9
        )


def test_in_a_tree_a_slow_rank_with_children_costs_more_than_a_leaf():
    schedule = build("all_reduce", "tree", 8, segments=8)
    took = [
        simulate(schedule, TEXTBOOK.model_copy(update={"slower": {slow: 16}}), 8 << 20).seconds
        for slow in range(8)
    ]
    assert min(took[slow] for slow in (2, 4, 6)) > 1.4 * max(took[slow] for slow in (1, 3, 5, 7))


def test_reducing_costs_gamma_a_byte():
    with_gamma = TEXTBOOK.model_copy(update={"gamma": 3e-11})
    for name, p in product(
        ("ring", "reduce_broadcast", "one_shot", "recursive_doubling", "halving_doubling"),
        (2, 4, 8, 16),
    ):
        n = 840 * p
        formula = COSTS["all_reduce", name](p).seconds(n, ALPHA, BETA, 3e-11)
        assert simulate(build("all_reduce", name, p), with_gamma, n).seconds == pytest.approx(
            formula, rel=1e-9
        )


@pytest.mark.parametrize(("latency", "overhead"), LATENCY_AND_OVERHEAD)
def test_a_segmented_ring_hides_latency_as_its_formula_says(latency, overhead):
    on = Machine(name="a test", network=Link(latency=latency, overhead=overhead, rate=25e9))
    for p, segments in product((1, 2, 3, 8, 32), (1, 2, 3, 5)):
        n = 40_000 * p * segments
        formula = segmented_ring_seconds(p, n, segments, latency, overhead, 1 / 25e9)
        found = simulate(build("all_reduce", "segmented_ring", p, segments=segments), on, n).seconds
        assert found == pytest.approx(formula, rel=1e-9, abs=1e-12), (p, segments)


@pytest.mark.integration  # seconds
@pytest.mark.parametrize(("collective", "name"), list(PIPELINES))
def test_pipelines_take_at_most_their_formula(collective, name):
    for p, segments in product((2, 3, 8, 13, 32), (1, 2, 7, 24)):
        n = 840 * segments * 2 * p
        formula = PIPELINES[collective, name](p).seconds(n, segments, ALPHA, BETA)
        found = simulate(build(collective, name, p, segments=segments), TEXTBOOK, n).seconds
        assert found <= formula * (1 + 1e-9)
        if name == "chain":
            assert found == pytest.approx(formula)


@pytest.mark.parametrize(("latency", "overhead"), LATENCY_AND_OVERHEAD)
def test_where_one_rank_does_all_the_sending_latencies_pass_together(latency, overhead):
    on = Machine(name="a test", network=Link(latency=latency, overhead=overhead, rate=25e9))
    stars = [names for names, each in ALGORITHMS.items() if each.latencies]
    for (collective, name), p in product(stars, (1, 2, 3, 8, 13, 32)):
        known = ALGORITHMS[collective, name]
        formula = star_seconds(known.cost(p), known.latencies, 840 * p, latency, overhead, BETA)
        found = simulate(build(collective, name, p), on, 840 * p).seconds
        assert found == pytest.approx(formula, rel=1e-9, abs=1e-12), (collective, name, p)


@pytest.mark.extended
@pytest.mark.parametrize(("latency", "overhead"), LATENCY_AND_OVERHEAD)
def test_nothing_beats_the_lower_bound(latency, overhead):
    on = Machine(name="a test", network=Link(latency=latency, overhead=overhead, rate=25e9))
    for (collective, name), p in product(executable(), (2, 5, 16)):
        for schedule, n in product(variants(collective, name, p), (80, 40_000_000)):
            bound = lower_bound(collective, p, n, latency + overhead, BETA, latency=latency)
            assert simulate(schedule, on, n).seconds >= bound * (1 - 1e-9), (collective, name, p, n)


def test_without_latency_those_reached_double_and_with_much_of_it_one_rank_had_better_tell_all():
    for p in (1, 2, 3, 8, 9, 32):
        assert reach_seconds(p, 0, 1.0) == ceil(log2(p))
        assert reach_seconds(p, 50.0, 1.0) == (50 + p - 1 if p > 1 else 0)
        assert reach_seconds(p, 2.0, 0) == (2 if p > 1 else 0)


# What the model promises.
# ---------------------------------------------------------------------------------------------


def test_latencies_of_messages_in_flight_overlap():
    """A chain of s segments pays each hop's latency once, not once a segment."""
    on = Machine(name="x", network=Link(latency=1e-3, rate=1e9))
    seconds = simulate(build("broadcast", "chain", 5, segments=10), on, 10_000).seconds
    assert seconds == pytest.approx(4 * 1e-3 + (4 + 9) * 1e-6)


def test_a_ring_waits_only_for_its_neighbour():
    """Inside links are quick: a chunk's way costs what its hops cost, not always the slowest."""
    on = Machine(
        name="x",
        ranks_per_node=4,
        inside=Link(latency=1e-6, rate=1e12),
        network=Link(latency=9e-6, rate=1e12),
    )
    seconds = simulate(build("all_reduce", "ring", 8), on, 8).seconds
    # Of 14 hops in a row, at most 4 leave a node.
    assert seconds == pytest.approx(10 * 1e-6 + 4 * 9e-6, rel=1e-3)


def test_a_shared_port_is_shared():
    alone = Machine(name="x", ranks_per_node=4, inside=Link(rate=1e12), network=Link(rate=1e9))
    shared = alone.model_copy(update={"ports_per_node": 1})
    schedule = build("all_to_all", "direct", 8)
    fast, slow = (simulate(schedule, on, 80_000) for on in (alone, shared))
    assert slow.seconds == pytest.approx(4 * fast.seconds)
    assert "network port" in slow.busiest[0]


def test_an_uplink_is_shared_and_a_message_is_limited():
    one = {"name": "x", "network": Link(rate=1e9)}
    racks = Machine(**one, levels=(Level(name="rack", nodes=4, latency=2e-6, rate=5e8),))
    tight = Machine(**one, levels=(Level(name="rack", nodes=4, uplink=1e9),))
    across = Step([0, 1, 2, 3], [4, 5, 6, 7], 0)
    schedule = Schedule("broadcast", 8, 1, 1, lambda _: across, root=0)
    assert simulate(schedule, racks, 1000).seconds == pytest.approx(2e-6 + 2e-6)
    assert simulate(schedule, tight, 1000).seconds == pytest.approx(4e-6)
    assert simulate(schedule, tight, 1000).busiest == (
        "uplink of rack 0, outward",
        pytest.approx(4e-6),
    )


def test_protocols_go_by_the_size_of_the_message():
    quick = Protocol(name="LL", up_to=1000, startup=1e-3, share=0.5, network=Delay(overhead=1e-6))
    on = Machine(name="x", network=Link(overhead=10e-6, rate=1e9), protocols=(quick,))
    swap = build("all_reduce", "recursive_doubling", 2)
    assert simulate(swap, on, 1000).seconds == pytest.approx(1e-3 + 1e-6 + 2e-6)
    assert simulate(swap, on, 1001).seconds == pytest.approx(10e-6 + 1.001e-6)
    only = on.model_copy(
        update={"protocols": (quick.model_copy(update={"algorithms": ("ring",)}),)}
    )
    assert simulate(swap, only, 1000, "recursive_doubling").seconds == pytest.approx(11e-6)
    assert simulate(swap, only, 1000, "ring").seconds == pytest.approx(1.003e-3)


def test_protocols_may_go_by_the_size_of_the_buffer():
    """A ring of four cuts 4,000 bytes into messages of 1,000: the protocol's limit is the buffer, not the message."""
    slow = Protocol(name="few", buffer_up_to=3999, network=Delay(overhead=100e-6))
    on = Machine(name="x", network=Link(rate=1e9), protocols=(slow,))
    ring = build("all_reduce", "ring", 4)
    assert simulate(ring, on, 4000).seconds == pytest.approx(6e-6)
    assert simulate(ring, on, 3996).seconds == pytest.approx(6 * (100e-6 + 0.999e-6))


def test_empty_messages_are_neither_sent_nor_charged():
    ring = build("all_reduce", "ring", 64)
    assert simulate(ring, TEXTBOOK, 0).seconds == 0
    assert simulate(ring, TEXTBOOK, 0).messages == 0
    one = simulate(ring, TEXTBOOK, 1)
    assert one.messages == 2 * 63
    assert one.seconds == pytest.approx(2 * 63 * (ALPHA + BETA))


def test_what_moved_is_what_the_traffic_says():
    for name in ("ring", "hierarchical_ring", "hierarchical_tree", "halving_doubling"):
        schedule = build("all_reduce", name, 48, ranks_per_node=6, segments=4)
        result, sent = simulate(schedule, machine("summit"), 123_457), traffic(schedule, 123_457)
        assert result.messages == sent.messages_sent.sum()
        assert sum(result.bytes.values()) == sent.sent.sum()
        assert len(result.finish) == 48


def test_rows_of_one_pair_are_one_message_wherever_they_stand():
    rows = Step([0, 2, 0], [1, 3, 1], [0, 0, 1])
    schedule = Schedule("broadcast", 4, 2, 1, lambda _: rows, root=0)
    result = simulate(schedule, TEXTBOOK, 2000)
    assert result.messages == 2
    assert result.seconds == pytest.approx(ALPHA + 2000 * BETA)


@pytest.mark.parametrize(
    ("names", "p", "on", "n", "message"),
    [
        (
            ("all_reduce", "ring"),
            10,
            machine("summit"),
            8,
            "the nodes of summit: got 10, expected a multiple of 6",
        ),
        (("all_reduce", "ring"), 12, machine("summit"), -1, "got -1 bytes, expected 0 or more"),
        (("all_to_all", "bruck"), 1280, TEXTBOOK, 1 << 30, "16 GiB, expected at most 2 GiB"),
        (
            ("all_reduce", "ring"),
            4,
            TEXTBOOK.model_copy(update={"slower": {4: 2.0}}),
            8,
            "got 4 ranks, expected at least 5",
        ),
    ],
    ids=["a node in part", "fewer than no bytes", "too many clocks", "a slower node without ranks"],
)
def test_what_cannot_be_simulated(names, p, on, n, message):
    with pytest.raises(ValueError, match=message):
        simulate(build(*names, p), on, n)


def test_a_trace_has_every_message_twice(tmp_path):
    path = tmp_path / "trace.json"
    schedule = build("all_reduce", "two_tree", 8, segments=2)
    result = trace(path, schedule, TEXTBOOK, 4000)
    events = [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "X"]
    assert len(events) == 2 * result.messages
    assert max(event["ts"] + event["dur"] for event in events) == pytest.approx(
        result.seconds * 1e6
    )
    assert [file.name for file in tmp_path.iterdir()] == ["trace.json"]
    for rank, line in product(range(8), (0, 1)):  # a port does one thing at a time
        mine = sorted((e["ts"], e["dur"]) for e in events if (e["pid"], e["tid"]) == (rank, line))
        assert all(a + b <= c + 1e-6 for (a, b), (c, _) in pairwise(mine))

"""The proof and the independent executor agree: on right programs, in every order, and on programs with one edit.

They agree, too, on how many messages a connection must hold. Whether a program ends depends on the
slots, and not on the order: what can act now can still act later.
"""

import random
import re
from collections import Counter
from itertools import cycle
from xml.etree import ElementTree

import pytest

from collectives.core.schedule import ScheduleError
from collectives_interop import msccl
from collectives_interop.prove import Order, prove
from interop.executor import Run, play, play_all
from interop.mutants import mutants
from interop.programs import PROGRAMS, Block, all_pairs, do, gather_ring, ring, xml

MOST = 20  # as good as unlimited: no program here has more messages on a connection


def judged(text: str) -> str:
    """Return the verdict of the proof: right, wrong, or not a program."""
    try:
        prove(msccl.read(text.encode()))
    except ScheduleError:
        return "wrong"
    except ValueError:
        return "unreadable"
    return "right"


def first_fault(text: str, orders: int) -> str | None:
    return next((fault for seed in range(orders) if (fault := play(text, seed))), None)


def need_agreement(wanted: int, orders_of_right: int, orders_of_wrong: int) -> dict[str, int]:
    """Judge this many mutants that are programs at all, from all programs in turn."""
    tried = {"right": 0, "wrong": 0}
    sources = cycle([mutants(text, seed) for seed, text in enumerate(PROGRAMS.values())])
    seen = set()
    while sum(tried.values()) < wanted:
        text = next(next(sources))
        verdict = judged(text)
        if verdict == "unreadable" or text in seen:
            continue
        seen.add(text)
        fault = first_fault(text, orders_of_right if verdict == "right" else orders_of_wrong)
        assert (fault is None) == (verdict == "right"), (
            f"the proof says {verdict}, an order ends with {fault}:\n{text}"
        )
        tried[verdict] += 1
    return tried


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_right_program_is_right(name: str) -> None:
    assert judged(PROGRAMS[name]) == "right"
    assert first_fault(PROGRAMS[name], 20) is None


@pytest.mark.extended
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_right_program_ends_right_in_a_thousand_orders(name: str) -> None:
    assert first_fault(PROGRAMS[name], 1000) is None


@pytest.mark.parametrize(
    "text", [all_pairs(2), ring(2), gather_ring(2)], ids=["all_pairs", "ring", "gather_ring"]
)
def test_a_small_program_ends_right_in_every_order(text: str) -> None:
    faults, states = play_all(text)
    assert faults == set()
    assert states > 20


def test_every_order_of_small_mutants_agrees() -> None:
    source = mutants(gather_ring(2), 7)
    tried = 0
    while tried < 20:
        text = next(source)
        verdict = judged(text)
        if verdict != "unreadable":
            assert bool(play_all(text)[0]) == (verdict == "wrong"), text
            tried += 1


def test_sixty_mutants_agree() -> None:
    tried = need_agreement(60, orders_of_right=30, orders_of_wrong=300)
    assert tried["wrong"] >= 30


@pytest.mark.extended
@pytest.mark.timeout(1800)
def test_five_hundred_mutants_agree() -> None:
    tried = need_agreement(540, orders_of_right=100, orders_of_wrong=3000)
    assert tried["wrong"] >= 300
    assert tried["right"] >= 20


def without_wait(text: str, number: int) -> str:
    """The program without the dependency of this step, counted over all steps."""
    top = ElementTree.fromstring(text)
    step = list(top.iter("step"))[number]
    step.set("depid", "-1")
    step.set("deps", "-1")
    return ElementTree.tostring(top, encoding="unicode")


def waits_of(text: str) -> list[int]:
    return [
        number
        for number, step in enumerate(ElementTree.fromstring(text).iter("step"))
        if step.get("depid") != "-1"
    ]


@pytest.mark.parametrize("name", ["all_pairs", "gather_ring", "reduce_scatter"])
def test_a_dependency_is_needless_exactly_if_the_program_is_right_without_it(name: str) -> None:
    source, more = mutants(PROGRAMS[name], 11), 0
    while more < 6:  # right programs with a dependency more
        text = next(source)
        if judged(text) != "right" or len(waits_of(text)) <= len(waits_of(PROGRAMS[name])):
            continue
        more += 1
        program = msccl.read(text.encode())
        right = [
            program.name(each)
            for each in waits_of(text)
            if judged(without_wait(text, each)) == "right"
        ]
        assert sorted(right) == sorted(prove(program).needless)


def ends_with(text: str, slots: int) -> bool:
    """Return whether all steps run."""
    run = Run(text, slots)
    acted = True
    while acted:
        acted = False
        for b in range(len(run.blocks)):
            while run.ready(b) if slots else pass_on(run, b):
                acted = True
                if slots:
                    run.act(b)
    return all(at == len(block[4]) for at, block in zip(run.at, run.blocks, strict=True))


def pass_on(run: Run, first: int) -> bool:
    """Without slots: run a step of one block, with the steps of all blocks through which its message goes at once."""
    chain = [first]
    while may_begin(run, chain[-1]) and kind(run, chain[-1]).endswith("s"):
        out = run.blocks[chain[-1]][2]
        following = [
            b for b, block in enumerate(run.blocks) if block[3] == out and receives(run, b)
        ]
        if not following or following[0] in chain:
            return False
        chain += following
    if receives(run, first) or not may_begin(run, chain[-1]):
        return False
    for b in chain:
        run.done.add((run.blocks[b][0], run.blocks[b][1], run.at[b]))
        run.at[b] += 1
    return True


def kind(run: Run, b: int) -> str:
    steps = run.blocks[b][4]
    return steps[run.at[b]]["type"] if run.at[b] < len(steps) else ""


def receives(run: Run, b: int) -> bool:
    return kind(run, b) in ("r", "rcs", "rrs", "rrc", "rrcs")


def may_begin(run: Run, b: int) -> bool:
    """Return whether there is a step, and what it depends on is done."""
    if not kind(run, b):
        return False
    g, _, _, _, steps = run.blocks[b]
    depid, deps = (int(steps[run.at[b]][name]) for name in ("depid", "deps"))
    return depid < 0 or (g, depid, deps) in run.done


def least_played(text: str) -> int | None:
    """The smallest number with which the program ends.

    None if it does not even with unlimited slots.
    """
    return next((slots for slots in range(MOST) if ends_with(text, slots)), None)


def least_proved(text: str) -> int | None:
    """Return the number that the proof reports, or names in the message if the protocol has fewer."""
    order = Order(msccl.read(text.encode()))
    try:
        order.check_no_deadlock()
    except ScheduleError as error:
        found = re.search(r"\((\d+) suffice\)", str(error))
        return int(found[1]) if found else None
    return order.slots()


def any_order(rng: random.Random) -> str:
    """A ring of two channels, on each of them as many sends as receives in any order, some of them joined."""
    p, gpus = rng.randint(2, 4), []
    counts = [rng.randint(1, 6) for _ in range(2)]
    for r in range(p):
        blocks: list[Block] = []
        for channel, count in enumerate(counts):
            early = rng.random()
            kinds = sorted(
                ["s"] * count + ["r"] * count, key=lambda each: rng.random() - early * (each == "s")
            )
            for i in range(len(kinds) - 1, 0, -1):
                if kinds[i - 1 : i + 1] == ["r", "s"] and rng.random() < 0.4:
                    kinds[i - 1 : i + 1] = ["rcs"]
            steps = [do(each, "i0") for each in kinds]
            if channel and rng.random() < 0.5:
                steps[at] = do(
                    kinds[at := rng.randrange(len(kinds))],
                    "i0",
                    after=f"0.{rng.randrange(counts[0])}",
                )
            blocks.append(((r + 1) % p, (r - 1) % p, channel, steps))
        gpus.append(blocks)
    return xml("allreduce", 1, gpus, proto=rng.choice(("Simple", "LL")))


@pytest.mark.integration  # seconds
def test_sends_and_receives_in_any_order_need_what_the_proof_says() -> None:
    rng, seen = random.Random(19), Counter[int | None]()
    for _ in range(300):
        text = any_order(rng)
        least = least_played(text)
        assert least_proved(text) == least, text
        seen[least] += 1
    assert all(seen[least] >= 5 for least in (None, 0, 1, 2, 3)), seen


def test_mutants_need_what_the_proof_says() -> None:
    sources = cycle([mutants(text, seed) for seed, text in enumerate(PROGRAMS.values())])
    seen = Counter[int | None]()
    while seen.total() < 150:
        text = next(next(sources))
        try:
            least = least_proved(text)
        except ValueError:
            continue
        assert least_played(text) == least, text
        seen[least] += 1
    assert all(seen[least] >= 5 for least in (None, 0, 1, 2)), seen

"""How many messages a connection must hold: what the proof reports, against programs that are played with each number.

Whether a program ends depends on the slots, and not on the order: what can act now can still act later.
"""

import random
import re
from collections import Counter
from itertools import cycle

import pytest

from collectives.formats import msccl
from collectives.formats.prove import Order
from collectives.schedule import ScheduleError
from formats.executor import Run
from formats.mutants import mutants
from formats.programs import PROGRAMS, Block, do, ring, xml

MOST = 20  # as good as unlimited: no program here has more messages on a connection


def ends_with(text: str, slots: int) -> bool:
    """Whether all steps run."""
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
        following = [b for b, block in enumerate(run.blocks) if block[3] == out and receives(run, b)]
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
    """Whether there is a step, and what it depends on is done."""
    if not kind(run, b):
        return False
    g, _, _, _, steps = run.blocks[b]
    depid, deps = (int(steps[run.at[b]][name]) for name in ("depid", "deps"))
    return depid < 0 or (g, depid, deps) in run.done


def least_played(text: str) -> int | None:
    """The smallest number with which the program ends; None if it does not even with unlimited slots."""
    return next((slots for slots in range(MOST) if ends_with(text, slots)), None)


def least_proved(text: str) -> int | None:
    """What the proof says of it: the number is in the report, or in the message where the protocol has fewer."""
    order = Order(msccl.read(text.encode()))
    try:
        order.check_no_deadlock()
    except ScheduleError as error:
        found = re.search(r"\((\d+) suffice\)", str(error))
        return int(found[1]) if found else None
    return order.slots()


def test_a_ring_of_fused_steps_needs_two() -> None:
    assert (least_played(ring(3)), least_proved(ring(3))) == (2, 2)


def sends_first(count: int, protocol: str = "Simple") -> str:
    """Two GPUs that both send ``count`` chunks, and receive only then."""
    steps = [*(do("s", f"i{c}") for c in range(count)), *(do("rrc", f"i{c}") for c in range(count))]
    blocks: list[list[Block]] = [[(1, 1, 0, steps)], [(0, 0, 0, steps)]]
    return xml("allreduce", count, blocks, proto=protocol)


def pipeline(p: int, ahead: int, chunks: int) -> str:
    """A ring in which each GPU sends ``ahead`` chunks before it receives one, then both in turn."""
    moves = [do("s", f"i{c}") for c in range(chunks)]
    takes = [do("r", f"i{c}") for c in range(chunks)]
    steps = moves[:ahead] + [each for pair in zip(takes, moves[ahead:], strict=False) for each in pair]
    steps += takes[chunks - ahead :]
    return xml("allreduce", chunks, [[((r + 1) % p, (r - 1) % p, 0, steps)] for r in range(p)])


def any_order(rng: random.Random) -> str:
    """A ring of two channels, on each of them as many sends as receives in any order, some of them joined."""
    p, gpus = rng.randint(2, 4), []
    counts = [rng.randint(1, 6) for _ in range(2)]
    for r in range(p):
        blocks: list[Block] = []
        for channel, count in enumerate(counts):
            early = rng.random()
            kinds = sorted(["s"] * count + ["r"] * count, key=lambda each: rng.random() - early * (each == "s"))
            for i in range(len(kinds) - 1, 0, -1):
                if kinds[i - 1 : i + 1] == ["r", "s"] and rng.random() < 0.4:
                    kinds[i - 1 : i + 1] = ["rcs"]
            steps = [do(each, "i0") for each in kinds]
            if channel and rng.random() < 0.5:
                steps[at] = do(kinds[at := rng.randrange(len(kinds))], "i0", after=f"0.{rng.randrange(counts[0])}")
            blocks.append(((r + 1) % p, (r - 1) % p, channel, steps))
        gpus.append(blocks)
    return xml("allreduce", 1, gpus, proto=rng.choice(("Simple", "LL")))


@pytest.mark.parametrize("count", [1, 2, 3, 5, 9, 17])
@pytest.mark.parametrize("protocol", ["Simple", "LL"])
def test_two_that_send_first_need_a_slot_for_each_message(count: int, protocol: str) -> None:
    text = sends_first(count, protocol)
    assert (least_played(text), least_proved(text)) == (count, count)


@pytest.mark.parametrize(("p", "ahead", "chunks"), [(2, 5, 16), (3, 9, 16), (4, 17, 18), (5, 1, 7)])
def test_a_ring_needs_as_many_slots_as_each_gpu_is_ahead(p: int, ahead: int, chunks: int) -> None:
    text = pipeline(p, ahead, chunks)
    assert (least_played(text), least_proved(text)) == (ahead, ahead)
    assert not ends_with(text, ahead - 1)


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

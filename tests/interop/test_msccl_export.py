"""Every schedule as MSCCL XML: read back and proved, played in random orders, and within the runtimes' limits."""

import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from collectives.algorithms import build, executable, variants
from collectives.core.schedule import Schedule, ScheduleError, Step
from collectives_interop import msccl
from collectives_interop.lowering import Transfer, kept, lower, onward
from collectives_interop.msccl import DIALECTS, text
from collectives_interop.program import SLOTS, BufferOffset
from collectives_interop.prove import prove
from interop.executor import play


def exported(collective: str, algorithm: str, p: int) -> Iterator[tuple[Schedule, str]]:
    for schedule in variants(collective, algorithm, p):
        if not schedule.root:
            yield schedule, text(schedule, algorithm, "msccl-tools")


def kinds(program: str) -> Counter[str]:
    return Counter(step.name for step in msccl.read(program.encode()).steps)


@pytest.mark.parametrize(
    "ranks",
    [
        pytest.param((1, 2, 3, 5, 8), id="few"),
        pytest.param((4, 6, 7, *range(9, 17), 24, 27, 32), id="others", marks=pytest.mark.extended),
    ],
)
@pytest.mark.parametrize("names", executable())
def test_every_program_is_proved_and_waits_for_nothing_in_vain(
    names: tuple[str, str], ranks: tuple[int, ...]
) -> None:
    # `multi_channel_tree` in three segments needs three slots on many ranks: `prove` says so, and
    # runtimes have two.
    most = 16 if names[1] == "multi_channel_tree" else max(ranks)
    for p in (p for p in ranks if p <= most):
        for schedule, made in exported(*names, p):
            program = msccl.read(made.encode())
            assert program == lower(schedule, channels=32, ends=32)
            report = prove(program)
            assert report.needless == ()
            assert report.slots <= min(SLOTS.values())


@pytest.mark.parametrize("names", executable())
def test_a_program_ends_right_in_every_order_that_is_tried(names: tuple[str, str]) -> None:
    for _, made in exported(*names, 4):
        assert [fault for seed in range(8) if (fault := play(made, seed))] == []


def test_a_ring_is_one_block_of_fused_steps() -> None:
    program = msccl.read(text(build("all_reduce", "ring", 5), "ring").encode())
    names = [[step.name for step in block.steps] for block in program.blocks]
    assert names == [["s", *["rrs"] * 3, "rrcs", *["rcs"] * 3, "r"]] * 5
    assert program.waits == {}


def test_what_is_needed_again_is_stored() -> None:
    tree = kinds(text(build("all_reduce", "tree", 7), "tree"))
    # Two of three inner ranks have two children. An inner rank's sum goes on and is replaced later;
    # the root's stays.
    assert (tree["rrc"], tree["rrs"], tree["rrcs"], tree["rcs"]) == (2, 3, 1, 3)
    assert kinds(text(build("all_reduce", "recursive_doubling", 4), "doubling"))["rrs"] == 0


def test_segments_of_a_tree_share_a_channel_and_rings_of_segments_have_their_own() -> None:
    channels = {}
    for name in ("tree", "two_tree", "segmented_ring"):
        program = msccl.read(text(build("all_reduce", name, 8, segments=4), name).encode())
        channels[name] = len({block.channel for block in program.blocks})
    assert channels == {"tree": 1, "two_tree": 1, "segmented_ring": 4}


@pytest.mark.parametrize(
    "names", [("all_reduce", "one_shot"), ("all_gather", "recursive_doubling")]
)
def test_each_further_wait_is_a_step_of_its_own(names: tuple[str, str]) -> None:
    top = ElementTree.fromstring(text(build(*names, 8), "waits"))
    waiting = [step for step in top.iter("step") if step.get("type") == "nop"]
    assert waiting
    for tb in top.iter("tb"):
        steps = list(tb)
        for nop, following in pairwise(steps):
            if nop.get("type") == "nop":
                assert "-1" not in (nop.get("depid"), following.get("depid"))
                assert nop.get("hasdep") == "0"


def test_the_dialects_differ_in_attributes_and_in_a_name() -> None:
    of_rccl, of_tools = (
        text(build("reduce_scatter", "ring", 3), "ring", dialect) for dialect in DIALECTS
    )
    assert 'coll="reducescatter" inplace="1" outofplace="0" minBytes="0" maxBytes="0">' in of_rccl
    assert 'coll="reduce_scatter" inplace="1">' in of_tools
    assert msccl.read(of_rccl.encode()) == msccl.read(of_tools.encode())
    assert 'inplace="0" outofplace="1"' in text(build("all_to_all", "pairwise", 3), "pairwise")
    assert 'proto="LL128"' in text(build("broadcast", "chain", 3), "chain", protocol="LL128")


def test_a_name_cannot_leave_its_attribute() -> None:
    name = 'a"b>.py:c' + "&" * 300
    made = text(build("broadcast", "chain", 2), name)
    (written,) = re.findall(r'<algo name="([^"]*)"', made)
    assert ElementTree.fromstring(made).get("name") == name[: msccl.MAX_NAME]
    assert len(written) <= 255


@pytest.mark.parametrize(
    ("schedule", "dialect", "message"),
    [
        (
            ("all_reduce", "ring", 33, {}),
            "rccl",
            "steps of a thread block: got 65, expected at most 64, a limit of RCCL",
        ),
        (
            ("all_gather", "direct", 34, {}),
            "rccl",
            "thread blocks of a GPU: got 66, expected at most 64",
        ),
        (("broadcast", "chain", 3, {"segments": 65}), "rccl", "steps of a thread block: got 65"),
        (
            ("broadcast", "chain", 3, {"segments": 257}),
            "msccl-tools",
            "got 257, expected at most 256, a limit of MSCCL",
        ),
        (
            ("gather", "flat", 3, {}),
            "rccl",
            "collective: got gather, expected all_reduce, all_gather",
        ),
        (
            ("broadcast", "flat", 3, {"root": 2}),
            "rccl",
            "root: got 2, expected 0, because MSCCL XML names no root",
        ),
        (("all_reduce", "ring", 400, {}), "rccl", "chunks that move: got more than 262,144"),
    ],
)
def test_a_limit_is_named(
    schedule: tuple[str, str, int, dict[str, int]], dialect: str, message: str
) -> None:
    collective, algorithm, p, options = schedule
    with pytest.raises(ValueError, match=re.escape(message)):
        text(build(collective, algorithm, p, **options), algorithm, dialect)


def test_a_run_of_chunks_is_cut_below_the_largest_count() -> None:
    step = Step([0, 1], [1, 0], 0, 200, add=True)
    made = msccl.read(text(Schedule("all_reduce", 2, 200, 1, lambda t: step), "long").encode())
    assert max(each.chunks for each in made.steps) == 71
    assert sum(each.chunks for each in made.steps if each.kind.sends) == 400


@pytest.mark.integration  # seconds
def test_the_elements_that_a_gpu_reads_are_limited() -> None:
    """62 blocks of 64 steps fit, but not with 100 GPUs beside them."""
    others, none = [*range(1, 32)], [0] * 31

    def make(t: int) -> Step:
        own = [64 + 31 * t + i for i in range(31)]
        return Step([*none, *others], [*others, *none], [*[t] * 31, *own])

    with pytest.raises(
        ValueError, match="XML elements that a GPU reads: got 4131, expected at most 4095, a limit"
    ):
        text(Schedule("broadcast", 100, 64 * 32, 64, make, root=0, one_port=False), "many")


def test_a_wrong_schedule_is_refuted() -> None:
    twice = Schedule("all_reduce", 2, 1, 2, lambda t: Step([0, 1], [1, 0], 0, add=True))
    with pytest.raises(ScheduleError, match="more than once"):
        text(twice, "twice")


def move(
    t: int, src: int, dst: int, first: int = 0, chunks: int = 1, add: bool = False
) -> Transfer:
    return Transfer(t, src, dst, BufferOffset("i", first), BufferOffset("i", first), chunks, add)


def test_a_message_goes_on_as_the_send_of_just_its_cells() -> None:
    assert onward([move(0, 0, 1, chunks=2), move(1, 1, 2, chunks=2)]) == {0: 1}
    assert onward([move(0, 0, 1, chunks=2), move(1, 1, 2, chunks=1)]) == {}
    assert onward([move(0, 0, 1, chunks=1), move(1, 1, 2, chunks=2)]) == {}


def test_a_message_that_is_partly_replaced_does_not_go_on() -> None:
    assert onward([move(0, 0, 1, chunks=2), move(1, 3, 1, first=1), move(2, 1, 2, chunks=2)]) == {}
    assert onward([move(0, 0, 1, chunks=2), move(1, 3, 1, first=0), move(2, 1, 2, chunks=2)]) == {}


def test_a_message_goes_on_once() -> None:
    assert onward([move(0, 0, 1), move(1, 1, 2), move(2, 1, 3)]) == {0: 1}


def test_a_sum_that_its_rank_adds_to_or_sends_later_is_kept() -> None:
    transfers = [move(0, 0, 1, add=True), move(1, 1, 2), move(2, 3, 1, add=True), move(3, 1, 2)]
    assert kept(transfers, set()) == {1}
    replaced = [move(0, 0, 1, add=True), move(1, 1, 2), move(2, 3, 1), move(3, 1, 2)]
    assert kept(replaced, set()) == set()
    assert kept(replaced, {(1, BufferOffset("i", 0))}) == {3}

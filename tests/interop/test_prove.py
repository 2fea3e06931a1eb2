"""The verdict on wrong programs: GPU, thread block, step and chunk, and the table with the step marked."""

import json
from pathlib import Path

import pytest

from collectives.core.schedule import ScheduleError
from collectives_interop import msccl
from collectives_interop import prove as prove_module
from collectives_interop.program import SLOTS
from collectives_interop.prove import Report, prove
from command import Capture, run
from interop.programs import PROGRAMS, Block, all_pairs, do, ring, xml

READ_FIRST: list[list[Block]] = [
    [(1, 1, 0, [do("r", "i0"), do("s", "i0")])],
    [(0, 0, 0, [do("r", "i0"), do("s", "i0")])],
]


def report(text: str) -> Report:
    return prove(msccl.read(text.encode()))


def fault(text: str) -> list[str]:
    with pytest.raises(ScheduleError) as refused:
        report(text)
    return str(refused.value).splitlines()


def test_a_deadlock_is_told_as_a_circle() -> None:
    head, _, first, _ = fault(xml("allreduce", 1, READ_FIRST))
    assert head == (
        "deadlock: 4 of 4 steps never run, 2 thread blocks are stuck; GPU 0, thread block 0, step 0 (r) waits for "
        "GPU 1, thread block 0, step 1 (s) waits for GPU 1, thread block 0, step 0 (r) waits for "
        "GPU 0, thread block 0, step 1 (s) waits for GPU 0, thread block 0, step 0 (r)"
    )
    assert first == "   0 | >r i0<1<   <-- waits for itself"


@pytest.mark.parametrize("protocol", ["Simple", "LL"])
@pytest.mark.parametrize("count", [1, 2, 3, 5, 9, 17])
def test_the_slots_of_the_protocol_must_suffice(count: int, protocol: str) -> None:
    """Both GPUs send all they have before they receive."""
    steps = [*(do("s", f"i{c}") for c in range(count)), *(do("rrc", f"i{c}") for c in range(count))]
    text = xml("allreduce", count, [[(1, 1, 0, steps)], [(0, 0, 0, steps)]], proto=protocol)
    if count <= SLOTS[protocol]:
        assert report(text).slots == count
    else:
        assert (
            f"deadlock with the {SLOTS[protocol]} slots of {protocol} ({count} suffice)"
            in fault(text)[0]
        )


def test_a_race_names_both_steps_and_the_cell() -> None:
    text = all_pairs(3).replace('depid="1" deps="1"', 'depid="-1" deps="-1"', 1)
    head, *table = fault(text)
    assert head.startswith("race: GPU 0, thread block ")
    assert "use s0, at least one writes it, and nothing orders them" in head
    assert sum("<--" in line for line in table) == 1


def test_an_overlapping_copy_races_with_itself() -> None:
    text = xml("broadcast", 4, [[(-1, -1, 0, [do("cpy", "i0", "i1", 2)])]])
    assert "reads cells that it writes for another of its chunks" in fault(text)[0]


def test_a_message_without_a_partner_is_named() -> None:
    text = ring(3).replace('type="r"', 'type="nop"', 1)
    assert (
        "has no partner: got 4 sends from GPU 2 to GPU 0 on channel 0 and 3 receives"
        in fault(text)[0]
    )


def test_messages_have_one_size_at_both_ends() -> None:
    gpus: list[list[Block]] = [
        [(1, -1, 0, [do("s", "i0", count=2)])],
        [(-1, 0, 0, [do("r", "i0")])],
    ]
    assert (
        "receives 1 chunks of 2 that GPU 0, thread block 0, step 0 (s) sends"
        in fault(xml("broadcast", 2, gpus))[0]
    )


def test_what_is_counted_twice_is_marked_where_it_happens() -> None:
    text = all_pairs(2).replace('type="nop"', 'type="re"')
    twice = text.replace('type="re" srcbuf="s" srcoff="0"', 'type="re" srcbuf="i" srcoff="0"', 1)
    head, *table = fault(twice)
    assert (
        "wrong result: GPU 0, chunk 0 (cell i0) holds chunk 0 of rank 0 more than once, not chunk 0 of rank 1"
        in head
    )
    assert next(line for line in table if "counted again here" in line).startswith(
        "   0 | >^1.1 re i0+=i0<"
    )


def test_uninitialised_and_foreign_data_are_named() -> None:
    sends = PROGRAMS["gather_ring"].replace('srcbuf="o" srcoff="0"', 'srcbuf="o" srcoff="2"', 1)
    assert "race" in fault(sends)[0] or "uninitialised" in fault(sends)[0]
    swapped = PROGRAMS["all_to_all"].replace(
        'type="s" srcbuf="i" srcoff="1"', 'type="s" srcbuf="i" srcoff="2"', 1
    )
    head = fault(swapped)[0]
    assert (
        "GPU 1, chunk 1 (cell o0) holds chunk 2 of rank 0, not asked for, not chunk 1 of rank 0"
        in head
    )
    empty = xml("broadcast", 1, [[], []])
    assert fault(empty) == [
        "wrong result: GPU 1, chunk 0 (cell i0) holds uninitialised data, not chunk 0 of rank 0; "
        "no step writes this cell"
    ]


def test_a_copy_before_the_first_step_counts() -> None:
    text = PROGRAMS["gather_ring"].replace('type="cpy"', 'type="nop"')
    assert "uninitialised" in fault(text)[0]
    for g in range(3):
        text = text.replace('s_chunks="0"><tb', f's_chunks="0"><copy i_off="0" o_off="{g}"/><tb', 1)
    assert report(text).messages == 6


def test_a_dependency_that_orders_nothing_is_reported() -> None:
    assert report(all_pairs(3)).needless == ()
    gpus: list[list[Block]] = [
        [(1, -1, 0, [do("s", "i0")]), (1, -1, 1, [do("s", "i1", after="0.0")])],
        [(-1, 0, 0, [do("r", "i0")]), (-1, 0, 1, [do("r", "i1")])],
    ]
    assert report(xml("broadcast", 2, gpus)).needless == ("GPU 0, thread block 1, step 0 (s)",)


def long_ways_round(n: int) -> str:
    """Four blocks of n steps, in which each wait is needless, but only by a long way round."""
    writes = [do("cpy", "i0", f"s{step}") for step in range(n)]
    waits = [f"0.{n - 1}", *(f"2.{step - 1}" for step in range(1, n))]
    through = [do("nop", "i0", count=0, after=wait) for wait in waits]
    beside = [do("nop", "i0", count=0, after="" if step else f"0.{n - 1}") for step in range(n)]
    after = [f"1.{n - 1}", f"2.{n - 1}", *[""] * (n - 2)]
    reads = [do("cpy", f"s{step}", f"s{n + step}", after=wait) for step, wait in enumerate(after)]
    blocks: list[Block] = [(-1, -1, 0, steps) for steps in (writes, through, beside, reads)]
    return xml("allreduce", 1, [blocks], scratch=2 * n)


def test_the_search_for_needless_dependencies_ends(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = report(long_ways_round(12))
    assert len(few.needless or ()) == few.dependencies - 1 == 12 + 2
    monkeypatch.setattr(prove_module, "MAX_LOOKS", 1000)
    program = msccl.read(long_ways_round(40).encode())
    order, layouts = prove_module.proved(program)
    assert order.needless(layouts) is None
    assert order.looks <= 1000 + 40
    path = tmp_path / "round.xml"
    path.write_text(long_ways_round(40))
    code, out, _ = run(capsys, "verify", str(path))
    assert (code, "an unknown number of 43 dependencies" in out) == (0, True)


def test_verify_takes_files(capsys: Capture, tmp_path: Path) -> None:
    texts = {"right": ring(3), "wrong": xml("allreduce", 1, READ_FIRST), "bad": "<algo"}
    names = {name: str(tmp_path / f"{name}.xml") for name in texts}
    for name, text in texts.items():
        Path(names[name]).write_text(text)
    code, out, _ = run(capsys, "verify", names["right"])
    assert code == 0
    assert (
        "all_reduce on 3 GPUs, in place: 15 steps, 12 messages (4 in a row), slots needed: 2, 0 of 0 depend"
        in out
    )
    code, out, err = run(capsys, "verify", names["right"], names["wrong"], names["right"])
    assert (code, err) == (1, "collectives: 1 of 3 wrong\n")
    assert [line.split()[0] for line in out.splitlines()] == ["ok", "wrong", "step", "0", "1", "ok"]
    code, out, err = run(capsys, "verify", "--json", *names.values())
    assert (code, err) == (2, "collectives: 1 of 3 wrong, 1 of 3 unreadable\n")
    assert [json.loads(line)["verdict"] for line in out.splitlines()] == [
        "right",
        "wrong",
        "unreadable",
    ]
    assert run(capsys, "verify", names["right"], "-p", "3")[0] == 2
    assert run(capsys, "verify", names["right"], "ring", "x.xml")[0] == 2

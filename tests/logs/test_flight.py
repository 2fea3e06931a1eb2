"""Dumps of a flight recorder: healthy ones yield no fault, each planted fault and its culprit are found."""

import json
import pickle
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from collectives.cli import main
from collectives_logs.finding import Finding
from collectives_logs.flight import findings_of
from collectives_logs.flight_calls import disagreement
from collectives_logs.flight_dump import Entry, Shapes, load, read
from collectives_logs.sources import LogError
from logs.flight_dumps import OTHERS, Dumps, Job, Step, dumps, job, written

FORMS = ("pickle", "json")
SEEDS = range(5)


def faults(found: list[Finding]) -> list[Finding]:
    return [one for one in found if one.follows]


def named_ranks(text: str) -> set[int]:
    """The ranks that a text names first."""
    runs = re.match(r"(?:all )?ranks? ?([\d–, ]*\d)?", text)
    assert runs, text
    pairs = [(*run.split("–"), run)[:2] for run in (runs[1] or "0–99").split(", ")]
    return {rank for first, last in pairs for rank in range(int(first), int(last) + 1)}


@pytest.mark.parametrize(
    ("measured", "lasted"),
    [
        (2.5, 2_500_000),
        (None, 1),
        (-1.0, 1),
        (float("nan"), 1),
    ],
)
def test_the_duration_by_events_comes_before_what_the_watchdog_saw(
    measured: object, lasted: int, tmp_path: Path
) -> None:
    """Torch writes ``duration_ms`` where TORCH_NCCL_ENABLE_TIMING is set; the watchdog looks only now and then."""
    (dump,) = dumps(job(1, 0), "nccl").values()
    dump["entries"][0]["duration_ms"] = measured
    (path,) = written({0: dump}, tmp_path, "pickle")
    assert read(path).entries[0].lasted == lasted


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("p", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("back_end", ["nccl", "gloo", "mine"])
def test_a_healthy_job_has_no_fault(p: int, form: str, back_end: str, tmp_path: Path) -> None:
    for seed in SEEDS:
        (what,) = findings_of(written(dumps(job(p, seed), back_end), tmp_path, form))
        assert re.match(
            rf"{p} ranks?, \d process groups?, \d+ recorded calls, version 2\.10$", what.found
        )


def cut(of: Job, rank: int, chance: random.Random) -> None:
    del of.programs[rank][chance.randrange(len(of.programs[rank])) :]


def changed(of: Job, rank: int, chance: random.Random, change: Callable[[Step], Step]) -> None:
    program = of.programs[rank]
    places = [
        i for i, step in enumerate(program) if not step.ends and len(of.groups[step.group][1]) > 1
    ]
    places = [i for i in places if program[i].operation != "barrier"]
    i = chance.choice(places)
    program[i] = change(program[i])


def other_operation(of: Job, rank: int, chance: random.Random) -> None:
    changed(of, rank, chance, lambda step: step._replace(operation="scatter"))


def other_size(of: Job, rank: int, chance: random.Random) -> None:
    changed(of, rank, chance, lambda step: step._replace(n=step.n + 1))


def other_dtype(of: Job, rank: int, chance: random.Random) -> None:
    changed(of, rank, chance, lambda step: step._replace(dtype=OTHERS[step.dtype]))


def swapped(of: Job, rank: int, chance: random.Random) -> None:
    """Two calls on two groups of all ranks, in the other order on one rank."""
    two = [Step(name, "all_reduce", 3, "Float", 50 + i) for i, name in enumerate(("0", "7"))]
    at = chance.choice([0, None])
    for each, program in of.programs.items():
        program[at:at] if at == 0 else None
        order = two[::-1] if each == rank else two
        if at == 0:
            program[:0] = order
        else:
            program.extend(order)


def no_receive(of: Job, rank: int, _: random.Random) -> None:
    """A message to a rank that does not take it, the last of the program."""
    sender = (rank + 1) % len(of.programs)
    of.programs[sender].append(Step("0", "send", 5, "Float", 70, (sender, rank)))


def both_receive_first(of: Job, rank: int, _: random.Random) -> None:
    other = (rank + 1) % len(of.programs)
    for a, b in ((rank, other), (other, rank)):
        of.programs[a] += [
            Step("0", "recv", 5, "Float", 70, (b, a)),
            Step("0", "send", 5, "Float", 71, (a, b)),
        ]


def other_message(of: Job, rank: int, _: random.Random) -> None:
    """Two messages whose order is another at their receiver."""
    sender = (rank + 1) % len(of.programs)
    sizes = (5, 9)
    of.programs[sender] += [Step("0", "send", n, "Float", 70, (sender, rank)) for n in sizes]
    of.programs[rank] += [Step("0", "recv", n, "Float", 71, (sender, rank)) for n in sizes[::-1]]


PLANTED: dict[Callable[[Job, int, random.Random], None], set[str]] = {
    cut: {"never arrived"},
    other_operation: {"other operation"},
    other_size: {"other sizes"},
    other_dtype: {"other dtypes"},
    swapped: {"crossed order", "other operation", "other sizes", "other dtypes"},
    no_receive: {"never arrived"},
    both_receive_first: {"crossed order"},
    other_message: {"other message"},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("p", [2, 3, 5, 8])
@pytest.mark.parametrize("plant", PLANTED)
def test_a_planted_fault_and_its_culprit_are_found(
    plant: Callable[[Job, int, random.Random], None], p: int, form: str, tmp_path: Path
) -> None:
    for seed in SEEDS:
        chance = random.Random(1000 + seed)
        culprit, broken = chance.randrange(p), job(p, seed)
        plant(broken, culprit, chance)
        first = faults([*findings_of(written(dumps(broken), tmp_path, form))])[0]
        assert first.kind in PLANTED[plant], (seed, first)
        if first.kind == "other message":
            assert f"to rank {culprit} " in first.found, (seed, first)
        else:
            assert culprit in named_ranks(first.found), (seed, first)
        if (
            p > 2
            and first.kind.startswith("other ")
            and plant is not other_message
            and " of group 8" not in first.found
        ):
            members = len(broken.groups["9"][1]) if " of group 9" in first.found else p
            assert members == 2 or named_ranks(first.found) == {culprit}, (seed, first)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("p", [2, 3, 5, 8])
def test_a_rank_without_a_dump_is_named(p: int, form: str, tmp_path: Path) -> None:
    for seed in SEEDS:
        chance, broken = random.Random(seed), job(p, seed)
        culprit = chance.randrange(p)
        cut(broken, culprit, chance)
        found = dumps(broken)
        del found[culprit]
        (first, *_) = faults([*findings_of(written(found, tmp_path, form))])
        assert first.kind == "no dump", (seed, first)
        assert named_ranks(first.found) == {culprit}, (seed, first)
        (tmp_path / f"nccl_trace_rank_{culprit}").unlink(missing_ok=True)


def last(found: Dumps, rank: int) -> dict[str, object]:
    entry: dict[str, object] = found[rank]["entries"][-1]
    return entry


@pytest.mark.integration  # seconds
@pytest.mark.parametrize("p", [1, 2, 3, 5, 8])
def test_states_tell_a_device_from_a_program(p: int, tmp_path: Path) -> None:
    for seed in SEEDS:
        culprit, found = random.Random(seed).randrange(p), dumps(job(p, seed))
        for rank in found:
            last(found, rank)["state"] = "started"
        (one,) = faults([*findings_of(written(found, tmp_path))])
        assert one.found.startswith("all ranks are in call")
        assert "train.py:99 (step)" in one.found
        if p == 1:
            continue
        last(found, culprit)["state"] = "scheduled"
        (one,) = faults([*findings_of(written(found, tmp_path))])
        assert one.kind == "not started"
        assert named_ranks(one.found) == {culprit}
        for rank in found:
            last(found, rank)["state"] = "started" if rank == culprit else "completed"
        (one,) = faults([*findings_of(written(found, tmp_path))])
        assert one.kind == "not completed"
        assert named_ranks(one.found) == {culprit}


@pytest.mark.parametrize("p", [2, 3, 5, 8])
def test_a_rank_that_came_after_the_timeout_is_late(p: int, tmp_path: Path) -> None:
    for seed in SEEDS:
        culprit, found = random.Random(seed).randrange(p), dumps(job(p, seed))
        for rank in found:
            last(found, rank)["state"] = "started"
        last(found, culprit)["time_created_ns"] = 10**18 + 700 * 10**9
        (one,) = faults([*findings_of(written(found, tmp_path, "json"))])
        assert one.kind == "late"
        assert named_ranks(one.found) == {culprit}
        assert "700.0 s after the first" in one.found


def test_groups_started_in_crossed_order_are_a_cycle(tmp_path: Path) -> None:
    """All ranks have called both, and each device has begun with another one."""
    of = job(2, 1)
    for program in of.programs.values():
        program.append(Step("7", "all_reduce", 3, "Float", 51))
    found = dumps(of)
    for rank in (0, 1):
        for i in (-1, -2):
            found[rank]["entries"][i]["state"] = "started" if (i + rank) % 2 else "scheduled"
    first = faults([*findings_of(written(found, tmp_path))])[0]
    assert first.kind == "crossed order"
    assert named_ranks(first.found) == {0, 1}


@pytest.mark.parametrize("kept", [1, 5, 12])
@pytest.mark.parametrize("p", [2, 5, 8])
def test_a_ring_that_has_overwritten_its_first_calls(p: int, kept: int, tmp_path: Path) -> None:
    for seed in SEEDS:
        chance = random.Random(seed)
        for is_faulty in (False, True):
            of = job(p, seed)
            culprit = chance.randrange(p)
            if is_faulty:
                of.programs[culprit].pop()
            found = dumps(of)
            for dump in found.values():
                del dump["entries"][:-kept]
            wrong = faults([*findings_of(written(found, tmp_path))])
            assert bool(wrong) == is_faulty, (seed, wrong)
            if is_faulty:
                assert wrong[0].kind == "never arrived"
                assert named_ranks(wrong[0].found) == {culprit}


def test_gloo_tells_only_that_a_call_is_over(tmp_path: Path) -> None:
    """As torch 2.13 writes it: no ranks of groups, states that stay scheduled, a call that timed out retired, too."""
    of = job(3, 4)
    of.programs[1].pop()
    found = dumps(of, "gloo")
    for dump in found.values():
        dump["pg_config"] = {"": {"name": "", "desc": "", "ranks": "[]"}}
        for entry in dump["entries"]:
            entry |= {"state": "scheduled", "retired": True}
        dump["entries"] = [entry for entry in dump["entries"] if not entry["is_p2p"]]
    (first,) = faults([*findings_of(written(found, tmp_path, "json"))])
    assert first.kind == "never arrived"
    assert named_ranks(first.found) == {1}


def entry(operation: str, inputs: Shapes, outputs: Shapes, state: str = "started") -> Entry:
    return Entry("0", 1, operation, None, inputs, outputs, ("Float",), ("Float",), state, "")


@pytest.mark.parametrize(
    ("operation", "ins", "outs", "culprits"),
    [
        ("all_gather", [2, 2, 2], [6, 6, 6], None),
        ("all_gather", [2, 2, 2], [6, 6, 5], (2,)),
        ("all_gather", [2, 3, 2], [6, 6, 6], (1,)),
        ("all_gather", [1, 3, 2], [6, 6, 6], None),  # uneven
        ("all_gather_v", [1, 3, 2], [6, 6, 7], (0, 1, 2)),
        ("reduce_scatter", [6, 6, 6], [2, 2, 2], None),
        ("reduce_scatter", [6, 9, 6], [2, 3, 2], (1,)),
        ("reduce_scatter", [6, 6, 6], [1, 3, 2], None),
        ("gather", [2, 2, 3], [6, 0, 0], (2,)),
        ("scatter", [6, 0, 0], [2, 3, 2], (1,)),
        ("broadcast", [4, 4, 4], [4, 4, 4], None),
        ("broadcast", [4, 4, 6], [4, 4, 6], (2,)),
        ("all_to_all", [6, 6, 6], [6, 6, 6], None),
        ("all_to_all", [6, 6, 9], [6, 6, 9], (2,)),
        ("all_to_all", [4, 6, 9], [9, 6, 4], None),  # uneven
        ("all_to_all", [4, 6, 9], [9, 6, 5], (0, 1, 2)),
        ("all_to_all_v_single", [6, 6, 9], [6, 6, 9], None),
        ("barrier", [0, 0, 0], [0, 0, 0], None),
    ],
)
def test_sizes_fit_by_the_rule_of_each_collective(
    operation: str, ins: list[int], outs: list[int], culprits: tuple[int, ...] | None
) -> None:
    calls = {
        rank: entry(operation, ((n, 1),), ((m,),))
        for rank, (n, m) in enumerate(zip(ins, outs, strict=True))
    }
    odd = disagreement(calls, 3)
    assert (odd and odd.culprits) == culprits


def test_an_all_to_all_of_lists_names_the_pair() -> None:
    shapes = tuple((n,) for n in (1, 2, 3))
    columns = [tuple((n,) for _ in range(3)) for n in (1, 2, 3)]
    calls = {rank: entry("all_to_all", shapes, columns[rank]) for rank in range(3)}
    assert disagreement(calls, 3) is None
    calls[1] = entry("all_to_all", (((1,), (2,), (4,))), columns[1])
    odd = disagreement(calls, 3)
    assert odd
    assert odd.text == "rank 1 sends 4 elements to rank 2, which expects 3"


def test_one_broken_file_does_not_silence_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of = job(3, 2)
    of.programs[1].pop()
    paths = written(dumps(of), tmp_path)
    paths[2].write_bytes(paths[2].read_bytes()[:2000])
    assert main(["read", *map(str, paths)]) == 0
    said = capsys.readouterr().out
    assert "unreadable" in said
    assert "never arrived: rank 1 made call" in said
    assert "rank 2 left no dump" in said
    again = tmp_path / "again_0"
    again.write_bytes(paths[0].read_bytes())
    assert "got another dump of rank 0" in "".join(
        one.found for one in findings_of([*paths, again])
    )
    nameless = tmp_path / "trace"
    nameless.write_bytes(paths[0].read_bytes())
    with pytest.raises(
        LogError,
        match="got no rank, expected one in the dump, or a number at the end of the file's",
    ):
        read(nameless)


WRONG: tuple[object, ...] = (
    None,
    -1,
    True,
    1.5,
    "x",
    [],
    {},
    [[]],
    [["x"]],
    [[-1]],
    [[1 << 70]],
    [[1 << 61, 1 << 61]],
    "0" * 300,
)


@pytest.mark.integration  # seconds
@pytest.mark.parametrize("form", FORMS)
def test_wrong_types_leave_a_partial_answer(form: str, tmp_path: Path) -> None:
    def with_wrong(key: str, value: object, is_of_entry: bool) -> None:
        found = dumps(job(2, 0, 6))
        paths = written(found, tmp_path, form)
        (found[1]["entries"][3] if is_of_entry else found[1])[key] = value
        paths[1].write_bytes(
            pickle.dumps(found[1], 2) if form == "pickle" else json.dumps(found[1]).encode()
        )
        assert next(findings_of(paths)).kind == "dumps"

    for value in WRONG:
        for key in dumps(job(2, 0, 6))[0]["entries"][0]:
            with_wrong(key, value, is_of_entry=True)
    for key in ("version", "pg_config", "pg_status", "entries", "rank", "host_name"):
        for value in (
            *WRONG,
            {"0": None},
            {"0": {"ranks": 3}},
            {"0": {"ranks": "[1e9]"}},
            [None] * 3,
        ):
            with_wrong(key, value, is_of_entry=False)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_plain_pickle_is_read_as_python_reads_it(protocol: int) -> None:
    shared = [1, 2]
    value = {
        "a": [
            shared,
            shared,
            (),
            (1,),
            ("x", 2, None),
            -5,
            300,
            70_000,
            1 << 40,
            -(1 << 70),
            True,
            False,
            "é" * 300,
        ]
    }
    assert load(pickle.dumps([value, 1.5], protocol=protocol)) == [value, 1.5]


def test_the_last_entries_are_read_of_a_dump_that_has_more(tmp_path: Path) -> None:
    (path,) = written(dumps(job(1, 3, 20)), tmp_path)
    whole, cut = read(path), read(path, 5)
    assert cut.entries == whole.entries[-5:]
    assert len(whole.entries) == 21
    assert whole.is_whole
    assert not cut.is_whole

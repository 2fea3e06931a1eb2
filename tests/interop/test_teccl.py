"""Schedules of TE-CCL: read and proved, and each planted fault is found."""

import json
import random
import re
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from collectives.core.schedule import ScheduleError
from collectives.core.verify import verify
from collectives_interop import teccl
from collectives_interop.judge import judged
from command import Capture, run

File = dict[str, Any]
TOP = {"1-Epoch_Duration": 1e-3, "5-Algo_Bandwidth": 2.0}


def line(chunk: int, origin: int, hop: str) -> str:
    return f"Chunk {chunk} from {origin} traveled over {hop}"


def gather(gpus: list[int]) -> File:
    """A ring in the order of the numbers: in epoch t a GPU sends what it got last."""
    p = len(gpus)
    flows = [
        line(0, gpus[(r - t) % p], f"{gpus[r]}->{gpus[(r + 1) % p]} in epoch {t}")
        for t in range(p - 1)
        for r in range(p)
    ]
    met = {f"GPU {to}": {f"GPU {a}": {"Chunk 0": 1e-3} for a in gpus if a != to} for to in gpus}
    return {**TOP, "6-Demand_Met": met, "7-Flows": flows}


def star(gpus: list[int], switch: int) -> File:
    """Everything at once through one switch."""
    file = gather(gpus)
    file["7-Flows"] = [
        line(0, a, f"{a}->{b} in epoch 0 via switches {switch}")
        for a in gpus
        for b in gpus
        if a != b
    ]
    return file


def exchange(gpus: list[int]) -> File:
    """An all-to-all in which half of each chunk goes straight, and half by way of another GPU."""
    paths: dict[str, Any] = {}
    for a in gpus:
        for number, b in enumerate(gpus):
            if a != b:
                over = next(gpu for gpu in gpus if gpu not in (a, b))
                straight = [[0, f"{a}->{b} with volume 0.5 in epoch 0"]]
                around = [
                    [1, f"{a}->{over} with volume 0.5 in epoch 1"],
                    [2, f"{over}->{b} with volume 0.5 in epoch 2"],
                ]
                paths[f"Demand at {b} for chunk {number} from {a} met by epoch 2"] = [
                    straight,
                    around,
                ]
    return with_flows({**TOP, "8-Chunk paths": paths})


def with_flows(file: File) -> File:
    """The file with the flows that its paths have."""
    told = [
        line(int(key.split()[5]), int(key.split()[7]), text)
        for key, paths in file["8-Chunk paths"].items()
        for path in paths
        for _, text in path
    ]
    return {**file, "7-Flows": sorted(set(told))}


def uneven(gpus: list[int]) -> File:
    """The same, but the first pair's chunk goes in one piece."""
    file = exchange(gpus)
    a, b = gpus[:2]
    paths = {
        f"Demand at {b} for chunk 1 from {a} met by epoch 2": [
            [[0, f"{a}->{b} with volume 1.0 in epoch 0"]]
        ]
    }
    return with_flows({**file, "8-Chunk paths": file["8-Chunk paths"] | paths})


GOOD = {
    "ring": gather([0, 1, 2, 3]),
    "gaps": gather([2, 3, 7]),
    "star": star([1, 2, 4], 0),
    "exchange": exchange([1, 2, 5]),
    "uneven": uneven([1, 2, 5]),
    "old names": {
        {"8-Chunk paths": "7-chunk paths", "7-Flows": "6-Flows"}.get(name, name): value
        for name, value in exchange([0, 1, 2]).items()
    },
}


def read(file: Any) -> teccl.Flows:
    return teccl.read(json.dumps(file).encode())


def judge(file: Any) -> teccl.Flows:
    """Judge the contents of a file as the command does."""
    flows = read(file)
    verify(teccl.schedule(flows))
    return flows


@pytest.mark.parametrize("name", GOOD)
def test_a_right_schedule_is_proved(name: str) -> None:
    judge(GOOD[name])


def test_ranks_are_the_gpus_in_order_and_switches_follow() -> None:
    flows = judge(GOOD["star"])
    made = teccl.schedule(flows)
    assert (flows.gpus, flows.switches, made.p, made.switches, made.nsteps) == (
        (1, 2, 4),
        (0,),
        3,
        1,
        2,
    )
    assert repr(made.step(0)) == "Step(0->3:=0, 1->3:=1, 2->3:=2)"
    assert len(made.step(1)) == 6


class Counted(tuple[teccl.Flow, ...]):
    """Flows that count how often all of them are read."""

    readings = 0

    def __iter__(self) -> Iterator[teccl.Flow]:
        self.readings += 1
        return super().__iter__()


@pytest.mark.parametrize("p", [5, 40])
def test_a_schedule_reads_the_flows_as_often_whatever_their_number(p: int) -> None:
    flows = read(gather(list(range(p))))
    counted = Counted(flows.flows)
    assert teccl.schedule(flows._replace(flows=counted)).nsteps == p - 1
    assert counted.readings == 3


def test_pieces_of_a_pair_are_chunks_of_their_own() -> None:
    flows = judge(GOOD["exchange"])
    assert (flows.collective, flows.k, len(flows.flows)) == ("all_to_all", 3 * 3 * 2, 6 * 3)


def test_a_switch_passes_a_chunk_on_in_time_for_the_next_epoch() -> None:
    file = star([1, 2, 4], 0)
    file["7-Flows"].remove(line(0, 1, "1->4 in epoch 0 via switches 0"))
    late, early = (line(0, 1, f"2->4 in epoch {epoch}") for epoch in (1, 0))
    judge({**file, "7-Flows": [*file["7-Flows"], late]})
    with pytest.raises(
        ScheduleError,
        match=r"rank 2 holds chunk 0 of rank 0 0 times, not 1",
    ):
        judge({**file, "7-Flows": [*file["7-Flows"], early]})


@pytest.mark.parametrize("name", ["ring", "gaps", "star", "exchange", "uneven"])
def test_every_single_flow_is_needed(name: str) -> None:
    for number in range(len(GOOD[name]["7-Flows"])):
        file = deepcopy(GOOD[name])
        file["7-Flows"].pop(number)
        with pytest.raises(ScheduleError):
            judge(file)


def test_what_is_missing_is_named_with_the_gpus_of_the_ranks(tmp_path: Path) -> None:
    file = gather([2, 3, 7])
    file["7-Flows"].remove(line(0, 7, "2->3 in epoch 1"))
    (tmp_path / "file.json").write_text(json.dumps(file))
    (row,) = judged([str(tmp_path / "file.json")])
    assert (row["verdict"], row["ranks"]) == ("wrong", 3)
    assert "rank 1 holds chunk 2 of rank 2 0 times, not 1" in row["why"]
    assert row["why"].endswith("ranks are the GPUs 2–3, 7, then switches")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "volume 0.5 in epoch 0",
            "volume 0.25 in epoch 0",
            "GPU 2: got 0.75 of chunk 1 from 1, expected all of it, 1",
        ),
        (
            "2->1 with volume 0.5 in epoch 2",
            "2->1 with volume 0.5 in epoch 1",
            "rank 0 holds chunk 13 of rank 2 0 times, not 1",
        ),
        (
            "5->1 with volume 0.5 in epoch 0",
            "5->2 with volume 0.5 in epoch 0",
            "rank 0 holds chunk 12 of rank 2 0 times, not 1",
        ),
    ],
)
def test_a_wrong_path_is_found(old: str, new: str, message: str) -> None:
    file = exchange([1, 2, 5])
    paths = json.loads(json.dumps(file["8-Chunk paths"]).replace(old, new))
    with pytest.raises(ScheduleError, match=message):
        judge(with_flows({**file, "8-Chunk paths": paths}))


def test_a_pair_that_the_demand_leaves_out_is_missing() -> None:
    file = exchange([1, 2, 5])
    del file["8-Chunk paths"]["Demand at 5 for chunk 2 from 1 met by epoch 2"]
    with pytest.raises(ScheduleError, match=r"rank 2 holds chunk 4 of rank 0 0 times, not 1"):
        judge(with_flows(file))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON: Expecting value"),
        (json.dumps(GOOD["ring"])[:400], "not JSON: "),
        ("[1, 2]", "the file: got [1, 2], expected an object"),
        ("[" * 100_000, "levels of the file: got hundreds, expected at most 5"),
        (
            '{"7-Flows": 1' + "0" * 5000 + "}",
            "not JSON: got a number of 5,001 digits, expected at most 300",
        ),
        ('{"7-Flows": NaN}', "not JSON: got NaN, expected a number"),
        ("\udcff", "not JSON: "),
        ('{"version": 2}', "keys of the file: got ['version'], expected 7-Flows among them"),
        ('{"7-Flows": 3}', "7-Flows: got 3, expected a list of at most 262,144"),
        ('{"7-Flows": []}', "7-Flows: got none, expected one kind"),
        (
            '{"7-Flows": [["rm"]]}',
            "got ['rm'], expected 'Chunk C from O traveled over A->B in epoch E'",
        ),
        (
            ("ring", "0->1 in epoch 0", "0->9 in epoch 0"),
            "got node 9, expected one of the 4 GPUs of the demand (0–3)",
        ),
        (("ring", "Chunk 0 from 0", "Chunk 0 from 12"), "got node 12, expected one of the 4 GPUs"),
        (("ring", "in epoch 2", "in epoch 2 via switches 3"), "got a GPU as a switch"),
        (("ring", "0->1 in epoch 0", "0->0 in epoch 0"), "expected two nodes up to 1,023"),
        (("ring", "0->1 in epoch 0", "0->1 in epoch 99999999"), "an epoch up to 65,536"),
        (("ring", "0->1 in epoch 0", "0->1 in epoch " + "9" * 40), "expected 'Chunk C from O"),
        (
            ("ring", "Chunk 0 from 0", "Chunk 65536 from 0"),
            "got 262,148 on 4 nodes, expected a product of at most",
        ),
        (
            ("ring", "0->1 in epoch 0", "0->1 with volume 1.0 in epoch 0"),
            "got flows with and without a volume",
        ),
        (("ring", '"GPU 3"', '"GPU x"'), "got 'GPU x', expected 'GPU N'"),
        (
            ("ring", '"GPU 3"', '"GPU 5000"'),
            "GPUs of the demand: got [5000], expected numbers up to 1,023",
        ),
        (("ring", '"6-Demand_Met"', '"6-Demand"'), "6-Demand_Met: got None, expected an object"),
        (
            ("ring", "0.001,", "9" * 400 + ","),
            "not JSON: got a number of 400 digits, expected at most 300",
        ),
        (
            ("ring", "2.0,", "9" * 4300 + ","),
            "not JSON: got a number of 4,300 digits, expected at most 300",
        ),
        (
            ("exchange", "chunk 0 from 2", "chunk 1 from 2"),
            "demand at 1: got chunk 1, expected 0 modulo 3 GPUs",
        ),
        (
            ("exchange", '"5->1 with volume 0.5 in epoch 0"', "5"),
            "got 'Chunk 0 from 5 traveled over 5', expected",
        ),
        (
            ("exchange", '[0, "5->1 with volume 0.5', '[0, "5->1'),
            "got a path without flows or volumes",
        ),
        (
            ("exchange", "Demand at 1", "Demand by 1"),
            "expected 'Demand at D for chunk C from O met by epoch E'",
        ),
        (
            ("exchange", '"8-Chunk paths"', '"9-Chunk paths"'),
            "8-Chunk paths: got None, expected an object",
        ),
    ],
)
def test_a_bad_file_has_one_line(
    monkeypatch: pytest.MonkeyPatch, text: str | tuple[str, str, str], message: str
) -> None:
    monkeypatch.setattr(teccl, "MAX_CELLS", 1 << 20)
    if not isinstance(text, str):
        name, old, new = text
        good = json.dumps(GOOD[name])
        assert old in good
        text = good.replace(old, new)
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        teccl.read(text.encode("utf8", "surrogateescape"))
    assert not isinstance(caught.value, ScheduleError)
    assert str(caught.value).count("\n") == 0


def test_a_damaged_file_has_a_verdict_and_never_another_error() -> None:
    chance = random.Random(1)
    for name in ("star", "exchange"):
        text = json.dumps(GOOD[name])
        for _ in range(300):
            at, length = chance.randrange(len(text)), chance.randrange(1, 9)
            cut = text[:at] + chance.choice(["", "0", "9", '"', "->", "{"]) + text[at + length :]
            assert said(cut).count("\n") == 0


def said(text: str) -> str:
    """The error of a file, empty if it is right; a ScheduleError is a ValueError."""
    try:
        teccl.schedule(teccl.read(text.encode()))
    except ValueError as error:
        return str(error)
    return ""


def test_the_command_tells_the_format_by_the_contents(capsys: Capture, tmp_path: Path) -> None:
    for name, file in GOOD.items():
        (tmp_path / f"{name.replace(' ', '_')}.json").write_text(json.dumps(file))
    code, out, err = run(capsys, "verify", *map(str, sorted(tmp_path.iterdir())))
    assert (code, err, out.count("ok  ")) == (0, "", len(GOOD))
    assert (
        "star.json: all_gather on 3 GPUs (1–2, 4) and 1 switch (0): 6 flows, the last in epoch 0; every"
        in out
    )
    (tmp_path / "star.xml").write_text(json.dumps(GOOD["star"]))
    code, out, _ = run(
        capsys, "verify", str(tmp_path / "star.xml"), "--machine", "textbook", "--json"
    )
    row = json.loads(out)
    assert (code, row["verdict"], row["switches"], row["flows"]) == (0, "right", [0], 6)
    assert row["not_simulated"] == "a schedule of TE-CCL has links of its own"


def test_the_command_says_what_is_wrong(capsys: Capture, tmp_path: Path) -> None:
    wrong = gather([0, 1, 2])
    wrong["7-Flows"].pop()
    for text, code, message in (
        (json.dumps(wrong), 1, "all_gather on 3 ranks, 3 chunks, 2 steps: rank 0 holds chunk 1"),
        (json.dumps(wrong)[:99], 2, "not JSON: "),
        ("3", 2, "the file: got 3"),
        ("<algo/>", 2, "line 1: <algo>: got no attribute coll"),
    ):
        (tmp_path / "file.json").write_text(text)
        ended, out, err = run(capsys, "verify", str(tmp_path / "file.json"))
        assert (ended, f"file.json: {message}" in out) == (code, True), out
        assert f"1 of 1 {'wrong' if code == 1 else 'unreadable'}" in err

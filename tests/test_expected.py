"""What is expected of a collective, and what is said of measured times that fall short."""

import json
from pathlib import Path

import pytest

from collectives.core.bounds import busbw
from collectives.expected import CHECKS, Expected, asked, causes, expected_row
from collectives.machine import machine
from collectives.nccl import formulas

MACHINE = """\
name: two-h100
ranks_per_node: 8
ports_per_node: {ports}
inside: {{latency: 3.4us, rate: 337GB/s}}
network: {{latency: 11us, overhead: 3us, rate: 50GB/s}}
"""


@pytest.fixture
def machine_file(tmp_path: Path) -> str:
    path = tmp_path / "two-h100.yaml"
    path.write_text(MACHINE.format(ports=8))
    return str(path)


def measured(what: Expected, nbytes: int, share: float, before: float = 0.0) -> list[str]:
    """The causes of a time at which a size reaches a share of what NCCL's formulas say."""
    row = expected_row(what, nbytes)
    seconds = row["nccl_seconds"] / share
    rate = busbw(what.collective, row["ranks"], nbytes, seconds)
    row |= {"measured_seconds": seconds, "measured_busbw": rate, "share": share}
    return causes(what, row, before)


def test_nothing_that_reaches_three_quarters_is_marked(machine_file: str) -> None:
    what = asked("all_reduce", machine_file, 2)
    for share in (0.76, 0.9, 1.0, 1.3):
        assert measured(what, 1 << 30, share) == []


def test_each_cause_shows_where_its_numbers_hold(machine_file: str) -> None:
    two = asked("all_reduce", machine_file, 2)
    assert measured(two, 8, 0.5) == ["latency"]
    assert "half" in measured(two, 1 << 30, 0.5)
    assert "ports" in measured(two, 1 << 30, 1 / 8)
    assert "half" not in measured(two, 1 << 30, 1 / 8)
    assert "slot" in measured(two, 1 << 30, 12 * 8 / 461)
    assert "dip" in measured(two, 64 << 20, 0.65, before=400.0)
    assert measured(two, 1 << 30, 0.001) == ["unit"]
    assert {"half", "ports"} <= set(measured(two, 1 << 30, 0.41 / 8))  # of one port
    one = asked("all_reduce", machine_file, 1)
    assert not {"half", "ports", "slot"} & set(measured(one, 1 << 30, 0.5))  # no network


def test_one_of_four_ports_that_is_missing_is_marked(tmp_path: Path) -> None:
    path = tmp_path / "four-ports-h100.yaml"
    path.write_text(MACHINE.format(ports=4))
    what = asked("all_reduce", str(path), 3)
    assert "ports" in measured(what, 1 << 30, 0.74)


def test_a_switch_that_does_not_add_is_told_by_the_time_of_ring_or_tree(machine_file: str) -> None:
    what = asked("all_reduce", machine_file, 1)
    assert what.job is not None
    nbytes = 8 << 30
    found = formulas.predictions(what.job, nbytes, list(what.algorithms))
    choice, others = found[0], found[1:]
    assert choice.algorithm == "nvls"
    without = min(each.seconds for each in others)
    assert measured(what, nbytes, choice.seconds / without * 0.97) == ["switch"]


def test_a_time_below_half_of_the_bound_is_a_unit_and_no_record(machine_file: str) -> None:
    what = asked("all_reduce", machine_file, 2)
    assert measured(what, 1 << 30, 1000.0) == ["unit"]


def test_switches_count_where_the_machine_file_has_them() -> None:
    for nodes in (1, 2):
        row = expected_row(asked("all_reduce", "h100", nodes), 1 << 30)
        assert (row["algorithm"], row["switches_add"]) == ("nvls_tree", True)
    of_ranks = expected_row(asked("all_reduce", "h100", 2), 8)
    assert not of_ranks["switches_add"]
    assert of_ranks["seconds"] > machine("h100").call
    for collective, name in (("all_reduce", "dgx-h100"), ("all_gather", "h100")):
        assert not expected_row(asked(collective, name, 1), 1 << 30)["switches_add"]


def test_without_formulas_of_nccl_the_fastest_schedule_is_expected(tmp_path: Path) -> None:
    row = expected_row(asked("all_to_all", "dgx-h100", 2), 1 << 20)
    assert row["nccl_algorithm"] is None
    assert row["seconds"] >= row["bound"]
    assert json.loads(json.dumps(row)) == row


@pytest.mark.parametrize(
    ("machine", "nodes", "gpus", "ports"),
    [("dgx-h100", 2, 4, 4), ("dgx-h100", 3, 1, 1), ("summit", 2, 3, 1), ("mi250", 1, 5, None)],
)
def test_a_part_of_each_node_has_its_share_of_the_ports(
    machine: str, nodes: int, gpus: int, ports: int | None
) -> None:
    what = asked("all_reduce", machine, nodes, gpus)
    assert (what.nodes * what.gpus) == nodes * gpus
    if ports:
        assert what.machine.ports == ports
        assert what.machine.ranks_per_node == gpus


@pytest.mark.parametrize(
    ("machine", "nodes", "gpus", "algorithms", "told"),
    [
        ("dgx-h100", 1, 1, None, "one alone sends nothing"),
        ("dgx-h100", 2, 9, None, "at most 8"),
        ("dgx-h100", 1000, 8, None, "at most 4,096"),
        ("dgx1", 2, None, None, "expected 1"),
        ("dgx-h100", 2, 8, ["nvlstree"], "nvls_tree"),
        ("dgx-h100", 1, 8, ["nvls_tree"], "several"),
        ("dgx-a100", 1, 8, ["nvls"], "without a switch"),
        ("textbook", 8, None, ["ring"], "--generation"),
    ],
)
def test_what_cannot_be_answered_is_refused(
    machine: str, nodes: int, gpus: int | None, algorithms: list[str] | None, told: str
) -> None:
    with pytest.raises(ValueError, match=told):
        asked("all_reduce", machine, nodes, gpus, algorithms=algorithms)


def test_every_check_is_a_sentence_that_says_what_to_do() -> None:
    for text in CHECKS.values():
        words = text.split()
        assert text.endswith(".")
        assert len(words) > 15

"""The leaderboard: no algorithm is below a race's bound, a seed gives one race, and a class is ranked in one for all.

A run is recorded and can be repeated. Whoever has no proved schedule has no place.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from collectives.cli import main
from collectives.machine import Link
from collectives_course import assignment
from collectives_course.assignment import AssignmentError
from collectives_course.leaderboard import Race, bound, machine, race, ranking, standings
from course.wrong import ASSIGNMENTS
from course.wrong_leaderboard import WRONG

SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.extended) for seed in range(1, 5))]
NAMED = {each.name: each for each in WRONG}


@pytest.mark.integration  # a second of simulations
@pytest.mark.parametrize("seed", SEEDS)
def test_no_algorithm_of_the_library_is_below_the_bound(seed: int) -> None:
    for standing in standings(seed):
        assert 0 < standing.bound <= min(standing.times.values()), standing


def test_races_differ_by_seed_and_stream() -> None:
    races = [race(seed, stream) for seed in range(20) for stream in (0, 1)]
    assert len({each.sizes for each in races}) == len(races)
    assert (
        len({(each.nodes, each.machine.ranks_per_node, each.machine.ports) for each in races}) > 10
    )
    assert race(5) == race(5)


def test_the_described_machine_is_the_raced_one() -> None:
    described, on = race(2).description(), race(2)
    assert described["nodes"] * described["ranks_per_node"] == on.p
    assert described["network"]["beta"] * on.machine.network.rate == pytest.approx(1)
    assert described["network"]["alpha"] == on.machine.network.alpha


def alike(nodes: int, per_node: int, ports: int, n: int) -> float:
    """The bound where a message costs 1 s and a second a byte, inside and outside."""
    link = Link(overhead=1.0, rate=1.0)
    return bound(Race(nodes, machine(per_node, ports, link, link), ()), n)


def test_the_bound_by_hand() -> None:
    assert alike(1, 1, 1, 100) == 0.0
    assert alike(2, 1, 1, 0) == 1.0
    assert alike(2, 1, 1, 100) == 100.0  # each hands its half of the sum over, and gets the other's
    assert alike(4, 1, 1, 100) == 150.0
    assert alike(1, 4, 4, 100) == 150.0
    assert alike(3, 1, 1, 0) == 2.0
    assert alike(4, 4, 4, 0) == pytest.approx(3.0)  # 1, 3, 9, 27 ranks: two kinds of links at once
    # 14 n bytes, on a port and four links inside for each of two nodes.
    assert alike(2, 4, 1, 100) == 140.0
    assert alike(2, 4, 4, 100) == 87.5
    # All that leaves a node shares its one port.
    assert alike(9, 2, 1, 100) == pytest.approx(2 * 8 / 9 * 100)


def test_a_slower_network_raises_the_bound() -> None:
    on = race(3)
    slow = on.machine.model_copy(
        update={"network": Link(overhead=on.machine.network.alpha, rate=1e9)}
    )
    assert bound(replace(on, machine=slow), 1 << 30) > bound(on, 1 << 30)


def submit(folder: Path, name: str, wrong: str) -> None:
    (folder / name).mkdir(parents=True)
    NAMED[wrong].write("leaderboard", "fastest.py", folder / name)


def test_an_assignment_without_a_score_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AssignmentError, match="got ring, expected one with a criterion 'score'"):
        ranking(assignment.read(ASSIGNMENTS / "ring"), tmp_path)


def test_a_folder_without_submissions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected a folder with a folder for each"):
        ranking(assignment.read(ASSIGNMENTS / "leaderboard"), tmp_path)


@pytest.mark.integration
@pytest.mark.usefixtures("sandbox")
def test_the_same_seed_gives_the_same_ranking_and_a_new_run_another_race(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    submit(tmp_path, "anna", "ten million chunks")
    submit(tmp_path, "berta", "the ring for everything")
    submit(tmp_path, "carl", "knows nothing of nodes")
    submit(tmp_path, "dora", "the ring for everything")
    typed = ["leaderboard", str(ASSIGNMENTS / "leaderboard"), str(tmp_path), "--json"]
    assert main(typed) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["submission"] for row in rows] == ["carl", "berta", "dora", "anna"]
    assert [row["place"] for row in rows] == [1, 2, 2, None]
    assert rows[1]["score"] == rows[2]["score"] > rows[0]["score"] > 1
    assert rows[-1]["status"] == "failed"
    assert "10,000,000 chunks" in rows[-1]["message"]
    seed = rows[0]["seed"]
    assert main([*typed, "--seed", str(seed)]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == rows
    assert main([*typed[:-1], "--seed", str(seed + 1)]) == 0
    table = capsys.readouterr()
    assert f"repeat with --seed {seed + 1}" in table.err
    assert f"{rows[0]['score']:.3f}" not in table.out

"""``collectives synthesize``: what it prints and saves, how it ends, and what it says about wrong input."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from collectives.core.grid import grid
from collectives.core.schedule import Schedule, Step
from collectives_interop.cli.synthesize import program_text
from command import Capture, run, started
from places import PATIENCE
from test_schemas import kind

DGX1 = ("--machine", "dgx1")


def test_as_few_rounds_as_there_is_a_schedule_for(capsys: Capture) -> None:
    code, out, err = run(capsys, "synthesize", "all_gather", *DGX1, "--steps", "2", "--chunks", "3")
    first, second, *rest = out.splitlines()
    assert code == 0
    assert err == ""
    assert first.startswith("unsatisfiable  all_gather on dgx1: 2 steps, 4 rounds, 3 chunks a rank")
    assert second.startswith("satisfiable  all_gather on dgx1: 2 steps, 5 rounds, 3 chunks a rank")
    assert rest[2].startswith("step | rank 0")
    assert len(rest) == 5


def test_a_row_of_json_follows_the_schema(capsys: Capture) -> None:
    code, out, _ = run(capsys, "synthesize", "all_reduce", *DGX1, "--steps", "4", "--json")
    rows = [json.loads(each) for each in out.splitlines()]
    assert code == 0
    assert [kind(row) for row in rows] == ["synthesized"]
    assert rows[0] | {"solver_seconds": 0} == {
        "collective": "all_reduce",
        "machine": "dgx1",
        "ranks": 8,
        "steps": 4,
        "rounds": 4,
        "chunks": 1,
        "verdict": "satisfiable",
        "why": "",
        "solver_seconds": 0,
    }


def test_no_schedule_is_a_failure_that_says_why(capsys: Capture) -> None:
    code, out, err = run(
        capsys, "synthesize", "all_gather", *DGX1, "--steps", "2", "--chunks", "6", "--rounds", "7"
    )
    assert code == 1
    assert out.startswith("unsatisfiable")
    assert (
        err == "collectives: no schedule: no counts of chunks fit the links, not even fractions\n"
    )


@pytest.mark.integration  # seconds
def test_the_limit_is_a_failure(capsys: Capture) -> None:
    options = ("--steps", "3", "--chunks", "12", "--rounds", "14", "--limit", "200ms", "--json")
    code, out, err = run(capsys, "synthesize", "all_gather", *DGX1, *options)
    assert code == 1
    assert json.loads(out)["verdict"] == "limit"
    assert err == "collectives: synthesize: not done within 0.2 s (--limit)\n"


def test_what_is_saved_is_read_by_the_other_verbs(capsys: Capture, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    what = (
        "all_reduce",
        *DGX1,
        "--steps",
        "4",
        "--chunks",
        "2",
        "--rounds",
        "6",
        "--output",
        str(file),
    )
    code, out, err = run(capsys, "synthesize", *what)
    assert code == 0
    assert f"collectives show all_reduce {file}:schedule -p 8" in err
    shown = run(capsys, "show", "all_reduce", f"{file}:schedule", "-p", "8")[1]
    assert shown.partition("\n\n")[2] == out.partition("\n\n")[2]
    code, out, _ = run(capsys, "verify", "all_reduce", f"{file}:schedule")
    assert code == 0
    assert "every contribution counted" in out
    assert (
        "ranks: got 4, expected 8"
        in run(capsys, "show", "all_reduce", f"{file}:schedule", "-p", "4")[2]
    )


def test_a_schedule_as_a_file_keeps_counts_and_adds() -> None:
    step = Step([0, 1], [1, 0], [0, 2], [2, 2], [True, False])
    made: dict[str, object] = {}
    exec(program_text(Schedule("all_reduce", 2, 4, 1, lambda t: step), "two chunks"), made)
    assert grid(made["schedule"](2)) == grid(Schedule("all_reduce", 2, 4, 1, lambda t: step))  # type: ignore[operator]


@pytest.mark.integration
@pytest.mark.parametrize(
    ("number", "code", "word"), [(signal.SIGINT, 130, "interrupted"), (15, 143, "terminated")]
)
def test_a_signal_ends_the_solver_with_one_line(number: int, code: int, word: str) -> None:
    """The solver is in the midst of a question of minutes."""
    options = ["--machine", "dgx1", "--steps", "3", "--chunks", "12", "--rounds", "14", "--json"]
    often = "from collectives.cli import main, schedules; schedules.IN_FILE = 0.2; raise SystemExit(main())"
    with started(
        [sys.executable, "-c", often, "synthesize", "all_gather", *options],
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        while "solving" not in process.stderr.readline():
            pass
        os.kill(process.pid, number)
        _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == code
    assert [each for each in err.splitlines() if "solving" not in each] == [f"collectives: {word}"]

"""A schedule of one's own that raises, exits, returns junk or never ends: one line that names it, never exit code 0."""

import json
from pathlib import Path

import pytest

from collectives.algorithms import build, from_file
from collectives.core.schedule import ScheduleError, Step
from command import Capture, run
from sweep import each

OWN = """
import sys
from collectives import Schedule, Step

def of(p, make, nsteps=1, k=1):
    return Schedule("all_reduce", p, k, nsteps, make)

def raises(p): raise ValueError("odd\\nranks")
def exits(p): sys.exit(0)
def junk(p): return 42
def half(p): return of(p, None, nsteps=1.5)
def large(p): return of(p, None, k=10**12)
def own_error(p): raise type("Own", (BaseException,), {})("x")
def step_raises(p): return of(p, lambda t: Step([0, 1], [1, 0], 0, add=True) if t < 3 else 1 // 0, nsteps=5)
def step_exits(p): return of(p, lambda t: sys.exit(0))
def step_junk(p): return of(p, lambda t: "x")
def step_far(p): return of(p, lambda t: Step([0], [10**9], 10**7, count=10**8))
def step_back(p): return of(p, lambda t: Step([-1], [0], 0))
def endless(p):
    while True:
        pass
def step_endless(p):
    def make(t):
        while True:
            pass
    return of(p, make)
def many(p): return of(p, lambda t: Step([0], [1], 0), nsteps=10**12)
def right(p): return of(p, lambda t: Step([0, 1], [1, 0], 0, add=True))
def wrong(p): return of(p, lambda t: Step([0], [1], 0, add=True))
def more(p): return right(p + 1)
"""

FAULTS = {
    "raises": "failed when it was called, line 8: ValueError: odd ranks",
    "exits": "failed when it was called, line 9: SystemExit: 0",
    "junk": "failed when it was called: TypeError: it returned int, expected a collectives.Schedule",
    "half": "failed when it was called, line 6: ScheduleError: nsteps of a schedule: got 1.5, expected a whole",
    "large": "failed when it was called: ValueError: k: got 1,000,000,000,000 chunks, expected at most 134,217,728",
    "own_error": "failed when it was called, line 13: Own: x",
    "step_raises": "failed in step 3, line 14: ZeroDivisionError",
    "step_exits": "failed in step 0, line 15: SystemExit: 0",
    "step_junk": "failed in step 0: ScheduleError: step 0: got 'x', expected a Step",
    "step_far": "failed in step 0: ValueError: row 0: got src 0, dst 1000000000, chunk 10000000, count 100000000",
    "step_back": "failed in step 0: ValueError: row 0: got src -1, dst 0, chunk 0, count 1, expected two of",
}
VERBS = {
    "list": "list {} -p 2",
    "show": "show all_reduce {} -p 2",
    "verify": "verify all_reduce {} -p 2",
    "simulate": "simulate all_reduce {} -p 2 --bytes 8",
    "bench": "bench all_reduce {} -p 2",
}


@pytest.fixture
def own(tmp_path: Path) -> str:
    (tmp_path / "own.py").write_text(OWN)
    return f"{tmp_path}/own.py"


@pytest.mark.integration
def test_every_verb_takes_a_schedule_of_ones_own(capsys: Capture, own: str) -> None:
    swap, wrong = f"{own}:right", f"{own}:wrong"
    assert "   0 | +0<1   | +0<0" in run(capsys, "show", "all_reduce", swap, "-p", "2")[1]
    assert run(capsys, "verify", "all_reduce", swap, "-p", "2")[0] == 0
    code, _, err = run(capsys, "verify", "all_reduce", wrong, "-p", "2")
    assert code == 1
    assert "rank 0 holds chunk 0 of rank 1 0 times, not 1" in err
    assert (
        json.loads(run(capsys, "list", swap, "-p", "2", "--json")[1].splitlines()[-1])["steps"] == 1
    )
    words = f"bench all_reduce {swap} -p 2 --bytes 4K --repetitions 3 --json"
    code, out, _ = run(capsys, *words.split())
    assert code == 0
    assert json.loads(out)["wrong"] == 0
    assert json.loads(out)["algorithm"] == swap


@pytest.mark.parametrize("verb", VERBS)
def test_a_fault_is_one_line_that_names_the_function(capsys: Capture, own: str, verb: str) -> None:
    for function, fault in FAULTS.items():
        code, _, err = run(capsys, *VERBS[verb].format(f"{own}:{function}").split())
        assert code in (1, 2), err
        assert err.count("\n") == 1, err
        assert f"schedule {own}:{function} {fault}" in err


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("1 / 0", "line 1: ZeroDivisionError: division by zero"),
        ("import sys; sys.exit(0)", "line 1: SystemExit: 0"),
        ("def f(:", "SyntaxError: invalid syntax (own.py, line 1)"),
        ("\0", "SyntaxError: source code string cannot contain null bytes"),
    ],
)
def test_a_file_that_fails_is_one_line_that_names_it(
    capsys: Capture, tmp_path: Path, text: str, fault: str
) -> None:
    (tmp_path / "own.py").write_text(text)
    for command in VERBS.values():
        code, _, err = run(capsys, *command.format(f"{tmp_path}/own.py:f").split())
        assert code in (1, 2), err
        assert err.count("\n") == 1, err
        # As Python says until 3.11.3.
        err = err.replace("ValueError: source code", "SyntaxError: source code")
        assert (
            f"own.py:f failed while its file was run{':' if fault[0] == 'S' else ','} {fault}"
            in err
        )


@pytest.mark.integration
@pytest.mark.parametrize("verb", each(VERBS, few=["verify", "bench"]))
def test_what_never_ends_is_ended(capsys: Capture, own: str, verb: str) -> None:
    for function, where in (
        ("endless", "when it was called"),
        ("step_endless", "in step 0"),
        ("many", "many"),
    ):
        if (verb, function) == ("show", "many"):  # shows the first steps alone
            continue
        run(capsys, *VERBS[verb].format(f"{own}:raises").split())  # imports, which count as well
        code, _, err = run(
            capsys, *VERBS[verb].format(f"{own}:{function}").split(), "--timeout", "1"
        )
        assert code == 1, err
        assert err.count("\n") == 1, err
        assert f"{verb} {own}:{function}: not done within 1 s (--timeout)" in err
        assert where in err


@pytest.mark.integration  # seconds
def test_a_file_that_never_ends_is_ended(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("while True: pass")
    code, _, err = run(capsys, "verify", "all_reduce", f"{tmp_path}/own.py:f", "--timeout", "1")
    assert code == 1
    assert err.count("\n") == 1
    assert "was stopped while its file was run" in err


def test_steps_are_those_that_the_function_makes(own: str) -> None:
    step = build("all_reduce", f"{own}:right", 2).step(0)
    assert isinstance(step, Step)
    assert repr(step) == "Step(0->1:+0, 1->0:+0)"
    with pytest.raises(
        ScheduleError, match="failed in step 3, line 14: ZeroDivisionError"
    ) as caught:
        list(build("all_reduce", f"{own}:step_raises", 2).steps())
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_file_may_import_what_is_beside_it(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "beside_the_schedule.py").write_text("ROOT = 1\n")
    lines = [
        "import beside_the_schedule",
        "from collectives.core.schedule import Schedule, Step",
        "def down(p):",
        "    step = Step(beside_the_schedule.ROOT, [r for r in range(p) if r != 1], 0)",
        "    return Schedule('broadcast', p, 1, 1, lambda t: step, root=1, one_port=False)",
    ]
    (tmp_path / "mine.py").write_text("\n".join(lines))
    assert run(capsys, "verify", "broadcast", f"{tmp_path}/mine.py:down", "-p", "3")[0] == 0


def test_a_signal_before_the_function_runs_leaves_no_error_behind() -> None:
    """Then the context manager's generator is closed where it waits."""
    waiting = from_file._blamed.__wrapped__("own.py:f", "in step 0")  # type: ignore[attr-defined]
    next(waiting)
    waiting.close()

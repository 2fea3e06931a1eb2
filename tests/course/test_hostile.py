"""An attack on the grader ends as one of the verdicts, costs its own criterion alone, and leaves nothing behind."""

import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest

from collectives_course import assignment, sandbox
from collectives_course.grade import grade
from collectives_course.submission import Criterion, Submission, check_equal
from command import started
from course.hostile_rings import HOSTILE, Hostile
from course.wrong import ASSIGNMENTS

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("sandbox")]

REFERENCE = (ASSIGNMENTS / "ring" / "reference" / "ring.py").read_text()

SHORT, LONG = 1.0, 30.0  # seconds; only what ends by itself may take long, on a busy machine


def _check_sum(submission: Submission) -> None:
    buffers = [np.arange(6.0) + 10 * rank for rank in range(2)]
    result = submission.run("all_reduce", [[each, "sum"] for each in buffers])
    check_equal(result, [buffers[0] + buffers[1]] * 2, "all_reduce")


def _check_bounds(submission: Submission) -> None:
    assert submission.call("bounds", 10, 4) == [0, 3, 6, 8, 10]


def _check_bounds_at_leisure(submission: Submission) -> None:
    submission.limit = LONG
    _check_bounds(submission)


def ring(hostile: Hostile) -> assignment.Assignment:
    """The ring with two criteria: the attack is in what the first one calls."""
    limit = SHORT if "timeout" in hostile.ends else LONG
    read = assignment.read(ASSIGNMENTS / "ring")
    other = _check_bounds if hostile.at_import else _check_bounds_at_leisure
    criteria = (Criterion("sum", 90, "", _check_sum), Criterion("bounds", 10, "", other))
    return replace(read, criteria=criteria, facts=read.facts.model_copy(update={"limit": limit}))


def _state() -> tuple[object, ...]:
    """What a submission could leave behind in this process and on this machine."""
    mounts = Path("/proc/self/mountinfo").read_text().count("\n")
    shared = Path("/proc/sysvipc/shm").read_text().count("\n")
    return (
        psutil.Process().children(recursive=True),
        threading.enumerate(),
        len([*Path("/proc/self/fd").iterdir()]),
        mounts,
        shared,
    )


@pytest.fixture(autouse=True)
def leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    users: set[int] = set()
    own_user = sandbox._own_user
    monkeypatch.setattr(sandbox, "_own_user", lambda: (given := own_user(), users.add(given[0]))[0])
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("COLLECTIVES_SECRET", "SECRET")
    before = _state()
    yield
    assert _state() == before
    assert not list(tmp_path.glob("collectives-grade-*"))
    assert not [
        each
        for each in psutil.process_iter(["uids"])
        if each.info["uids"] and each.info["uids"].real in users
    ]


def cases() -> list[object]:
    marks = {True: (), False: (pytest.mark.extended,)}
    return [pytest.param(each, id=each.name, marks=marks[each.is_quick]) for each in HOSTILE]


@pytest.mark.parametrize("hostile", cases())
@pytest.mark.usefixtures("leaves_nothing")
def test_an_attack_costs_its_own_criterion_alone(hostile: Hostile, tmp_path: Path) -> None:
    (tmp_path / "ring.py").write_text(hostile.text(REFERENCE))
    touched, other = grade(ring(hostile), tmp_path, seed=3).verdicts
    assert touched.status in hostile.ends.split(), touched.message
    assert hostile.says in touched.message
    assert touched.points == 0
    assert "SECRET" not in touched.message
    assert "\x1b" not in touched.message
    assert other.status == (touched.status if hostile.at_import else "passed"), other.message


COMPUTES = "import time\nend = time.process_time() + {0}\nwhile time.process_time() < end: pass"
SAME_ON_ANY_MACHINE = [
    Hostile("computes for a while", "passed", COMPUTES.format(0.5)),
    Hostile("computes for too long", "timeout", COMPUTES.format(2.0)),
    Hostile("naps for ever", "timeout", "import time\nwhile True: time.sleep(0.001)"),
    Hostile(
        "naps and asks for ever",
        "timeout",
        "import time\nwhile True: time.sleep(0.09); comm.time()",
    ),
    Hostile("asks often", "passed", "for _ in range(1000): comm.time()"),
    Hostile(
        "a rank that has returned goes on",
        "failed",
        "import numpy\ncomm.recv(numpy.zeros(1), 1 - comm.rank)",
    ),
]


@contextmanager
def busy(cores: int, loops: int) -> Iterator[None]:
    """This process and its children on so many cores, beside so many endless loops there."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:cores])
    with ExitStack() as stack:
        stack.callback(os.sched_setaffinity, 0, before)
        for _ in range(loops):
            stack.enter_context(started([sys.executable, "-c", "while True: pass"]))
        yield


@pytest.mark.alone
@pytest.mark.timeout(300)
@pytest.mark.extended
def test_a_busy_machine_gives_the_same_score(tmp_path: Path) -> None:
    with busy(cores=1, loops=4):
        for hostile in SAME_ON_ANY_MACHINE:
            (tmp_path / "ring.py").write_text(hostile.text(REFERENCE))
            graded = grade(ring(replace(hostile, ends="timeout")), tmp_path, secret="5")
            assert [each.status for each in graded.verdicts] == [hostile.ends, "passed"], (
                graded.verdicts
            )
            assert [each.points > 0 for each in graded.verdicts] == [hostile.ends == "passed", True]

"""Criteria of single assignments, where a wrong solution (`test_wrong.py`) shows too little of them."""

import importlib
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import papermill
import pytest

from collectives.core.schedule import Schedule, Step
from collectives_course import assignment
from collectives_course.assignment import Assignment
from collectives_course.grade import LIBRARY
from collectives_course.submission import Criterion, Submission
from collectives_course.verdict import Failed
from command import finished
from course.wrong import ASSIGNMENTS

MEASURE, TREES = (
    assignment.read(ASSIGNMENTS / "measure-and-predict"),
    assignment.read(ASSIGNMENTS / "trees"),
)
LAB = assignment.read(ASSIGNMENTS / "measure-on-gpus")
CHUNKS = 1 << 9
Fit = Callable[[Any, Any], tuple[float, float]]


def criterion(made: Assignment, name: str) -> Criterion:
    (found,) = [each for each in made.criteria if each.name == name]
    return found


def _medians(sizes: Any, seconds: Any) -> tuple[Any, Any]:
    distinct = np.unique(sizes)
    return distinct, np.array([np.median(seconds[sizes == size]) for size in distinct])


def weighted(sizes: Any, seconds: Any) -> tuple[float, float]:
    distinct, typical = _medians(sizes, seconds)
    beta, alpha = np.polyfit(distinct, typical, 1, w=1 / typical)
    return float(alpha), float(beta)


def unweighted(sizes: Any, seconds: Any) -> tuple[float, float]:
    beta, alpha = np.polyfit(*_medians(sizes, seconds), 1)
    return float(alpha), float(beta)


def passes(fit: Fit, seed: int) -> bool:
    submission = Submission(
        MEASURE.folder / "reference", MEASURE.facts.files[0], MEASURE.variant(seed), seed
    )
    submission.call = lambda _function, *samples, file="": fit(*samples)  # type: ignore[method-assign]
    try:
        criterion(MEASURE, "noisy-fit").check(submission)
    except Failed:
        return False
    return True


@pytest.mark.parametrize(("fit", "expected"), [(weighted, 400), (unweighted, 0)])
def test_noisy_samples_need_weights(fit: Fit, expected: int) -> None:
    assert sum(passes(fit, seed) for seed in range(400)) == expected


def report_of(folder: Path) -> None:
    criterion(MEASURE, "report").check(
        Submission(folder, MEASURE.facts.files[0], MEASURE.variant(0))
    )


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"beta": 1e-12}, "do not fit its messages"),
        ({"measured_crossing": 5.0}, "measured_crossing"),
        ({"units": {"bytes": "B", "seconds": "ms"}}, "units"),
        ({"machine": {}}, "processor"),
        ({"messages": []}, "messages"),
    ],
)
def test_a_report_that_does_not_agree_with_itself(
    changed: dict[str, object], message: str, tmp_path: Path
) -> None:
    whole = json.loads((MEASURE.folder / "reference" / "report.json").read_text())
    (tmp_path / "report.json").write_text(json.dumps(whole | changed))
    with pytest.raises(Failed, match=message):
        report_of(tmp_path)


@pytest.mark.extended
def test_measure_and_predict_report_notebook(tmp_path: Path) -> None:
    folder = tmp_path / "starter"
    assignment.write_starter(MEASURE, 0, folder)
    shutil.copyfile(MEASURE.folder / "reference" / "predict.py", folder / "predict.py")
    tiny = {"ranks": 2, "repetitions": 3, "launches": 3}
    sizes = {
        "message_bytes": [64, 4096, 1 << 20, 8 << 20],
        "all_reduce_bytes": [64, 1024, 4096, 65536],
    }
    papermill.execute_notebook(
        str(folder / "report.ipynb"),
        str(folder / "done.ipynb"),
        {**tiny, **sizes},
        cwd=str(folder),
        progress_bar=False,
    )
    report_of(folder)
    assert sorted(each.name for each in folder.glob("*report*")) == ["report.ipynb", "report.json"]


ROW = {"algorithm": "ring", "bytes": 256, "seconds": 4.217e-5, "busbw": 0.0113}


def lab_report(folder: Path) -> None:
    criterion(LAB, "report").check(Submission(folder, LAB.facts.files[0], LAB.variant(0)))


@pytest.mark.parametrize(
    ("part", "changed", "message"),
    [
        ("units", {"seconds": "ms"}, "units"),
        ("environment", {"processor": ""}, "processor"),
        ("logs", {"free": {"source": "recorded", "text": "# no table"}}, "free.log has tables"),
        ("ring_against_tree", {"ranks": 8}, "16"),
        ("ring_against_tree", {"tree_up_to": 0}, "tree_up_to"),
        ("ring_against_tree", {"rows": 12 * [ROW]}, "not those of the logs"),
        ("one_shot", {"one_shot_up_to": 512}, "one_shot_up_to"),
        (
            "one_shot",
            {"rows": [{"bytes": 1 << n, "one_shot": [1.0], "ring": [1.0]} for n in range(4)]},
            "samples",
        ),
        ("buckets", {"best": 3}, "best bucket"),
    ],
)
def test_a_lab_report_that_does_not_agree_with_itself(
    part: str, changed: dict[str, object], message: str, tmp_path: Path
) -> None:
    whole = json.loads((LAB.folder / "reference" / "report.json").read_text())
    whole[part] |= changed
    (tmp_path / "report.json").write_text(json.dumps(whole))
    with pytest.raises(Failed, match=message):
        lab_report(tmp_path)


def test_exposed_times_follow_from_the_traces(tmp_path: Path) -> None:
    whole = json.loads((LAB.folder / "reference" / "report.json").read_text())
    row = whole["buckets"]["rows"][0]
    row["events"] = [each for each in row["events"] if each["cat"] == "cpu_op"]
    (tmp_path / "report.json").write_text(json.dumps(whole))
    with pytest.raises(Failed, match="exposed"):
        lab_report(tmp_path)


def test_recorded_logs_are_the_rows_of_this_repository() -> None:
    recorded = importlib.import_module("collectives_assignment_measure_on_gpus.recorded")
    for name in recorded.LABELS:
        assert (recorded.FOLDER / f"{name}.log").read_text() == recorded.text(name)


@pytest.mark.extended
def test_a_lab_report_is_measured(tmp_path: Path) -> None:
    folder = tmp_path / "starter"
    assignment.write_starter(LAB, 0, folder)
    for name in ("lab.py", "ranks.py"):
        shutil.copyfile(LAB.folder / "reference" / name, folder / name)
    paths = os.pathsep.join([str(LIBRARY), os.environ.get("PYTHONPATH", "")])
    program = "import report; report.SIZES = report.SIZES[:4]; report.CAPS = report.CAPS[:3]; report.main()"
    finished(
        [sys.executable, "-c", program],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths},
        check=True,
    )
    lab_report(folder)


def one_by_one(p: int, root: int, k: int) -> Schedule:
    """Every chunk of every rank to the root and back, one in a step."""
    others = [rank for rank in range(p) if rank != root]

    def step(t: int) -> Step:
        turn, other = divmod(t % (k * len(others)), len(others))
        if t < k * len(others):
            return Step([others[other]], [root], turn, add=True)
        return Step([root], [others[other]], turn)

    return Schedule("all_reduce", p, k, 2 * k * len(others), step)


class Counting(np.ndarray):
    """An array, and those cut out of it, that add up how many numbers operations on them have given."""

    numbers = 0

    def __array_ufunc__(self, do: np.ufunc, how: str, *given: Any, **options: Any) -> Any:
        plain = [each.view(np.ndarray) if isinstance(each, Counting) else each for each in given]
        out = (
            {"out": tuple(each.view(np.ndarray) for each in options.pop("out"))}
            if "out" in options
            else {}
        )
        made = getattr(do, how)(*plain, **options, **out)
        Counting.numbers += np.size(made)
        return made


def test_the_check_of_roots_grows_with_what_moves_not_with_steps_times_chunks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    submission = Submission(
        TREES.folder / "reference", TREES.facts.files[0], TREES.variant(3), limit=60
    )
    root = submission.variant["root"]
    submission.call = lambda _function, p, _segments: one_by_one(
        p, root % p, CHUNKS if p == 2 else 2
    )  # type: ignore[method-assign]
    submission.charge = lambda _seconds, _what: None  # type: ignore[method-assign]
    check: Any = criterion(TREES, "root").check
    begin = check.__globals__["before"]
    monkeypatch.setitem(
        check.__globals__, "before", lambda schedule: begin(schedule).view(Counting)
    )
    monkeypatch.setitem(check.__globals__, "PARTS", ())
    monkeypatch.setattr(Counting, "numbers", 0)
    check(submission)
    steps = 2 * CHUNKS
    # With all chunks in each it were thousands for a step.
    assert steps < Counting.numbers < 20 * steps

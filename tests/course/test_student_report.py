"""The notebook of measure-and-predict runs with the reference solution, and its report agrees with itself."""

import json
import shutil
from pathlib import Path

import papermill
import pytest

from collectives_course import assignment
from collectives_course.criterion import Submission
from collectives_course.verdict import Failed
from course.wrong import ASSIGNMENTS

FOLDER = ASSIGNMENTS / "measure-and-predict"


def report_of(folder: Path) -> None:
    made = assignment.read(FOLDER)
    (criterion,) = [each for each in made.criteria if each.name == "report"]
    criterion.check(Submission(folder, made.facts.files[0], made.variant(0)))


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
def test_a_report_that_does_not_agree_with_itself(changed: dict[str, object], message: str, tmp_path: Path) -> None:
    whole = json.loads((FOLDER / "reference" / "report.json").read_text())
    (tmp_path / "report.json").write_text(json.dumps(whole | changed))
    with pytest.raises(Failed, match=message):
        report_of(tmp_path)


@pytest.mark.extended
def test_measure_and_predict_report_notebook(tmp_path: Path) -> None:
    folder = tmp_path / "starter"
    assignment.write_starter(assignment.read(FOLDER), 0, folder)
    shutil.copyfile(FOLDER / "reference" / "predict.py", folder / "predict.py")
    tiny = {"ranks": 2, "repetitions": 3, "launches": 3}
    sizes = {"message_bytes": [64, 4096, 1 << 20, 8 << 20], "all_reduce_bytes": [64, 1024, 4096, 65536]}
    papermill.execute_notebook(
        str(folder / "report.ipynb"), str(folder / "done.ipynb"), {**tiny, **sizes}, cwd=str(folder), progress_bar=False
    )
    report_of(folder)
    assert sorted(each.name for each in folder.glob("*report*")) == ["report.ipynb", "report.json"]

"""A small assignment whose check starts no process: for tests of what is around the criteria."""

from pathlib import Path

PARTS = {
    "assignment.yaml": "title: Tiny\nhours: none\nfiles: [answer.py]\n",
    "handout.md": "# Tiny\n\nWrite 42.\n",
    "public/test_answer.py": "def test_nothing():\n    pass\n",
    "reference/answer.py": "def answer():\n    # solution: say 42\n    return 42\n    # end\n",
    "criteria.py": '''"""Hidden tests."""

from pathlib import Path

from collectives_course.submission import Criterion
from collectives_course.verdict import Failed


def variant(seed):
    return {"number": seed}


def is_42(submission):
    text = (submission.folder / "answer.py").read_text()
    with (Path(__file__).parents[1] / "graded.txt").open("a") as file:
        file.write(f"{len(text)}\\n")
    if "return 42" not in text:
        raise Failed("expected 42", share=0.25 if "return 41" in text else 0)


CRITERIA = [Criterion("answer", 8, "It is 42.", is_42)]
''',
}


def write(folder: Path) -> Path:
    """The assignment, in a folder of this folder."""
    for name, text in PARTS.items():
        path = folder / "tiny" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf8")
    return folder / "tiny"


def hand_in(submissions: Path, **answers: str) -> Path:
    """A folder for each student, whose function returns this."""
    for name, answer in answers.items():
        (submissions / name).mkdir(parents=True, exist_ok=True)
        (submissions / name / "answer.py").write_text(
            f"def answer():\n    return {answer}\n", encoding="utf8"
        )
    return submissions


def graded(folder: Path) -> int:
    """How often a submission of the assignment in this folder has been graded."""
    file = folder / "graded.txt"
    return len(file.read_text().splitlines()) if file.exists() else 0

"""Exported notebooks: valid, with nbgrader's metadata, nothing of the solution outside the regions that it removes."""

import re
import shutil
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest
from jsonschema import Draft202012Validator

from collectives.cli import parser, verbs
from collectives_course import assignment
from collectives_course.nbgrader import export, with_regions
from places import PATIENCE, ROOT

ASSIGNMENTS = ROOT / "assignments"
SEED = 7
REFERENCE = '''"""All-reduce."""


def all_reduce(comm, buffer):
    """Replace the buffer by the sum over all ranks."""
    # solution: p - 1 steps
    for step in range(comm.size - 1):
        secret(step)
    # end


# reference only
def secret(step):
    """Of the reference alone."""
# end


def twice(x):
    # solution
    return 2 * x
    # end
'''
TESTS = '''"""Public tests."""
from ring import twice


def helper():
    return 21


def test_twice():
    assert twice(helper()) == 42


def test_zero():
    assert twice(0) == 0
'''
CRITERIA = """from collectives_course.submission import Criterion

CRITERIA = [
    Criterion("sum", 8, "Every rank ends with the sum", print),
    Criterion("steps", 2.5, 'Steps, with "quotes"\\nand lines', print),
]


def variant(seed):
    return {"direction": seed}
"""
PARTS = {
    "assignment.yaml": "title: Ring\nhours: 4 to 6\nfiles: [ring.py, answers.yaml, report.ipynb]\n",
    "handout.md": "---\nkernelspec: x\n---\n# Ring all-reduce\n\n```{code-cell} ipython3\n1\n```\n\nWrite *it*.\n",
    "criteria.py": CRITERIA,
    "public/test_ring.py": TESTS,
    "reference/ring.py": REFERENCE,
    "reference/answers.yaml": "steps:\n",
    "reference/report.ipynb": "{}",
    "reference/given.csv": "1,2\n",
}
# Version 3 of the metadata's schema, after nbgrader's documentation.
FLAGS = ("grade", "locked", "solution", "task")
METADATA = {
    "type": "object",
    "properties": {
        "schema_version": {"const": 3},
        **{name: {"type": "boolean"} for name in FLAGS},
        "grade_id": {"type": "string", "pattern": r"^[a-zA-Z0-9_\-]+$"},
        "points": {"type": "number", "minimum": 0},
    },
    "required": ["schema_version", "grade", "locked", "solution", "grade_id"],
    "if": {"properties": {"grade": {"const": True}}},
    "then": {"required": ["points"]},
    "else": {"not": {"required": ["points"]}},
    "additionalProperties": False,
}


def made(folder: Path, **changed: str) -> assignment.Assignment:
    """A small assignment, whose parts may be replaced; an empty part is left out."""
    for name, text in (PARTS | changed).items():
        path = folder / "ring" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if text:
            path.write_text(text, encoding="utf8")
    return assignment.read(folder / "ring")


def exported(folder: Path) -> dict[str, dict[str, Any]]:
    """The cells of an exported notebook, by name; nbformat accepts it."""
    notebook = nbformat.read(export(made(folder), SEED, folder / "course"), 4)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.language == "python"  # nbgrader's stub is the language's
    return {cell["id"]: cell for cell in notebook.cells}


def kept(source: str, stub: str = "…") -> str:
    """A cell as students get it: nbgrader replaces the regions."""
    for region, left in (("SOLUTION", rf"\1{stub}"), ("HIDDEN TESTS", "")):
        pattern = rf"^( *)### BEGIN {region}\n.*?^ *### END {region}$"
        source = re.sub(pattern, left, source, flags=re.DOTALL | re.MULTILINE)
    return source


def test_every_cell_has_nbgrader_s_metadata_and_the_grader_s_points(tmp_path: Path) -> None:
    cells = exported(tmp_path)
    before, given = (
        ["handout", "file-1", "file-2"],
        ["given-test_ring", "given-variant", "check", "public-1", "public-2"],
    )
    assert list(cells) == [*before, *given, "grade", "criterion-1", "criterion-2"]
    assert cells["public-2"]["source"] == 'check("test_ring.py::test_zero")'
    assert cells.pop("file-2")["metadata"] == {}
    for name, cell in cells.items():
        metadata = cell["metadata"]["nbgrader"]
        Draft202012Validator(METADATA).validate(metadata)
        assert metadata["grade_id"] == name
        assert metadata["locked"] != metadata["solution"]
        assert not (metadata["grade"] and metadata["solution"])
        assert cell["cell_type"] == "code" or not metadata["grade"]
        assert metadata["grade"] or "HIDDEN TESTS" not in cell["source"]
        assert metadata["solution"] == ("BEGIN SOLUTION" in cell["source"])
        assert metadata.get("points", 0) == {"criterion-1": 8, "criterion-2": 2.5}.get(name, 0)


def test_students_see_no_solution_and_no_hidden_test(tmp_path: Path) -> None:
    cells = exported(tmp_path)
    seen = {name: kept(cell["source"]) for name, cell in cells.items()}
    assert seen["handout"] == "# Ring all-reduce\n\nWrite *it*."
    assert seen["file-1"].startswith('%%writefile ring.py\n"""All-reduce."""')
    assert "    # p - 1 steps\n    …\n" in seen["file-1"]
    assert not re.search("secret|2 \\* x|assignments|verdict|solution", "\n".join(seen.values()))
    assert seen["file-2"] == "%%writefile answers.yaml\nsteps:"
    folder = tmp_path / "course" / "source" / "ring"  # has what the cells do not write
    assert {path.name for path in folder.iterdir()} == {"ring.ipynb", "report.ipynb", "given.csv"}
    assert cells["given-variant"]["source"].startswith("%%writefile variant.py\n")
    assert "\nDIRECTION = 7" in cells["given-variant"]["source"]
    assert cells["given-test_ring"]["source"] == f"%%writefile test_ring.py\n{TESTS.rstrip()}"
    assert {path.name for path in (tmp_path / "course").iterdir()} == {
        "source",
        "nbgrader_config.py",
    }


@pytest.mark.parametrize(
    "path", sorted(ASSIGNMENTS.glob("*/reference/*.py")), ids=lambda path: path.name
)
def test_references_and_what_students_get_of_them_are_python(path: Path) -> None:
    text = path.read_text(encoding="utf8")
    compile(with_regions(text), path.name, "exec")
    compile(kept(with_regions(text), "raise NotImplementedError()"), path.name, "exec")


def test_students_get_a_fault_and_no_trace_of_the_repair(tmp_path: Path) -> None:
    repaired = "def f():\n    # solution: repair it\n    return 1\n    # instead\n    # return 2\n    # end\n"
    path = export(made(tmp_path, **{"reference/ring.py": repaired}), SEED, tmp_path / "course")
    (cell,) = (cell for cell in nbformat.read(path, 4).cells if cell.id == "file-1")
    assert cell.source == "%%writefile ring.py\ndef f():\n    return 2"
    assert cell.metadata == {}


@pytest.mark.parametrize(
    "name", sorted(path.parent.name for path in ASSIGNMENTS.glob("*/assignment.yaml"))
)
def test_every_assignment_can_be_exported(tmp_path: Path, name: str) -> None:
    read = assignment.read(ASSIGNMENTS / name)
    cells = {cell.id: cell for cell in nbformat.read(export(read, SEED, tmp_path), 4).cells}
    of = sum(cell.metadata.get("nbgrader", {}).get("points", 0) for cell in cells.values())
    assert of == sum(each.points for each in read.criteria)
    assert not re.search(r"\{code-cell\}|kernelspec", cells["handout"].source)


def test_without_solutions_the_file_can_be_imported_and_with_them_it_runs() -> None:
    text, space, stubbed = with_regions(REFERENCE), {}, {}
    exec(text, space)
    exec(kept(text, "raise NotImplementedError()"), stubbed)
    assert "secret" in space
    assert "secret" not in stubbed
    assert space["twice"](21) == 42
    with pytest.raises(NotImplementedError):
        stubbed["twice"](21)


def test_hidden_cells_are_python_and_their_command_is_ours(tmp_path: Path) -> None:
    cells = exported(tmp_path)
    for name in ("check", "grade", "criterion-1", "criterion-2"):
        compile(cells[name]["source"], name, "exec")
    (line,) = re.findall(
        r"^command = \[sys.executable, (.*)\]$", cells["grade"]["source"], flags=re.MULTILINE
    )
    words = [str(word) for word in re.findall(r'"([^"]*)"', line)]
    assert words[:3] == ["-P", "-m", "collectives"]
    parsed = parser(verbs()).parse_args(words[3:])
    assert parsed.assignment == tmp_path / "ring"
    assert parsed.json
    assert parsed.seed != SEED  # which students know


def test_where_answers_follow_the_seed_the_hidden_tests_have_the_handouts(tmp_path: Path) -> None:
    facts = PARTS["assignment.yaml"] + "answers_follow_seed: true\n"
    export(made(tmp_path, **{"assignment.yaml": facts}), SEED, tmp_path / "course")
    assert f'\\"--seed\\", \\"{SEED}\\"' in (tmp_path / "course/source/ring/ring.ipynb").read_text()


def test_an_instructor_s_files_stay(tmp_path: Path) -> None:
    path = export(made(tmp_path), SEED, tmp_path / "course")
    assert "timeout = 900" in (tmp_path / "course" / "nbgrader_config.py").read_text()
    path.write_text("mine")
    with pytest.raises(
        assignment.AssignmentError, match=r"folder: got .*/source/ring, which exists"
    ):
        export(assignment.read(tmp_path / "ring"), SEED, tmp_path / "course")
    assert path.read_text() == "mine"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "nbgrader_config.py").write_text("# mine\n")
    export(assignment.read(tmp_path / "ring"), SEED, tmp_path / "other")
    assert (tmp_path / "other" / "nbgrader_config.py").read_text() == "# mine\n"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("handout.md", "", "ring has no handout.md"),
        ("reference/ring.py", "# solution\nx = 1\n", "'# solution' and '# end' in pairs"),
        ("public/test_ring.py", "def test_(:", "invalid syntax"),
    ],
)
def test_what_cannot_be_exported_leaves_nothing(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    with pytest.raises((assignment.AssignmentError, SyntaxError), match=message):
        export(made(tmp_path, **{name: text}), SEED, tmp_path / "course")
    assert not [path for path in tmp_path.glob("course/**/*") if path.is_file()]


@pytest.mark.usefixtures("sandbox")
@pytest.mark.extended
@pytest.mark.parametrize("whose", ["reference", "untouched"])
def test_the_notebook_gives_the_points_of_the_grader(tmp_path: Path, whose: str) -> None:
    """Executed as nbgrader does: the instructor's notebook, and what students get, handed back as it is."""
    shutil.copytree(ASSIGNMENTS / "ring", tmp_path / "ring")
    (tmp_path / "ring" / "handout.md").write_text("# Ring\n")
    path = export(assignment.read(tmp_path / "ring"), SEED, tmp_path)
    notebook = nbformat.read(path, 4)
    if whose == "untouched":
        (cell,) = (cell for cell in notebook.cells if cell.id == "file-1")
        cell.source = kept(cell.source, "raise NotImplementedError()")
    nbclient.NotebookClient(
        notebook, timeout=PATIENCE, allow_errors=True, resources={"metadata": {"path": path.parent}}
    ).execute()
    graded = [cell for cell in notebook.cells if cell.id.startswith("criterion-")]
    given = [
        float(out["data"]["text/plain"]) for cell in graded for out in cell.outputs if "data" in out
    ]
    of = [cell.metadata.nbgrader.points for cell in graded]
    assert given == (of if whose == "reference" else [0.0] * len(of))
    failed = {
        cell.id
        for cell in notebook.cells
        for out in cell.get("outputs", [])
        if out.output_type == "error"
    }
    public = {cell.id for cell in notebook.cells if cell.id.startswith("public-")}
    assert failed == (set() if whose == "reference" else public)

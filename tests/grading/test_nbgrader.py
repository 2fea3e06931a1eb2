"""Exported notebooks: valid, with nbgrader's metadata, and nothing of the solution outside the regions it removes."""

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jsonschema import Draft202012Validator

from collectives.grading.nbgrader import export

REFERENCE = '''"""All-reduce."""


def all_reduce(comm, buffer):
    """Replace the buffer by the sum over all ranks."""
    # solution
    for step in range(comm.size - 1):
        secret(step)
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
CRITERIA = [("sum", "Every rank ends with the sum", 8.0), ("steps", 'Steps, with "quotes"\nand lines', 2.5)]
GIVEN: dict[str, Any] = {
    "name": "ring",
    "title": "Ring all-reduce",
    "handout": "Write *it*.",
    "references": {"ring.py": REFERENCE},
    "tests": TESTS,
}
# Version 3 of the metadata's schema, after nbgrader's documentation.
METADATA = {
    "type": "object",
    "properties": {
        "schema_version": {"const": 3},
        "grade": {"type": "boolean"},
        "locked": {"type": "boolean"},
        "solution": {"type": "boolean"},
        "task": {"const": False},
        "grade_id": {"type": "string", "pattern": r"^[a-zA-Z0-9_\-]+$"},
        "points": {"type": "number", "minimum": 0},
    },
    "required": ["schema_version", "grade", "locked", "solution", "grade_id"],
    "if": {"properties": {"grade": {"const": True}}},
    "then": {"required": ["points"]},
    "else": {"not": {"required": ["points"]}},
    "additionalProperties": False,
}


def exported(folder: Path, **changed: Any) -> list[dict[str, Any]]:
    """The cells of an exported notebook, which nbformat accepts."""
    notebook = nbformat.read(export(folder, **GIVEN | changed), 4)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.language == "python"  # nbgrader's stub is the language's
    return list(notebook.cells)


def kept(source: str) -> str:
    """A cell as students get it: nbgrader removes regions between these lines."""
    for region in ("SOLUTION", "HIDDEN TESTS"):
        source = re.sub(rf"^ *### BEGIN {region}\n.*?^ *### END {region}$", "…", source, flags=re.DOTALL | re.MULTILINE)
    return source


def test_every_cell_has_nbgrader_s_metadata(tmp_path: Path) -> None:
    cells = exported(tmp_path, criteria=CRITERIA, assignment=tmp_path / "assignments")
    for cell in cells:
        metadata = cell["metadata"]["nbgrader"]
        Draft202012Validator(METADATA).validate(metadata)
        assert metadata["locked"] != metadata["solution"]
        assert not (metadata["grade"] and metadata["solution"])
        assert cell["cell_type"] == "code" or not metadata["grade"]
        assert metadata["grade"] or "HIDDEN TESTS" not in cell["source"]
        assert metadata["solution"] == ("BEGIN SOLUTION" in cell["source"])
    names = [cell["metadata"]["nbgrader"]["grade_id"] for cell in cells]
    assert len(set(names)) == len(names)
    assert names[:4] == ["handout", "solution-1", "public-tests", "check"]
    assert names[4:] == ["public-test_twice", "public-test_zero", "grade", "criterion-1", "criterion-2"]


@pytest.mark.parametrize("criteria", [[], CRITERIA])
def test_the_points_are_the_grader_s(tmp_path: Path, criteria: list[tuple[str, str, float]]) -> None:
    cells = exported(tmp_path, criteria=criteria, assignment=tmp_path)
    points = [cell["metadata"]["nbgrader"].get("points", 0) for cell in cells]
    assert sum(points) == (sum(of for _, _, of in criteria) if criteria else 2)


def test_students_see_no_solution_and_no_hidden_test(tmp_path: Path) -> None:
    cells = exported(tmp_path, criteria=CRITERIA, assignment=tmp_path / "assignments")
    seen = [kept(cell["source"]) for cell in cells]
    assert seen[0] == "# Ring all-reduce\n\nWrite *it*."
    assert seen[1].startswith('%%writefile ring.py\n"""All-reduce."""')
    assert seen[1].count("…") == 2
    assert not re.search("secret|2 \\* x|assignments|verdict", "\n".join(seen))
    assert seen[2] == f"%%writefile test_public.py\n{TESTS.rstrip()}"


def test_the_reference_is_what_the_solution_cell_writes(tmp_path: Path) -> None:
    source = exported(tmp_path)[1]["source"].partition("\n")[2]
    ours = re.sub("^( *)### BEGIN SOLUTION$", r"\1# solution", source, flags=re.MULTILINE)
    assert re.sub("^( *)### END SOLUTION$", r"\1# end", ours, flags=re.MULTILINE) + "\n" == REFERENCE


def test_hidden_cells_are_python(tmp_path: Path) -> None:
    for cell in exported(tmp_path, criteria=CRITERIA, assignment='/a "b"/c')[3:]:
        compile(cell["source"], "cell", "exec")


def test_the_same_assignment_gives_the_same_bytes(tmp_path: Path) -> None:
    assert export(tmp_path / "a", **GIVEN).read_bytes() == export(tmp_path / "b", **GIVEN).read_bytes()


def test_an_instructor_s_configuration_stays(tmp_path: Path) -> None:
    export(tmp_path, **GIVEN)
    assert "timeout = 900" in (tmp_path / "nbgrader_config.py").read_text()
    (tmp_path / "nbgrader_config.py").write_text("# mine\n")
    export(tmp_path, **GIVEN)
    assert (tmp_path / "nbgrader_config.py").read_text() == "# mine\n"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "../ring"}, "name of the assignment: got '../ring', expected letters"),
        ({"criteria": CRITERIA}, "criteria: got no folder"),
        ({"references": {"ring.py": "x = 1\n"}}, r"ring.py: markers: got \[\], expected '# solution' and '# end'"),
        ({"references": {"ring.py": "# solution\n# solution\n# end\n# end"}}, "in turn"),
        ({"references": {"ring.py": "# solution\nx = 1\n"}}, "in turn"),
        ({"tests": "def helper(): ...\n"}, "public tests: got no function"),
    ],
)
def test_what_cannot_be_exported_is_refused_first(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        export(tmp_path, **GIVEN | change)
    assert not list(tmp_path.iterdir())

"""Starters: what the markers take out of a reference, and what is written."""

from pathlib import Path

import pytest

from collectives_course import assignment
from collectives_course.assignment import AssignmentError, without_solution
from course.wrong import ASSIGNMENTS


def test_several_solutions_at_several_depths() -> None:
    text = (
        "def f():\n    # solution: first\n    return 1\n\n    # a comment\n    # end\n\n\n"
        "class A:\n    def g(self):\n        # solution\n        if self:\n            return 2\n"
        "        # end\n        x = 3\n"
    )
    assert without_solution(text) == (
        'def f():\n    raise NotImplementedError("first")\n\n\n'
        'class A:\n    def g(self):\n        raise NotImplementedError("your turn")\n        x = 3\n'
    )


def test_what_is_in_the_reference_only() -> None:
    text = "a = 1\n\n\n# reference only\ndef helper():\n    return 1\n\n\n# end\n\n\nb = 2\n"
    assert without_solution(text) == "a = 1\n\n\nb = 2\n"


@pytest.mark.parametrize(
    "text",
    [
        "# solution\nx = 1\n",
        "x = 1\n# end\n",
        "# reference only\nx = 1\n",
        "def f():\n    # solution\n    x = 1\n# end\n",
    ],
)
def test_markers_that_are_not_in_pairs(text: str) -> None:
    with pytest.raises(AssignmentError, match="in pairs"):
        without_solution(text)


def test_a_starter_has_the_seeds_variant_and_no_solution(tmp_path: Path) -> None:
    ring = assignment.read(ASSIGNMENTS / "ring")
    assignment.write_starter(ring, 5, tmp_path / "new")
    text = (tmp_path / "new" / "ring.py").read_text()
    assert "sendrecv(" not in text
    assert "NotImplementedError" in text
    found: dict[str, object] = {}
    exec((tmp_path / "new" / "variant.py").read_text(), found)
    assert {name.lower(): found[name] for name in ("DIRECTION", "SHIFT")} == ring.variant(5)
    assert not (tmp_path / "new" / "criteria.py").exists()
    with pytest.raises(AssignmentError, match="not empty"):
        assignment.write_starter(ring, 5, tmp_path / "new")

"""Computed rows: what of the code they follow from, so that no other edit makes them old.

And who reads them.
"""

import shutil
from pathlib import Path

import pytest

from collectives_book import computed, computed_rows
from places import ROOT

NAME = "after-two-trees"
MAKER = "collectives_book/computed_rows.py"


def edit(sources: Path, name: str, old: str, new: str) -> None:
    text = (sources / name).read_text(encoding="utf8")
    assert text.count(old) == 1
    (sources / name).write_text(text.replace(old, new), encoding="utf8")


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the code that simulated rows follow from."""
    names = [
        MAKER,
        *(path.relative_to(computed.SOURCES) for path in computed.files(computed.SIMULATED)),
    ]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(computed.SOURCES / name, tmp_path / name)
    monkeypatch.setattr(computed, "SOURCES", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        # A docstring.
        ("collectives/simulator/scaling.py", '"""Find the best of', '"""Look for the best of'),
        (
            "collectives/simulator/scaling.py",
            "\n    segments, best = case",
            "\n    # why\n    segments, best = case",
        ),
        ("collectives/machines/summit.yaml", "\n# Sources:\n", "\n# Where they come from:\n"),
        (
            MAKER,
            "for n, p in product((64 * MIB, GIB), (8, 16)):",
            "for n, p in product((64 * MIB, GIB), (8,)):",
        ),
    ],
    ids=["docstring", "comment", "a machine's comment", "another name's function"],
)
def test_an_edit_that_changes_no_row_leaves_the_hash(
    sources: Path, name: str, old: str, new: str
) -> None:
    before = computed.code(NAME)
    edit(sources, name, old, new)
    assert computed.code(NAME) == before


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("collectives/simulator/scaling.py", "> 0.99 * best.seconds", "> 0.98 * best.seconds"),
        ("collectives/machines/summit.yaml", "ranks_per_node: 6", "ranks_per_node: 5"),
        (MAKER, '"Summit": (36, ', '"Summit": (35, '),
    ],
    ids=["simulator", "machine", "its function"],
)
def test_an_edit_that_may_change_rows_changes_the_hash(
    sources: Path, name: str, old: str, new: str
) -> None:
    before = computed.code(NAME)
    edit(sources, name, old, new)
    assert computed.code(NAME) != before


def test_every_name_has_rows_that_a_page_reads() -> None:
    text = "\n".join(path.read_text(encoding="utf8") for path in (ROOT / "chapters").glob("*.md"))
    for name in computed.COMPUTED:
        assert len(computed.rows(name))
        assert f'computed.rows("{name}")' in text or f"computed/{name}" in text
    assert {path.stem for path in computed.FOLDER.glob("*.parquet")} == set(computed.COMPUTED)


def test_rows_that_nobody_records() -> None:
    with pytest.raises(
        ValueError, match="unknown computed rows 'after-two-tree': did you mean 'after-two-trees'"
    ):
        computed.rows("after-two-tree")


def test_newer_algorithms_are_on_one_side_only() -> None:
    rows = computed.rows(NAME).groupby("group").algorithm.agg(set)
    assert rows["fastest newer"] <= set(computed_rows.NEWER)
    assert not rows["fastest older"] & set(computed_rows.NEWER)

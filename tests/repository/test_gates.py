"""Each gate of `make check` and `make book` finds a planted fault, by file and line, and no other."""

import json
from pathlib import Path
from typing import Any

import pytest

from places import ROOT, script

GATES = script("gates")
CLEAN = "# A page\n\nThe ring takes $2(p-1)$ steps.\n"


def page(folder: Path, text: str) -> Path:
    path = folder / "chapters" / "page.md"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf8")
    return path


def lines(faults: Any) -> list[int]:
    return [fault.line for fault in faults]


@pytest.mark.parametrize("word", ["TODO", "FIXME", "TBD", "lorem ipsum", "Coming soon"])
def test_a_placeholder(tmp_path: Path, word: str) -> None:
    assert lines(GATES.placeholders(page(tmp_path, f"{CLEAN}\n{word}: more\n"))) == [5]
    assert not lines(GATES.placeholders(page(tmp_path, CLEAN)))


@pytest.mark.parametrize(
    "text",
    [
        "Whoever waits sees nothing.",
        "It takes so many seconds.",
        "For anyone who waits.",
        "p is no power of two",
        "24,576 GPUs made of numbers",
        "It can be had from PyPI.",
        "There are two ways to do it.",
        "The row stands beside it.",
        "The bound lies below.",
        "untried, for want of a GPU",
    ],
)
def test_an_idiom(tmp_path: Path, text: str) -> None:
    (fault,) = GATES.idioms(page(tmp_path, f"{CLEAN}\n{text}\n"))
    assert (fault.path.name, fault.line) == ("page.md", 5)


@pytest.mark.parametrize(
    "text", ["It is no longer slow.", "There is no rank 6.", "It stands for a sum.", "two ways to reduce"]
)
def test_what_looks_like_an_idiom(tmp_path: Path, text: str) -> None:
    assert not lines(GATES.idioms(page(tmp_path, text)))


@pytest.mark.parametrize(
    ("text", "faults"),
    [("less by 5 % there", 1), ("{share:.1f} %", 1), ("less by 5% there", 0), ("{share:.0%}", 0), ("7 % p, 7 % 2", 0)],
)
def test_a_space_in_a_per_cent(tmp_path: Path, text: str, faults: int) -> None:
    assert lines(GATES.per_cents(page(tmp_path, f"{CLEAN}\n{text}\n"))) == [5] * faults


@pytest.mark.parametrize("number", ["87 ms", "3.5 GB/s", "12%", "40 µs", "1,100 MB/s"])
def test_a_typed_number(tmp_path: Path, number: str) -> None:
    (fault,) = GATES.typed(page(tmp_path, f"{CLEAN}\nThe ring took\n{number} here.\n"), tmp_path)
    assert fault.line == 6


@pytest.mark.parametrize(
    "text",
    [
        "---\ntook: 87 ms\n---\n",
        "```{code-cell} ipython3\nx = '87 ms'\n```\n",
        "```text\ntook 87 ms\n```\n",
        "Type `87 ms`, and $87 ms$.\n",
        "It took 87 ms {cite:p}`a`.\n",
        "Links of 5 ms and 25 MB/s.\n",
        "## Exercises\n\nA link has 87 ms.\n",
    ],
)
def test_a_number_that_may_be_typed(tmp_path: Path, text: str) -> None:
    assert not lines(GATES.typed(page(tmp_path, CLEAN + "\n" + text if text[0] != "-" else text), tmp_path))


def test_a_typed_number_in_an_admonition_and_after_exercises(tmp_path: Path) -> None:
    text = f"{CLEAN}\n```{{note}}\n87 ms\n```\n\n## Exercises\n\n88 ms\n\n## Sources\n\n89 ms\n"
    assert lines(GATES.typed(page(tmp_path, text), tmp_path)) == [6, 15]


def test_every_reason_is_still_needed() -> None:
    for name, phrases in GATES.GIVEN.items():
        text = " ".join((ROOT / name).read_text(encoding="utf8").split())
        assert not [phrase for phrase in phrases if phrase not in text], name


@pytest.mark.integration
def test_a_misspelt_word(tmp_path: Path) -> None:
    path = page(tmp_path, f"{CLEAN}\nThey rec{'ie'}ve it.\n")
    assert [(fault.path, fault.line) for fault in GATES.spelling(tmp_path)] == [(path, 5)]
    page(tmp_path, CLEAN)
    assert not list(GATES.spelling(tmp_path))


def record(folder: Path, **settings: Any) -> Path:
    path = folder / "slow-motion" / "overlap.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"settings": [settings]}, indent=1))
    return path


@pytest.fixture
def presets(tmp_path: Path) -> Path:
    (tmp_path / "slow-motion.yaml").write_text("overlap: {ranks: 8, waiting: 2s, gradients: 1K, buckets: [1, 2]}\n")
    return tmp_path


def test_a_stale_result(tmp_path: Path, presets: Path) -> None:
    fresh = {"ranks": 8, "waiting": 2.0, "gradients": 1024, "buckets": [1, 2], "algorithms": ["ring"]}
    assert not list(GATES.stale(record(tmp_path, **fresh), presets))
    for planted in ({"ranks": 4}, {"waiting": "3s"}, {"gradients": 2048}, {"buckets": [1]}, {"algorithms": ["rnig"]}):
        (fault,) = GATES.stale(record(tmp_path, **fresh | planted), presets)
        assert f'"{next(iter(planted))}"' in fault.path.read_text().splitlines()[fault.line - 1] or "rnig" in fault.text


def notebook(path: Path, papermill: dict[str, Any] | None, **cell: Any) -> Path:
    code = {"cell_type": "code", "id": "one", "source": ["1 + 1"], "outputs": [], "execution_count": 1} | cell
    metadata = {} if papermill is None else {"papermill": papermill}
    path.write_text(json.dumps({"cells": [code], "metadata": metadata}, indent=1))
    return path


def test_an_executed_notebook(tmp_path: Path) -> None:
    path, ended = tmp_path / "a.ipynb", {"exception": None, "end_time": "2026-11-22T10:00:00"}
    assert not list(GATES.executed(notebook(path, ended)))
    assert not list(GATES.executed(notebook(path, None)))
    assert not list(GATES.executed(notebook(path, None, execution_count=None, source=[])))
    for papermill, cell in (
        (ended | {"exception": True}, {}),
        (ended | {"end_time": None}, {}),
        ({"exception": None}, {}),
        (ended, {"execution_count": None}),
        (None, {"outputs": [{"output_type": "error"}]}),
    ):
        (fault,) = GATES.executed(notebook(path, papermill, **cell))
        assert fault.line >= 1


def test_a_fault_names_file_and_line() -> None:
    assert str(GATES.Fault(ROOT / "chapters" / "preface.md", 3, "placeholder")) == "chapters/preface.md:3: placeholder"

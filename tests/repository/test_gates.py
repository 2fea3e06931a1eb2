"""Each gate of `make check` and `make book` finds a planted fault, by file and line, and no other."""

import json
from pathlib import Path
from typing import Any

import pytest

from places import script

GATES = script("gates")
CLEAN = "# A page\n\nThe ring takes $2(p-1)$ steps.\n"


def page(folder: Path, text: str) -> Path:
    path = folder / "chapters" / "page.md"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf8")
    return path


def lines(faults: Any) -> list[int]:
    return [fault.line for fault in faults]


def test_a_placeholder_and_a_typed_confidence(tmp_path: Path) -> None:
    assert lines(GATES.placeholders(page(tmp_path, f"{CLEAN}\nTODO: more\n"))) == [5]
    assert lines(GATES.confidences(page(tmp_path, f"{CLEAN}\nwith 95% confidence\n"))) == [5]
    assert not lines(GATES.placeholders(page(tmp_path, CLEAN)))


@pytest.mark.parametrize("number", ["3.5 GB/s", "12%", "1,100 µs"])
def test_a_typed_number(tmp_path: Path, number: str) -> None:
    text = f"{CLEAN}\n```{{note}}\n{number}\n```\n\n## Exercises\n\n88 ms\n\n## Sources\n\n{number}\n"
    assert lines(GATES.typed(page(tmp_path, text), tmp_path)) == [6, 15]


def test_a_typed_number_between_prose_in_fences_and_code(tmp_path: Path) -> None:
    note, code = "```{note}\nA word.\n```\n", "```python\nx = '87 ms'\n```\n"
    inner = f"````{{dropdown}} Answer\n{code}\n12%\n````\n"
    found = lines(GATES.typed(page(tmp_path, f"{CLEAN}\n{note}\n3.5 GB/s\n\n{code}\n{inner}"), tmp_path))
    assert found == [9, 20]


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


HEAD = "```{code-cell} ipython3\n"
SHOWN = f"{HEAD}:tags: [hide-input]\n\nprint(two)\n```\n"
LEFT_OUT = f"{HEAD}:tags: [remove-input]\n\ntwo = 2  # {80 * '-'}\n```\n"


@pytest.mark.integration
def test_a_name_that_no_cell_defines_that_a_reader_can_copy(tmp_path: Path) -> None:
    assert lines(GATES.undefined([page(tmp_path, CLEAN + LEFT_OUT + SHOWN)])) == [12]
    assert not lines(GATES.undefined([page(tmp_path, CLEAN + LEFT_OUT + SHOWN.replace("two", "display"))]))


def test_a_line_of_code_that_a_page_would_cut_off(tmp_path: Path) -> None:
    assert not lines(GATES.wide(page(tmp_path, CLEAN + LEFT_OUT + SHOWN)))
    assert lines(GATES.wide(page(tmp_path, CLEAN + LEFT_OUT.replace("remove", "hide") + SHOWN))) == [7]
    named = LEFT_OUT.replace("[remove-input]\n", f"[hide-cell]\n:mystnb: {{code_prompt_show: {80 * '-'}}}\n")
    assert lines(GATES.wide(page(tmp_path, CLEAN + named + SHOWN))) == [8]


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

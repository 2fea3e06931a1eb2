"""Each gate of `make check` and `make book` finds a planted fault, by file and line, and no other."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from collectives_book import computed
from places import script

GATES = script("gates")
CLEAN = "# A page\n\nThe ring takes $2(p-1)$ steps.\n"
HEAD = "```{code-cell} ipython3\n"
SHOWN = f"{HEAD}:tags: [hide-input]\n\nprint(two)\n```\n"
LEFT_OUT = f"{HEAD}:tags: [remove-input]\n\ntwo = 2  # {30 * 'wide '}\n```\n"


def page(folder: Path, text: str) -> Path:
    path = folder / "page.md"
    path.write_text(text, encoding="utf8")
    return path


def test_a_placeholder(tmp_path: Path) -> None:
    (fault,) = GATES.placeholders(page(tmp_path, f"{CLEAN}\nTODO: more\n"))
    assert fault == f"{tmp_path}/page.md:5: placeholder: got 'TODO'"
    assert not list(GATES.placeholders(page(tmp_path, CLEAN)))


@pytest.mark.integration
def test_a_name_that_no_copied_cell_defines_and_a_line_that_a_page_cuts_off(tmp_path: Path) -> None:
    (undefined,) = GATES.cells([page(tmp_path, CLEAN + LEFT_OUT + SHOWN)])
    assert undefined == f"{tmp_path}/page.md:12: a copied cell: Undefined name `two`"
    (wide,) = GATES.cells([page(tmp_path, CLEAN + LEFT_OUT.replace("remove", "hide") + SHOWN)])
    assert wide.startswith(f"{tmp_path}/page.md:7: a copied cell: Line too long")
    assert not list(
        GATES.cells([page(tmp_path, CLEAN + LEFT_OUT + SHOWN.replace("two", "display"))])
    )


def test_a_stale_result(tmp_path: Path) -> None:
    def faults(**settings: Any) -> list[str]:
        path = tmp_path / "slow-motion" / "overlap.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"settings": [fresh | settings]}))
        return list(GATES.stale(path, tmp_path))

    (tmp_path / "slow-motion.yaml").write_text(
        "overlap: {ranks: 8, waiting: 2s, gradients: 1K, buckets: [1, 2]}\n"
    )
    fresh = {
        "ranks": 8,
        "waiting": 2.0,
        "gradients": 1024,
        "buckets": [1, 2],
        "algorithms": ["ring"],
    }
    assert not faults()
    for planted in (
        {"ranks": 4},
        {"waiting": "3s"},
        {"gradients": 2048},
        {"buckets": [1]},
        {"algorithms": ["rnig"]},
    ):
        assert len(faults(**planted)) == 1, planted


def test_a_computed_result_that_is_older_than_its_code(tmp_path: Path) -> None:
    for path in computed.FOLDER.glob("*.json"):
        shutil.copy(path, tmp_path)
    assert not list(GATES.outdated(tmp_path))
    path = tmp_path / "slow-host.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"code": "of another day"}))
    said = "stale: computed by other code; run: python .ci/record.py computed"
    assert list(GATES.outdated(tmp_path)) == [f"{path}:1: {said} slow-host"]
    (tmp_path / "after-two-trees.json").unlink()
    assert [fault.rpartition(" ")[2] for fault in GATES.outdated(tmp_path)] == [
        "after-two-trees",
        "slow-host",
    ]


def test_an_executed_notebook(tmp_path: Path) -> None:
    def faults(papermill: Any, **cell: Any) -> int:
        code = {
            "cell_type": "code",
            "id": "one",
            "source": ["1 + 1"],
            "outputs": [],
            "execution_count": 1,
        } | cell
        metadata = {"papermill": papermill} if papermill else {}
        (tmp_path / "a.ipynb").write_text(json.dumps({"cells": [code], "metadata": metadata}))
        return len(list(GATES.executed(tmp_path / "a.ipynb")))

    assert (
        faults({"end_time": "2026-11-22T10:00:00"}),
        faults(None, execution_count=None, source=[]),
    ) == (0, 0)
    assert (faults({"end_time": None}), faults(None, execution_count=None)) == (1, 1)
    assert faults(None, outputs=[{"output_type": "error"}]) == 1

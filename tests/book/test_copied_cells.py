"""The cells of a chapter that a reader sees run by themselves, one after the other, in the folder `chapters/`."""

from pathlib import Path

import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook
from test_site import needs_site

from places import ROOT, script

GATES = script("gates")
PAGES = [page for page in sorted((ROOT / "chapters").glob("*.md")) if GATES.shown(page.read_text(encoding="utf8"))]


@pytest.mark.extended
@needs_site  # some pages read what `make book` measured
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_cells_that_are_copied_run_alone(page: Path) -> None:
    """In a new kernel, as a reader starts one; a cell that fails raises its error here."""
    cells = [new_code_cell(code) for _, code in GATES.shown(page.read_text(encoding="utf8"))]
    resources = {"metadata": {"path": str(page.parent)}}
    NotebookClient(new_notebook(cells=cells), timeout=300, kernel_name="python3", resources=resources).execute()

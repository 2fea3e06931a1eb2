"""A page's notebook on any Jupyter, such as Colab, Kaggle or Binder: the first cell installs its commit."""

import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

from nbformat.v4 import new_code_cell

# Without an address a reader fills in what IPython puts into the command below it.
ASK = """\
ADDRESS = ""  # fill in: the address of this book's repository, or the absolute path of a copy of it
if not ADDRESS:
    raise ValueError("ADDRESS: got none, expected that of this book's repository (fill it in, in the first line)")
"""
# Editable, because pages read recorded results beside the library. A running kernel sees that only
# in `sys.path`.
SETUP = """\
!git init -q collectives && cd collectives && git fetch -q --depth 1 {address} {commit} && git checkout -q FETCH_HEAD
%cd -q collectives/{folder}
%pip install -q -e "{root}[{extras}]"
import sys; sys.path.insert(0, "{root}/src")"""
# What a page has in its cells that needs more than the extra [pages].
EXTRAS = {
    "course": r"collectives_course",
    "experiments": r" torch\b|papermill|book\.execute|layers import|collectives\.rounding",
    "synthesis": r"collectives_interop\.synthesis",
}
LEFT_OUT = {"remove-cell", "remove-input", "hide-cell", "hide-input"}
# An address of the branch on which .github/workflows/site.yml puts the notebooks.
GITHUB, COLAB = (
    "https://github.com/",
    "https://colab.research.google.com/github/{}/blob/notebooks/{}",
)


def prepare(notebook: Any, page: str, address: str) -> None:
    """Put the setup before the other cells, and close the code that the page does not show."""
    notebook.cells.insert(0, new_code_cell(setup(notebook, page, address), id="setup"))
    for cell in notebook.cells:
        if LEFT_OUT & {*cell.metadata.get("tags", [])}:
            # JupyterLab's word, and Colab's.
            cell.metadata |= {"jupyter": {"source_hidden": True}, "cellView": "form"}
        # The page shows such a text elsewhere, and the notebook has it there.
        cell.source = cell.source.replace("from myst_nb import glue\n", "def glue(*_, **__): ...\n")


def setup(notebook: Any, page: str, address: str) -> str:
    """Return the code of the first cell."""
    code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    folder = page.rpartition("/")[0]
    root = "/".join(".." for _ in folder.split("/"))
    extras = ",".join(["pages", *(name for name, mark in EXTRAS.items() if re.search(mark, code))])
    first = SETUP.format(
        address=address or "{ADDRESS}", commit=commit(), folder=folder, root=root, extras=extras
    )
    return first if address else ASK + first


@cache
def commit() -> str:
    """Return the commit that this build is made of: a later one may have other functions.

    Without git the newest.
    """
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else "HEAD"


def launch(app: Any, page: str, _template: str, context: dict[str, Any], _doctree: Any) -> None:
    """Offer to open a page's notebook on Colab, which takes notebooks from GitHub alone."""
    address = app.config.html_theme_options["repository_url"].removesuffix(".git")
    groups = [
        each for each in context.get("header_buttons", []) if each["label"] == "download-buttons"
    ]
    if address.startswith(GITHUB) and context.get("ipynb_source") and groups:
        url = COLAB.format(address.removeprefix(GITHUB).strip("/"), f"{page}.ipynb")
        button = {
            "type": "link",
            "url": url,
            "text": "Colab",
            "icon": "fas fa-play",
            "label": "colab-button",
        }
        groups[0]["buttons"].append(button | {"tooltip": "Run on Colab"})

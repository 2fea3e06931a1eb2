"""Each live cell of the site runs after those alone that it needs, of which a page runs the quiet part."""

import json
import re
import sys

import pytest
from test_site import SITE, needs_site

from command import finished
from places import ROOT

CELLS = SITE / "_static" / "python" / "cells"
# A process for each page, forked from one that has imported what takes long. Prints what fails.
RUN = """
import ast, contextlib, io, json, os, sys, traceback
import matplotlib
matplotlib.use("agg")
import matplotlib.pyplot, pandas

def quiet(code):
    tree = ast.parse(code)
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        tree.body.pop()  # nobody sees its value
    return compile(tree, "needed", "exec")

for page, (live, cells) in json.load(sys.stdin).items():
    if child := os.fork():
        os.waitpid(child, 0)
        continue
    for number in live:
        names = {"__name__": "__main__", "display": print}
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                for need in cells[number]["needs"]:
                    exec(quiet(cells[str(need)]["quiet"]), names)
                exec(cells[number]["source"], names)
        except BaseException:
            print(page, number, traceback.format_exc(), flush=True)
    os._exit(0)
"""


@pytest.mark.extended
@needs_site
@pytest.mark.skipif(
    not CELLS.exists(), reason="no Python for browsers in the site: `make book` says why"
)
@pytest.mark.timeout(900)
def test_a_live_cell_needs_what_it_says_and_no_more() -> None:
    command, known = [sys.executable, "-c", RUN], pages()
    assert known
    assert all(live for live, _ in known.values())
    done = finished(command, cwd=ROOT / "chapters", given=json.dumps(known), seconds=800)
    assert (done.returncode, done.stdout) == (0, "")


def pages() -> dict[str, tuple[list[str], object]]:
    """The numbers of each page's live cells, and what the page knows of all its cells."""
    found = {}
    for path in sorted(CELLS.rglob("*.json")):
        page = path.relative_to(CELLS).with_suffix("").as_posix()
        live = re.findall(r'id="cell-(\d+)"', (SITE / f"{page}.html").read_text("utf8"))
        found[page] = live, json.loads(path.read_text("utf8"))
    return found

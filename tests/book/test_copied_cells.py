"""The cells of a chapter that a reader sees run by themselves, one after the other, in the folder `chapters/`."""

import json
import sys

import pytest
from test_site import needs_site

from command import finished
from places import ROOT, script

SHOWN = {
    page.stem: script("gates").shown(page.read_text("utf8"))
    for page in sorted((ROOT / "chapters").glob("*.md"))
}
CELLS = {page: [code for _, code in shown] for page, shown in SHOWN.items() if shown}
# A process for each page, forked from one that has imported what takes long. Prints how those that
# fail have failed.
RUN = """
import json, os, sys, tempfile, traceback
import matplotlib
matplotlib.use("agg")
import matplotlib.pyplot, pandas, collectives_book.figures

for page, cells in json.load(sys.stdin).items():
    with tempfile.TemporaryFile("w+") as said:
        sys.stdout.flush()
        if not (child := os.fork()):
            os.dup2(said.fileno(), 1)
            try:
                names = {"__name__": "__main__", "display": print}
                for cell in cells:
                    exec(cell, names)
                os._exit(0)
            except BaseException:
                traceback.print_exc(file=said)
                said.flush()
            os._exit(1)
        if os.waitpid(child, 0)[1]:
            said.seek(0)
            print(json.dumps({page: said.read()[-4000:]}))
"""


@pytest.mark.extended
@needs_site  # some pages read what `make book` measured
@pytest.mark.timeout(900)
def test_cells_that_are_copied_run_alone() -> None:
    """As a reader's own; what a cell before them has done that is not shown is not there."""
    command = [sys.executable, "-c", RUN]
    done = finished(command, cwd=ROOT / "chapters", given=json.dumps(CELLS), seconds=800)
    assert (done.returncode, done.stdout) == (0, "")

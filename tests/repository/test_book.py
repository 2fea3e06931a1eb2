"""How the book is made: kernels are forks that end with their client.

A page is executed if what it reads changes.
"""

import json
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

from command import finished
from places import ROOT, script

pytestmark = pytest.mark.integration

EXECUTE = """
import nbformat, os, signal, sys
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError
from nbformat.v4 import new_code_cell, new_notebook

def run(*code, **options):
    notebook = new_notebook(cells=[new_code_cell(each) for each in code])
    client = NotebookClient(notebook, kernel_name="python3", startup_timeout=300, **options)
    client.execute(cwd=sys.argv[1])
    return [output.get("text", "") for cell in notebook.cells for output in cell.outputs]

print(run("import os; print(os.getcwd())", "x = 1", "print(x + 1, os.environ['MARK'])"))
print(run("import os; print('x' in globals(), os.getppid())"))
try:
    run("while True: pass", timeout=1, interrupt_on_timeout=True, error_on_timeout=None)
except Exception as error:
    print(type(error).__name__)
try:
    run("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
except DeadKernelError:
    print("died")
"""


@pytest.mark.skipif(
    not hasattr(os, "pidfd_open"),
    reason="kernels are forked on Linux only: this system has no pidfd_open",
)
def test_kernels_are_forks_of_one_process_and_share_nothing(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / ".ci" / "kernels.py", sys.executable, "-c", EXECUTE, tmp_path]
    done = finished([str(word) for word in command], env=os.environ | {"MARK": "here"})
    assert done.returncode == 0, done.stderr
    first, second, interrupted, died = done.stdout.splitlines()
    assert eval(first) == [f"{tmp_path}\n", "2 here\n"]
    known, parent = eval(second)[0].split()
    assert known == "False"
    assert not Path(f"/proc/{parent}").exists(), (
        "the process that forks kernels has outlived the command"
    )
    assert (interrupted, died) == ("CellExecutionError", "died")


@pytest.fixture
def pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, in a tree of two pages: one reads what a build has measured."""
    module = script("pages")
    for name in (
        *module.READ,
        "experiments/results/reference/a.json",
        "experiments/results/quick/b.json",
    ):
        path = tmp_path / name
        folder = path if not path.suffix else path.parent
        folder.mkdir(parents=True, exist_ok=True)
        (path / "file.py" if not path.suffix else path).write_text(name)
    (tmp_path / "chapters" / "plain.md").write_text("no result")
    (tmp_path / "chapters" / "measured.md").write_text("reads results/quick")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "RESULTS", tmp_path / "experiments" / "results")
    return module


def keys(pages: ModuleType) -> list[str]:
    for cached in (pages.around, pages.texts, pages.digest):
        cached.cache_clear()
    return [pages.key(f"chapters/{name}") for name in ("plain", "measured")]


@pytest.mark.parametrize(
    ("changed", "stale"),
    [
        ("src/file.py", [True, True]),
        ("assignments/file.py", [True, True]),
        ("experiments/results/reference/a.json", [True, True]),
        ("experiments/results/quick/b.json", [False, True]),
        ("chapters/plain.md", [False, True]),  # the other page may list it
        ("chapters/_static/custom.css", [False, False]),
        ("src/__pycache__/file.pyc", [False, False]),
    ],
)
def test_a_page_is_executed_again_if_what_it_can_read_has_changed(
    pages: ModuleType, tmp_path: Path, changed: str, stale: list[bool]
) -> None:
    before = keys(pages)
    (tmp_path / changed).parent.mkdir(exist_ok=True)
    (tmp_path / changed).write_text("changed")
    assert [one != other for one, other in zip(before, keys(pages), strict=True)] == stale


FAILING = """
import sys
from pathlib import Path
from nbformat.v4 import new_code_cell, new_notebook
import pages

right, wrong = (new_notebook(cells=[new_code_cell(code)]) for code in ("2 + 2", "raise ValueError('planted')"))
pages.CACHE = Path(sys.argv[1], "cache")
pages.KEYS = pages.CACHE / "keys.json"
wanted = {"first": {"chapters/ring-all-reduce": right}}
wanted["all"] = {"chapters/cost-model": wrong} | wanted["first"]
pages.wanted = lambda which: wanted[which].items()
sys.exit(10 * pages.main("first") + pages.main("all"))
"""


def test_a_page_that_fails_ends_the_build_and_is_not_kept(tmp_path: Path) -> None:
    done = finished([sys.executable, "-c", FAILING, str(tmp_path)], cwd=ROOT / ".ci")
    assert done.returncode == 1, done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("==>")] == [
        f"==> pages: 1 of {pages} to execute, {min(os.cpu_count() or 1, 4)} at a time"
        for pages in (1, 2)
    ]
    assert "ValueError: planted" in done.stderr
    assert done.stderr.endswith("error: chapters/cost-model.md: a cell failed\n")
    assert list(json.loads((tmp_path / "cache" / "keys.json").read_text())) == [
        "chapters/ring-all-reduce"
    ]

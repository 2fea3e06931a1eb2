"""The Makefile: what rebuilds the site, and what a first `make book` says."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from places import ROOT

MAKEFILE = ROOT / "Makefile"
INPUTS = ("_config.yml", "_toc.yml", "requirements.lock", "pyproject.toml")
RUN = """
import nbformat
from nbclient import NotebookClient
cell = nbformat.v4.new_code_cell("import logging, sys; print('of a cell', file=sys.stderr); print(6 * 7)")
notebook = nbformat.v4.new_notebook(cells=[cell])
NotebookClient(notebook, kernel_name="python3").execute()
print([(output.name, output.text) for output in cell.outputs])
"""


def make(folder: Path, *arguments: str) -> str:
    command = ["make", "-s", "-f", str(MAKEFILE), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in INPUTS:
        (tmp_path / name).write_text(name)
    for name in ("chapters", "src", "experiments"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file.py").write_text(name)
    return tmp_path


@pytest.mark.parametrize(
    "name",
    [
        "src/__pycache__/kernel.play-12.py311.nbi",
        "src/__pycache__/kernel.play-12.py311.1.nbc",
        "src/__pycache__/kernel.cpython-311.pyc",
        "experiments/.ipynb_checkpoints/scaling-checkpoint.ipynb",
        "chapters/.DS_Store",
        "tests/test_x.py",
    ],
)
def test_caches_do_not_rebuild_the_site(tree: Path, name: str) -> None:
    before = make(tree, "checksum")
    (tree / name).parent.mkdir(exist_ok=True)
    (tree / name).write_text("x")
    (tree / "src" / "file.py").touch()
    assert make(tree, "checksum") == before


@pytest.mark.parametrize(
    "name", [*INPUTS, "src/file.py", "src/new.py", "chapters/new.md", "experiments/results.parquet"]
)
def test_what_the_site_is_made_of_rebuilds_it(tree: Path, name: str) -> None:
    before = make(tree, "checksum")
    (tree / name).write_text("x")
    assert make(tree, "checksum") != before


def executed(folder: Path, ipython: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"IPYTHONDIR": str(ipython)}
    command = [sys.executable, "-c", RUN]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True, timeout=120)


@pytest.mark.integration
def test_kernels_of_the_pages_do_not_warn_and_cells_still_do(tmp_path: Path) -> None:
    (tmp_path / "profile_default").mkdir()
    shutil.copy(MAKEFILE.parent / ".ci" / "ipython_kernel_config.py", tmp_path / "profile_default")
    quiet = executed(tmp_path, tmp_path)
    assert "WARNING" not in quiet.stderr
    assert "('stderr', 'of a cell\\n')" in quiet.stdout
    assert "without encryption" in executed(tmp_path, tmp_path / "plain").stderr, "the setting is needed no more"


def test_the_book_is_built_with_these_settings() -> None:
    before, build, _ = make(ROOT, "-n", "-o", "experiments", "site").partition("jupyter-book build")
    assert build
    assert "cp .ci/ipython_kernel_config.py _build/.ipython/profile_default" in before
    assert before.splitlines()[-1].strip().startswith('IPYTHONDIR="/')


def test_the_first_pages_come_before_horovod_is_built_and_anything_is_measured() -> None:
    said = make(ROOT, "-n", "-j2", "site")
    order = [".ci/first_pages.py", ".ci/build_horovod.py", "collectives run", "jupyter-book build"]
    assert sorted(order, key=said.index) == order


def built(folder: Path) -> Path:
    """The tree with a site that was made of it."""
    (folder / "_build" / "html").mkdir(parents=True)
    (folder / "_build" / "html" / "index.html").write_text("the book")
    shutil.copy(MAKEFILE, folder)  # for the make that the first one starts
    (folder / "_build" / ".built-from").write_text(make(folder, "checksum"))
    return folder


@pytest.mark.integration  # seconds
def test_nothing_is_made_where_nothing_changed(tree: Path) -> None:
    assert "jupyter-book build" not in make(built(tree), "-n", "book")


@pytest.mark.integration  # seconds
@pytest.mark.parametrize("name", ["src/file.py", "_build/html/index.html", "_build/.built-from"])
def test_what_is_new_or_gone_is_made(tree: Path, name: str) -> None:
    path = built(tree) / name
    path.write_text("x") if name.startswith("src") else path.unlink()
    assert "jupyter-book build" in make(tree, "-n", "book")

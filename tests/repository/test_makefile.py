"""The Makefile rebuilds the site if what it is made of has changed, and only then.

Workflows run what is there.
"""

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from places import ROOT

MAKEFILE = ROOT / "Makefile"
INPUTS = ("_config.yml", "_toc.yml", "requirements.lock", "pyproject.toml")
CACHES = (
    "src/__pycache__/kernel.play-12.py311.1.nbc",
    "experiments/.ipynb_checkpoints/scaling-checkpoint.ipynb",
    "chapters/.DS_Store",
    "tests/test_x.py",
)
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def make(folder: Path, *arguments: str) -> str:
    command = ["make", "-s", "-f", str(MAKEFILE), *arguments]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=True, timeout=60
    ).stdout


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in (
        *INPUTS,
        "requirements-cuda.lock",
        "chapters/file.py",
        "src/file.py",
        "experiments/file.py",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


def test_what_the_site_is_made_of_rebuilds_it_and_caches_do_not(tree: Path) -> None:
    before = make(tree, "checksum")
    for name in CACHES:
        (tree / name).parent.mkdir(exist_ok=True)
        (tree / name).write_text("x")
    (tree / "src" / "file.py").touch()
    assert make(tree, "checksum") == before
    for name in (*INPUTS, "src/file.py", "chapters/new.md", "experiments/results.parquet"):
        (tree / name).write_text("x")
        assert make(tree, "checksum") != before, name
        before = make(tree, "checksum")


@pytest.mark.integration  # seconds
def test_what_is_new_or_gone_is_made_and_nothing_else(tree: Path) -> None:
    """The environment is there; its Python prints what it is asked to run."""
    python, installed = tree / ".venv" / "bin" / "python", tree / ".venv" / ".installed"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho "runs $*"\n')
    python.chmod(0o755)
    (tree / "requirements-cuda.lock").touch()
    installed.touch()
    (tree / "_build" / "html").mkdir(parents=True)
    index, mark = tree / "_build" / "html" / "index.html", tree / "_build" / ".built-from"
    index.write_text("the book")
    mark.write_text(make(tree, "checksum"))
    assert ".ci/book.py" not in make(tree, "book")
    (tree / "src" / "file.py").write_text("x")
    assert ".ci/book.py" in make(tree, "book")
    mark.write_text(make(tree, "checksum"))
    index.unlink()
    assert ".ci/book.py" in make(tree, "book")


def jobs(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load(path.read_text(encoding="utf8"))["jobs"].values())


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_runs_what_is_there_with_the_least_rights(path: Path) -> None:
    text, steps = (
        path.read_text(encoding="utf8"),
        [step for job in jobs(path) for step in job["steps"]],
    )
    commands = [step["run"] for step in steps if "run" in step]
    targets = re.findall(r"^([a-z-]+):", MAKEFILE.read_text(encoding="utf8"), re.MULTILINE)
    assert {name for each in commands for name in re.findall(r"\bmake ([a-z-]+)", each)} <= set(
        targets
    )
    assert [name for name in re.findall(r"\.ci/[\w.]+", text) if not (ROOT / name).is_file()] == []
    # By commit: a tag can be moved to other code.
    used = [step["uses"] for step in steps if "uses" in step]
    assert [each for each in used if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", each)] == []
    assert yaml.safe_load(text)["permissions"] == {"contents": "read"}
    # An expression in a command is pasted into the shell; a variable is not.
    assert [each for each in commands if "${{" in each] == []


def test_checks_run_on_every_python_that_is_promised() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]
    promised = [
        each.rpartition(" ")[2] for each in project["classifiers"] if re.search(r":: 3\.\d+$", each)
    ]
    (checks,) = jobs(ROOT / ".github" / "workflows" / "checks.yml")
    assert checks["strategy"]["matrix"]["python"] == promised

"""Run experiments: notebooks with parameters, executed by papermill, each checked before anything is launched.

A preset is a YAML file beside the notebooks, ``presets/NAME.yaml``, with the parameters of a
notebook under its name. An executed notebook and its rows go to ``results/NAME/``. A notebook is
always executed, which takes seconds where its rows exist: an experiment measures only what is
missing, and rows of other parameters or other code are never overwritten.
"""

import ast
import errno
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from collectives import config
from collectives.bench.sweep import count_failed
from collectives.digests import digest
from collectives.emulator import ClusterError
from collectives.errors import short, unknown
from collectives.processes import descendants, kill_descendants
from collectives.units import format_bytes
from collectives_book import EXPERIMENTS, load
from collectives_book.experiment import Experiment, ExperimentError

# What a folder of results may be called.
NAME = r"\w[\w.=,-]{0,99}"
# The errors of a disk, or of a user's part of it, that is full.
FULL = (errno.ENOSPC, errno.EDQUOT)
LEAST_FREE = 16 << 20  # bytes: an executed notebook, its rows and both again while they are written


class Run(NamedTuple):
    """One notebook to execute: its output, the parameters that replace its own, and the experiment that they make."""

    notebook: Path
    executed: Path
    parameters: dict[str, Any]
    experiment: Experiment

    @property
    def stem(self) -> Path:
        """Return the path of its rows, without a suffix."""
        return self.executed.with_suffix("")


def run(
    notebooks: list[Path],
    preset: str,
    overrides: dict[str, Any] | None = None,
    folder: str | None = None,
    *,
    replace: bool = False,
    check: bool = False,
) -> int:
    """Execute the notebooks with a preset, one by one; returns how many rows failed.

    ``overrides`` replace the preset's parameters, in each notebook those that it has. Results go to
    ``results/FOLDER``, or to ``FOLDER`` if that is a path; by default FOLDER is the preset's name,
    with a hash of the overrides if there are any. ``replace`` removes what other parameters or
    other code left there; ``check`` starts nothing. Raises ExperimentError, in one line, for any
    error, before the first notebook starts if it can be known.
    """
    try:
        runs = planned(notebooks, preset, overrides or {}, folder)
        for each in runs:
            _check(each, replace=replace, queued=check)
            if check:
                print(
                    f"{each.notebook.stem}: ready; its results go to {each.executed.parent}",
                    file=sys.stderr,
                )
        return 0 if check else _run(runs, replace=replace)
    except OSError as error:
        told = f"{error.filename}: {error.strerror}" if error.filename else _line(error)
        kept = "; what was measured is kept, and the same command goes on there" * (
            error.errno in FULL
        )
        raise ExperimentError(told + kept) from None


def _check(run: Run, *, replace: bool, queued: bool) -> None:
    """Raise ExperimentError for other rows in the way, no place for its own, and what this machine lacks for it.

    Where emulated hosts are what it lacks, the notebook says so, and shows no rows.
    """
    there = next(each for each in run.executed.parents if each.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise ExperimentError(f"--output: got {there}, expected a folder that can be written")
    disk = shutil.disk_usage(there)
    if disk.free < LEAST_FREE < disk.total:  # some file systems say that they have no bytes at all
        left = format_bytes(disk.free)
        least = format_bytes(LEAST_FREE)
        raise ExperimentError(
            f"--output: got {there} on a disk with {left} left, expected {least} or more"
        )
    try:
        others = None if replace else run.experiment.others(run.stem)
        if others:
            raise ExperimentError(
                f"{others}; name another folder with --output, or overwrite it with --replace"
            )
        if not run.experiment.is_measured(run.stem):
            run.experiment.check_here(queued=queued)
    except ClusterError:
        return
    except (ImportError, ValueError) as error:
        raise ExperimentError(f"{run.notebook.stem}: {error}") from None


def _run(runs: list[Run], *, replace: bool) -> int:
    for nth, each in enumerate(runs, start=1):
        name = f"[{nth}/{len(runs)}] {each.notebook.stem} ({each.executed.parent.name})"
        print(f"{name}: running", file=sys.stderr, flush=True)
        began = time.monotonic()
        if replace and each.experiment.others(each.stem):
            _remove(each.executed)
        _execute(each)
        rows = each.executed.with_suffix(".parquet")
        print(
            f"{name}: took {time.monotonic() - began:.0f} s",
            file=sys.stderr,
            flush=True,
        )
        print(
            f"{name}: results in {each.executed}{f' and {rows}' * rows.exists()}",
            file=sys.stderr,
            flush=True,
        )
    return sum(count_failed(each.stem) for each in runs)


def _remove(executed: Path) -> None:
    """Remove rows, their record, and calibrated machines."""
    for end in (".parquet", ".json", ".*yaml"):
        for path in executed.parent.glob(f"{executed.stem}{end}"):
            path.unlink()


def planned(
    notebooks: list[Path],
    preset: str,
    overrides: dict[str, Any],
    folder: str | None = None,
) -> list[Run]:
    """Return what `run` would run: the notebooks that have an entry in the preset, with checked parameters.

    Raises ExperimentError, in one line, for a parameter, a preset or a notebook that is not valid.
    """
    presets = {notebook: _preset(notebook, preset) for notebook in notebooks}
    models = {
        notebook: load(notebook.stem) for notebook, given in presets.items() if given is not None
    }
    known: set[str] = set()
    for model in models.values():
        known.update(model.model_fields)
    results = _results(folder or (f"{preset}-{digest(overrides)[:8]}" if overrides else preset))
    runs = []
    for notebook, given in presets.items():
        if given is None:
            print(
                f"{notebook.stem}: preset {preset} has nothing for it",
                file=sys.stderr,
            )
            continue
        # A parameter that only other notebooks have is theirs; one that none has is refused below.
        names = models[notebook].model_fields
        replaced = {
            name: value for name, value in overrides.items() if name in names or name not in known
        }
        parameters = {**given, **replaced, "output": str(results / notebook.stem)}
        try:
            if "output" in given | overrides:
                raise ExperimentError("invalid parameter 'output': expected --output NAME instead")
            experiment = models[notebook].given(_defaults(notebook) | parameters)
        except ExperimentError as error:
            raise ExperimentError(f"{notebook.stem} with preset {preset}: {error}") from None
        runs.append(
            Run(
                notebook,
                notebook.parent / results / notebook.name,
                parameters,
                experiment,
            )
        )
    if not runs:
        raise ExperimentError(f"preset {preset} has nothing for any of these notebooks")
    return runs


def _results(folder: str) -> Path:
    """Return the folder of results: a name is one in results/ beside the notebook.

    With a slash it is a path.
    """
    if "/" in folder:
        return Path(folder).absolute()
    if not re.fullmatch(NAME, folder):
        raise ExperimentError(
            f"--output {short(folder)}: expected a path, or up to 100 letters, digits and . _ - = ,"
        )
    return Path("results", folder)


def _preset(notebook: Path, preset: str) -> dict[str, Any] | None:
    """Return the preset's parameters for this notebook; None where it is not for it."""
    if not notebook.is_file():
        raise ExperimentError(f"notebook: got {notebook}, expected an existing file")
    if notebook.stem not in EXPERIMENTS:
        raise ExperimentError(unknown("experiment", notebook.stem, EXPERIMENTS))
    files = {path.stem: path for path in sorted((notebook.parent / "presets").glob("*.yaml"))}
    if preset not in files:
        raise ExperimentError(unknown("preset", preset, files))
    try:
        presets = config.read_yaml(files[preset]) or {}
    except ValueError as error:
        raise ExperimentError(f"preset {preset}: {error}") from None
    if not isinstance(presets, dict):
        raise ExperimentError(
            f"preset {preset}: got {short(presets)}, expected the experiments' names"
        )
    for name, given in presets.items():
        if name not in EXPERIMENTS:
            raise ExperimentError(
                f"preset {preset}: {unknown('experiment', str(name), EXPERIMENTS)}"
            )
        if not isinstance(given, dict):
            raise ExperimentError(
                f"preset {preset}, {name}: got {short(given)}, expected its parameters"
            )
    return presets.get(notebook.stem)


def _defaults(notebook: Path) -> dict[str, Any]:
    """Return the notebook's own values."""
    import papermill

    try:
        known = papermill.inspect_notebook(str(notebook))
        return {name: ast.literal_eval(parameter["default"]) for name, parameter in known.items()}
    except Exception as error:  # a damaged file fails in many ways
        raise ExperimentError(f"{notebook} cannot be read as a notebook: {_line(error)}") from None


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _execute(run: Run) -> None:
    """Execute into a file beside the final one, and move it there only if every cell ended well."""
    import papermill
    from traitlets.config import Config

    executed = run.executed
    failed = run.executed.with_suffix(".failed.ipynb")
    executed.parent.mkdir(parents=True, exist_ok=True)
    with (
        _connection_file() as connection_file,
        tempfile.TemporaryDirectory(dir=executed.parent, prefix=f".{executed.name}.") as folder,
    ):
        partial = Path(folder) / executed.name
        try:
            papermill.execute_notebook(
                str(run.notebook),
                str(partial),
                run.parameters,
                cwd=str(run.notebook.parent),
                kernel_name="python3",
                # Nearly all the time passes in one cell, which says itself how far it is.
                progress_bar=False,
                stderr_file=sys.stderr,
                extra_arguments=["--IPKernelApp.log_level=ERROR"],
                config=Config(
                    {
                        "KernelManager": {"connection_file": connection_file},
                        # It is killed: asked to end after Ctrl-C, it prints tracebacks.
                        "NotebookClient": {"shutdown_kernel": "immediate"},
                    }
                ),
            )
            partial.replace(executed)
        except papermill.PapermillExecutionError as error:
            partial.replace(failed)
            what = " ".join(f"{error.ename}: {error.evalue}".split())
            raise ExperimentError(f"{run.notebook} failed: {what}; see {failed}") from None
        except OSError as error:  # a full disk names no file
            raise OSError(error.errno, error.strerror, error.filename or str(executed)) from None
        except Exception as error:  # a kernel that does not start, or dies, fails in many ways
            raise ExperimentError(f"{run.notebook} could not be executed: {_line(error)}") from None
    failed.unlink(missing_ok=True)


@contextmanager
def _connection_file() -> Iterator[str]:
    """Yield the path of the kernel's connection file.

    A shell removes it when this process ends, even by a kill.
    """
    folder = tempfile.mkdtemp(prefix="collectives-kernel-")
    others = descendants()
    # `cat` ends when our end of the pipe closes.
    command = ["sh", "-c", 'cat > /dev/null; rm -rf "$1"', "sh", folder]
    try:
        with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True):
            yield f"{folder}/kernel.json"
    except KeyboardInterrupt:
        # A kernel that papermill does not know yet would write the file again.
        kill_descendants(others)
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)

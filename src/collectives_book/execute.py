"""Run experiments: notebooks with parameters, executed by papermill, each checked before anything is launched.

A preset is a YAML file beside the notebooks, ``presets/NAME.yaml``, with the parameters of a notebook under its name.
An executed notebook and its rows go to ``results/NAME/``. A notebook that is up to date is not run again, an
interrupted sweep resumes, and results of other parameters or other code are not overwritten.
"""

import ast
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from collectives import config
from collectives.bench.environment import code, digest, fingerprint, record
from collectives.bench.results import read
from collectives.errors import short, unknown
from collectives.launch.programs import need_launcher
from collectives_book import EXPERIMENTS, ExperimentError, load, validated
from collectives_book.parameters import Parameters

# What a preset and a folder of results may be called.
NAME = r"\w[\w.=,-]{0,99}"
NAMED = "up to 100 letters, digits and . _ - = ,"


class Run(NamedTuple):
    """One notebook to execute: its output, its parameters, and a fingerprint of everything the outcome depends on."""

    notebook: Path
    executed: Path
    parameters: dict[str, Any]
    checked: Parameters
    inputs: str


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

    ``overrides`` replace the preset's parameters, in each notebook those that it has. Results go to ``results/FOLDER``,
    or to ``FOLDER`` if that is a path; by default FOLDER is the preset's name, with a hash of the overrides if there
    are any. ``replace`` removes what other parameters or other code left there; ``check`` starts nothing. Raises
    ExperimentError, in one line, for any error, before the first notebook starts if it can be known.
    """
    overrides = overrides or {}
    if not re.fullmatch(NAME, preset):
        raise ExperimentError(f"--preset {short(preset)}: expected {NAMED}")
    try:
        runs = planned(notebooks, preset, overrides, folder_name(preset, overrides, folder))
        for each in runs:
            _need(each, replace=replace, queued=check)
            if check:
                print(f"{each.notebook.stem}: ready; its results go to {each.executed.parent}", file=sys.stderr)
        return 0 if check else _run(runs, replace=replace)
    except OSError as error:
        raise ExperimentError(f"{error.filename}: {error.strerror}" if error.filename else _line(error)) from None


def _need(run: Run, *, replace: bool, queued: bool) -> None:
    """Raise ExperimentError for other results in the way, no place for its own, and what this machine lacks for it."""
    if not replace and run.executed.exists() and _inputs_of(run.executed) != run.inputs:
        raise ExperimentError(
            f"{run.executed} was made with other parameters or other code; name another folder with --output, or "
            "overwrite it with --replace"
        )
    if _is_current(run):
        return
    there = next(each for each in run.executed.parents if each.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise ExperimentError(f"--output: got {there}, expected a folder that can be written")
    try:
        need_launcher(getattr(run.checked, "where", ""), queued=queued)
        run.checked.need_here()
    except (ImportError, ValueError) as error:
        raise ExperimentError(f"{run.notebook.stem}: {error}") from None


def _run(runs: list[Run], *, replace: bool) -> int:
    for nth, each in enumerate(runs, start=1):
        name = f"[{nth}/{len(runs)}] {each.notebook.stem} ({each.executed.parent.name})"
        if _is_current(each):
            print(f"{name}: up to date", file=sys.stderr)
        else:
            before = _seconds(each.executed)
            print(f"{name}: running{f', {before} last time' if before else ''}", file=sys.stderr, flush=True)
            if replace:
                _make_way(each)
            _execute(each)
            print(f"{name}: took {_seconds(each.executed)}", file=sys.stderr, flush=True)
        rows = each.executed.with_suffix(".parquet")
        print(f"{name}: results in {each.executed}{f' and {rows}' * rows.exists()}", file=sys.stderr, flush=True)
    return sum(_failed_rows(each.executed) for each in runs)


def folder_name(preset: str, overrides: dict[str, Any], name: str | None = None) -> str:
    """The default folder of results: its name depends on the overrides, so that others go elsewhere."""
    return name or (f"{preset}-{digest(overrides)[:8]}" if overrides else preset)


def planned(notebooks: list[Path], preset: str, overrides: dict[str, Any], folder: str) -> list[Run]:
    """What `run` would run: the notebooks that have an entry in the preset, with checked parameters.

    Raises ExperimentError, in one line, for a parameter, a preset or a notebook that is not valid.
    """
    presets = {notebook: _preset(notebook, preset) for notebook in notebooks}
    models = {notebook: load(notebook.stem).Parameters for notebook, given in presets.items() if given is not None}
    known = {name for model in models.values() for name in model.model_fields}
    results, runs = _results(folder), []
    for notebook, given in presets.items():
        if given is None:
            print(f"{notebook.stem}: preset {preset} has nothing for it", file=sys.stderr)
            continue
        # A parameter that only other notebooks have is theirs; one that none has is refused below.
        names = models[notebook].model_fields
        replaced = {name: value for name, value in overrides.items() if name in names or name not in known}
        parameters = {**given, **replaced, "output": str(results / notebook.stem)}
        try:
            if "output" in given | overrides:
                raise ExperimentError("invalid parameter 'output': expected --output NAME instead")
            checked = validated(models[notebook], _defaults(notebook) | parameters)
        except ExperimentError as error:
            raise ExperimentError(f"{notebook.stem} with preset {preset}: {error}") from None
        executed = notebook.parent / results / notebook.name
        runs.append(Run(notebook, executed, parameters, checked, _inputs(notebook, parameters)))
    if not runs:
        raise ExperimentError(f"preset {preset} has nothing for any of these notebooks")
    return runs


def _results(folder: str) -> Path:
    """Return the folder of results: a name is one in results/ beside the notebook; with a slash it is a path."""
    if "/" in folder:
        return Path(folder).absolute()
    if not re.fullmatch(NAME, folder):
        raise ExperimentError(f"--output {short(folder)}: expected a path, or {NAMED}")
    return Path("results", folder)


def _preset(notebook: Path, preset: str) -> dict[str, Any] | None:
    """The preset's parameters for this notebook; None where it is not for it."""
    if not notebook.is_file():
        raise ExperimentError(f"notebook: got {notebook}, expected an existing file")
    if notebook.stem not in EXPERIMENTS:
        raise ExperimentError(unknown("experiment", notebook.stem, EXPERIMENTS))
    path = notebook.parent / "presets" / f"{preset}.yaml"
    if not path.is_file():
        raise ExperimentError(unknown("preset", preset, sorted(path.stem for path in path.parent.glob("*.yaml"))))
    try:
        presets = config.read_yaml(path) or {}
    except ValueError as error:
        raise ExperimentError(f"preset {preset}: {error}") from None
    if not isinstance(presets, dict):
        raise ExperimentError(f"preset {preset}: got {short(presets)}, expected the experiments' names")
    for name, given in presets.items():
        if name not in EXPERIMENTS:
            raise ExperimentError(f"preset {preset}: {unknown('experiment', str(name), EXPERIMENTS)}")
        if not isinstance(given, dict):
            raise ExperimentError(f"preset {preset}, {name}: got {short(given)}, expected its parameters")
    return presets.get(notebook.stem)


def _defaults(notebook: Path) -> dict[str, Any]:
    """The notebook's own values."""
    import papermill

    try:
        known = papermill.inspect_notebook(str(notebook))
        return {name: ast.literal_eval(parameter["default"]) for name, parameter in known.items()}
    except Exception as error:  # a damaged file fails in many ways
        raise ExperimentError(f"{notebook} cannot be read as a notebook: {_line(error)}") from None


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _inputs(notebook: Path, parameters: dict[str, Any]) -> str:
    """A fingerprint of everything the outcome depends on: notebook, parameters, code, versions and machine."""
    machine = {name: value for name, value in record().items() if name != "commit"}
    return fingerprint([parameters, machine, notebook.read_text(encoding="utf8"), code(Path(__file__).parent)])


def _inputs_of(executed: Path) -> str | None:
    """The fingerprint that an executed notebook was made from; None for one that is damaged, or not from here."""
    with suppress(ValueError, KeyError, TypeError, AttributeError):
        return str(_metadata(executed)["collectives"]["inputs"])
    return None


def _seconds(executed: Path) -> str | None:
    """How long an executed notebook took, such as "31 s"; None where there is none."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        return f"{_metadata(executed)['papermill']['duration']:.0f} s"
    return None


def _metadata(executed: Path) -> Any:
    return json.loads(executed.read_text(encoding="utf8"))["metadata"]


def _is_current(run: Run) -> bool:
    exists = run.executed.exists() and run.executed.with_suffix(".parquet").exists()
    return exists and _inputs_of(run.executed) == run.inputs and not _failed_rows(run.executed)


def _make_way(run: Run) -> None:
    """Remove rows of other parameters or other code, which no notebook overwrites."""
    if not run.executed.exists() or _inputs_of(run.executed) != run.inputs:
        found = (run.executed.parent.glob(f"{run.executed.stem}{end}") for end in (".parquet", ".json", ".*yaml"))
        for path in itertools.chain(*found):
            path.unlink()


def _failed_rows(executed: Path) -> int:
    if not executed.with_suffix(".parquet").exists():  # the notebook has said why it could measure nothing
        return 0
    try:
        rows, _ = read(executed.with_suffix(""))
    except ValueError as error:
        raise ExperimentError(f"{error}; name another folder with --output, or remove the file") from None
    return int(rows.error.notna().sum()) if "error" in rows else 0


def _execute(run: Run) -> None:
    """Execute into a file beside the final one, and move it there only if every cell ended well."""
    import papermill

    executed = run.executed
    executed.parent.mkdir(parents=True, exist_ok=True)
    partial = executed.with_name(f".{executed.name}")
    try:
        with _connection_file() as connection_file:
            done = _papermill(run, partial, connection_file)
        done.metadata["collectives"] = {"inputs": run.inputs}
        papermill.iorw.write_ipynb(done, str(partial))
        partial.replace(executed)
    except papermill.PapermillExecutionError as error:
        failed = executed.with_suffix(".failed.ipynb")
        partial.replace(failed)
        what = " ".join(f"{error.ename}: {error.evalue}".split())
        raise ExperimentError(f"{run.notebook} failed: {what}; see {failed}") from None
    except OSError:
        raise
    except Exception as error:  # a kernel that does not start, or dies, fails in many ways
        raise ExperimentError(f"{run.notebook} could not be executed: {_line(error)}") from None
    finally:
        partial.unlink(missing_ok=True)  # half a notebook is useless
    executed.with_suffix(".failed.ipynb").unlink(missing_ok=True)


def _papermill(run: Run, to: Path, connection_file: str) -> Any:
    import papermill
    from traitlets.config import Config

    return papermill.execute_notebook(
        str(run.notebook),
        str(to),
        run.parameters,
        cwd=str(run.notebook.parent),
        kernel_name="python3",
        progress_bar=False,  # nearly all the time passes in one cell, which says itself how far it is
        stderr_file=sys.stderr,
        extra_arguments=["--IPKernelApp.log_level=ERROR"],
        config=Config({"KernelManager": {"connection_file": connection_file}}),
    )


@contextmanager
def _connection_file() -> Iterator[str]:
    """Path of the kernel's connection file. A shell removes it when this process ends, also when it is killed."""
    folder = tempfile.mkdtemp(prefix="collectives-kernel-")
    command = ["sh", "-c", 'cat > /dev/null; rm -rf "$1"', "sh", folder]  # `cat` ends when our end of the pipe closes
    try:
        with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True):
            yield f"{folder}/kernel.json"
    finally:  # a signal ends all child processes, and so the shell
        shutil.rmtree(folder, ignore_errors=True)

"""Experiments: parameters are checked before anything is launched, and nothing is measured twice or half written."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest
import torch
import yaml

from collectives.bench.results import read, write
from collectives.bench.settings import group_by_launch
from collectives.launch import programs
from collectives_book import EXPERIMENTS, execute, load
from collectives_book.execute import planned, run
from collectives_book.experiment import ExperimentError
from collectives_book.sweeps import AllReduceSweep, CollectivesSweep
from command import finished, started
from places import ROOT, comes_true

NOTEBOOKS = sorted((ROOT / "experiments").glob("*.ipynb"))
PRESETS = sorted((ROOT / "experiments" / "presets").glob("*.yaml"))
NOTEBOOK = ROOT / "experiments" / "all-reduce-sweep.ipynb"
GOOD: dict[str, Any] = {
    "ranks": 2,
    "sizes": [4, "1K"],
    "algorithms": ["ring"],
    "backends": ["p2p"],
    "dtype": "float32",
    "in_place": None,
    "repetitions": 3,
    "where": "loopback",
    "share_gpus": False,
    "timeout": "60s",
    "output": "out/rows",
}
EIGHT = GOOD | {
    "sizes": ["1K"],
    "collectives": ["gather", "all_reduce"],
    "backends": ["p2p", "horovod", "mpi"],
}
del EIGHT["algorithms"]


def test_a_notebook_s_variables_are_its_parameters() -> None:
    sweep = AllReduceSweep.of(GOOD | {"_i": "x", "In": ["x"], "read": read})
    (one,) = sweep.measurements()
    assert (one.bytes, one.timeout, one.in_place) == ([4, 1024], 60, None)


# Values that cannot be right, for any parameter.
HOSTILE = [float("nan"), "9" * 5000, [[[[1]]]], {"a": 1}, None, -1, [["x"] * 99] * 99]
PLACES = {"where": "place"}  # what the message may name instead of the parameter

# Parameters, what of them the message names, and what it says is allowed instead.
WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"rnaks": 4}, "'rnaks'", "'ranks'"),
    ({"ranks": "4"}, "'4'", "integer"),
    ({"ranks": 2.0}, "2.0", "integer"),
    ({"ranks": True}, "True", "integer"),
    ({"ranks": 10**12}, "ranks", "1048576"),
    ({"sizes": "64K"}, "'64K'", "list"),
    ({"sizes": []}, "sizes", "at least 1"),
    ({"sizes": ["64Q"]}, "'64Q'", "64K"),
    ({"sizes": [6]}, "6 bytes", "4 bytes"),
    ({"sizes": [1024, "1K"]}, "1024", "twice"),
    ({"sizes": [0]}, "got 0", "1"),
    ({"dtype": "float8"}, "'float8'", "float16"),
    ({"in_place": "yes"}, "'yes'", "boolean"),
    ({"algorithms": ["rnig"]}, "'rnig'", "ring"),
    ({"backends": ["nccl2"]}, "'nccl2'", "nccl"),
    ({"timeout": 60}, "timeout", "unit"),
    ({"where": "moon"}, "'moon'", "loopback"),
    ({"where": "cluster:5ms,0MB/s"}, "'0MB/s'", "1B/s to 1TB/s"),
    ({"where": "cluster:5ms,25MB/s", "ranks": 255}, "255", "1 to 254"),
]

# The same of a sweep over several collectives.
WRONG_OF_MANY: list[tuple[dict[str, Any], str, str]] = [
    ({"collectives": ["allreduce"]}, "'allreduce'", "all_reduce"),
    ({"collectives": ["gather"], "backends": ["horovod"]}, "'gather'", "horovod has"),
    ({"collectives": ["all_to_all"], "in_place": True}, "all_to_all", "out of place"),
    ({"backends": ["p2p", "nccl2"]}, "'nccl2'", "nccl"),
    ({"sizes": [4]}, "4 bytes", "an element or more for each rank"),
    ({"sizes": [1024, 1028]}, "1024 bytes", "distinct sizes"),
    ({"backends": ["mpi:ring"]}, "'mpi:ring'", "all_reduce only"),
]


def refused(sweep: type[AllReduceSweep] | type[CollectivesSweep], given: dict[str, Any]) -> str:
    """The line with which parameters are refused."""
    with pytest.raises(ExperimentError) as caught:
        sweep.given(given)
    (line,) = str(caught.value).splitlines()
    assert len(line) < 600
    return line


@pytest.mark.parametrize(("given", "wrong", "allowed"), WRONG)
def test_wrong_parameters_are_named_with_what_is_allowed(
    given: dict[str, Any], wrong: str, allowed: str
) -> None:
    line = refused(AllReduceSweep, GOOD | given)
    assert wrong in line
    assert allowed in line


@pytest.mark.parametrize("value", HOSTILE, ids=lambda value: repr(value)[:20])
@pytest.mark.parametrize("name", ["ranks", "sizes", "where", "algorithms"])
def test_a_hostile_value_is_one_line_that_names_its_parameter(name: str, value: object) -> None:
    line = refused(AllReduceSweep, GOOD | {name: value})
    assert name in line or PLACES.get(name, name) in line


@pytest.mark.parametrize(("given", "wrong", "allowed"), WRONG_OF_MANY)
def test_wrong_parameters_of_many_collectives_are_named_with_what_is_allowed(
    given: dict[str, Any], wrong: str, allowed: str
) -> None:
    line = refused(CollectivesSweep, EIGHT | given)
    assert wrong in line
    assert allowed in line


def test_each_collective_is_measured_by_the_back_ends_that_have_it() -> None:
    wanted = CollectivesSweep.given(EIGHT).measurements()
    assert [(each.collective, each.backends) for each in wanted] == [
        ("gather", ["p2p", "mpi"]),
        ("all_reduce", ["p2p", "horovod", "mpi"]),
    ]
    halves = CollectivesSweep.given(EIGHT | {"dtype": "float16", "in_place": True}).measurements()
    assert [each.backends for each in halves] == [["p2p"], ["p2p", "horovod"]]
    assert [
        [(one.where, one.collective) for one in alike] for alike in group_by_launch(wanted)
    ] == [
        [("loopback", "gather"), ("loopback", "all_reduce")],
        [("mpirun", "gather"), ("mpirun", "all_reduce")],
        [("horovodrun", "all_reduce")],
    ]


def test_an_absent_back_end_is_left_out_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs.importlib.util, "find_spec", lambda _: None)
    asked = CollectivesSweep.given(EIGHT)
    assert [each.backends for each in asked.here()] == [["p2p", "mpi"]] * 2
    assert [found.absent for found in asked.presence()] == [None, programs.NO_HOROVODRUN, None]
    alone = CollectivesSweep.given(EIGHT | {"backends": ["horovod"], "collectives": ["all_reduce"]})
    assert str(alone.lacking()).startswith("horovod is absent: Horovod is not installed")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An experiments folder of its own, with a preset that is done in seconds."""
    (tmp_path / "presets").mkdir()
    (tmp_path / "presets" / "tiny.yaml").write_text(
        "all-reduce-sweep: {ranks: 2, sizes: [4, 1K], algorithms: [ring], repetitions: 3}\n"
    )
    shutil.copy(NOTEBOOK, tmp_path)
    return tmp_path


def change(folder: Path, nth: int, source: str) -> None:
    """Write another source into a cell of the notebook."""
    notebook = nbformat.read(folder / NOTEBOOK.name, 4)
    notebook.cells[nth].source = source
    nbformat.write(notebook, folder / NOTEBOOK.name)


def assert_refused(
    message: str, there: Path, preset: str = "tiny", *arguments: Any, **options: Any
) -> None:
    with pytest.raises(ExperimentError, match=message) as caught:
        run([there / NOTEBOOK.name], preset, *arguments, **options)
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 600
    assert not (there / "results").is_dir(), "nothing was started"


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_an_experiment_measures_once_and_again_when_its_preset_changes(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    notebook, results = folder / NOTEBOOK.name, folder / "results" / "tiny"
    run([notebook], "tiny")
    rows, record = read(results / "all-reduce-sweep")
    assert list(zip(rows.backend, rows.bytes, strict=True)) == [
        ("p2p", 4),
        ("gloo", 4),
        ("p2p", 1024),
        ("gloo", 1024),
    ]
    assert rows.wrong.sum() == 0
    assert len(record["environment"]) == 2
    assert nbformat.read(results / NOTEBOOK.name, 4).metadata.papermill.exception is None
    assert not list(results.glob(".*"))
    said = capsys.readouterr().err
    assert "1 KiB measured" in said
    assert said.endswith(
        f"results in {results / NOTEBOOK.name} and {results / 'all-reduce-sweep.parquet'}\n"
    )

    change(folder, 7, "print('another figure')")
    run([notebook], "tiny", replace=True)
    assert "measured" not in capsys.readouterr().err, (
        "a notebook is executed again, its rows are those that exist"
    )
    assert "another figure" in (results / NOTEBOOK.name).read_text()
    assert read(results / "all-reduce-sweep")[0].equals(rows)

    (folder / "presets" / "tiny.yaml").write_text(
        "all-reduce-sweep: {ranks: 1, sizes: [4], algorithms: [ring], repetitions: 1}\n"
    )
    with pytest.raises(
        ExperimentError,
        match=r"was made with other parameters or other code; .*--output.*--replace",
    ):
        run([notebook], "tiny")
    assert read(results / "all-reduce-sweep")[0].ranks.tolist() == [2] * 4
    run([notebook], "tiny", replace=True)
    assert read(results / "all-reduce-sweep")[0].ranks.tolist() == [1, 1]


@pytest.mark.integration
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["-p", "rnaks", "2"], "did you mean 'ranks'"),
        (["-p", "ranks", "two"], "should be a valid integer, got 'two'"),
    ],
)
def test_plain_papermill_refuses_too(folder: Path, wrong: list[str], message: str) -> None:
    """papermill itself only warns of an unknown name.

    The notebook stops before anything is launched.
    """
    command = [
        sys.executable,
        "-m",
        "papermill",
        NOTEBOOK.name,
        "out.ipynb",
        *wrong,
        "-p",
        "output",
        "results/x/rows",
    ]
    done = finished(command, cwd=folder)
    assert done.returncode == 1
    assert message in done.stderr
    assert not (folder / "results").exists()


TEXTS = [
    (
        b"all-reduce-sweep: {rnaks: 2}",
        "with preset tiny: unknown field 'rnaks': did you mean 'ranks'",
    ),
    (
        b"all-reduce-swep: {ranks: 2}",
        "preset tiny: unknown experiment 'all-reduce-swep': did you mean",
    ),
    (b"", "preset tiny has nothing for any of these notebooks"),
    (b"all-reduce-sweep: {ranks: [}", r"tiny\.yaml: invalid YAML: line 1"),
    (b"\xff", r"tiny\.yaml: invalid YAML: 'utf-8' codec"),
    (b"[all-reduce-sweep]", r"got \['all-reduce-sweep'\], expected the experiments' names"),
    (b"3: {ranks: 2}", "unknown experiment '3'"),
    (b"all-reduce-sweep: 3", "all-reduce-sweep: got 3, expected its parameters"),
    (b"all-reduce-sweep: {3: 2}", "unknown field '3'"),
    (b"all-reduce-sweep: {where: 2020-01-01}", "unknown where '2020-01-01'"),
    (b"all-reduce-sweep: {__name__: x}", "unknown field '__name__'"),
    (b"all-reduce-sweep: {'ranks;x': 2}", "unknown field 'ranks;x'"),
    (
        b"all-reduce-sweep: {output: ../../x}",
        "invalid parameter 'output': expected --output NAME instead",
    ),
    (
        b"a: &a [x]\nb: *a",
        r"tiny\.yaml: invalid YAML: line 2, column 4: got an alias, expected the value itself",
    ),
    (b"#" * 100_000, r"tiny\.yaml: got more than 64 KiB"),
]
NAMES = ["tinny", "../presets/tiny", "..", "/etc/passwd", "", "x" * 101, "tiny\n", ".hidden"]
FOLDERS = ["..", "x" * 101, "a b", "tiny\n", ".hidden"]
NO_NOTEBOOKS = [
    b"",
    *b'{ [] {} null {"cells":3} \xff {"cells":[],"metadata":{},"nbformat":99}'.split(),
]


@pytest.mark.parametrize(
    ("what", "value", "message"),
    [
        *(("presets/tiny.yaml", *each) for each in TEXTS),
        *((NOTEBOOK.name, text, "all-reduce-sweep") for text in NO_NOTEBOOKS),
        *(("preset", name, "unknown preset") for name in NAMES),
        *(("output", name, "--output .*expected a path, or up to 100") for name in FOLDERS),
    ],
)
def test_what_cannot_be_run_is_one_line(folder: Path, what: str, value: Any, message: str) -> None:
    if isinstance(value, bytes):
        (folder / what).write_bytes(value)
    named = {"preset": value} if what == "preset" else {"folder": value} if what == "output" else {}
    assert_refused(message, folder, **named)


def test_a_notebook_that_is_absent_or_has_a_default_that_is_no_value_is_one_line(
    folder: Path,
) -> None:
    change(folder, 1, "ranks = int(__import__('os').environ['RANKS'])")
    assert_refused("all-reduce-sweep.ipynb cannot be read as a notebook", folder)
    (folder / NOTEBOOK.name).unlink()
    assert_refused(r"notebook: got .*all-reduce-sweep\.ipynb, expected an existing file", folder)


@pytest.mark.integration  # seconds
def test_results_go_to_any_path(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the clone is read-only: absolute, or from the current folder.

    Other values lie elsewhere.
    """
    monkeypatch.chdir(tmp_path)
    notebook = folder / NOTEBOOK.name
    for given in (str(tmp_path / "elsewhere" / "mine"), "./elsewhere/mine"):
        (planned_run,) = planned([notebook], "tiny", {}, given)
        assert planned_run.executed == tmp_path / "elsewhere" / "mine" / NOTEBOOK.name
        assert planned_run.experiment.output == str(
            tmp_path / "elsewhere" / "mine" / "all-reduce-sweep"
        )
    cases: list[tuple[dict[str, Any], str | None]] = [
        ({}, None),
        ({"ranks": 3}, None),
        ({"ranks": 5}, None),
    ]
    names = {
        planned([notebook], "tiny", *case)[0].executed.parent.name
        for case in [*cases, ({"ranks": 5}, "mine")]
    }
    assert len(names) == 4
    assert {"tiny", "mine"} < names
    assert_refused("--output: got /etc/passwd, expected a folder", folder, folder="/etc/passwd/x")
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert_refused(
        f"--output: got {tmp_path}, expected a folder", folder, folder=str(tmp_path / "elsewhere")
    )


ABSENT = {
    "a back end": ({"backends": ["p2p", "nccl"]}, "all-reduce-sweep: nccl is absent: torch"),
    "mpirun": ({"where": "mpirun"}, "all-reduce-sweep: mpirun is not installed"),
    "srun": ({"where": "slurm"}, "all-reduce-sweep: srun is not installed"),
    "torchrun": ({"where": "torchrun"}, "all-reduce-sweep: not within torchrun"),
}


@pytest.mark.parametrize("name", ABSENT)
def test_what_is_absent_is_said_before_a_kernel_starts(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs.shutil, "which", lambda *_, **__: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    overrides, message = ABSENT[name]
    assert_refused(message, folder, "tiny", overrides)


def test_a_check_starts_nothing_and_leaves_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As on a login node, which needs neither a job nor GPUs."""
    monkeypatch.setattr(execute, "_execute", lambda _: pytest.fail("a notebook was started"))
    monkeypatch.setattr(programs.shutil, "which", lambda *_, **__: "/usr/bin/srun")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    on_gpus = {"where": "slurm", "backends": ["nccl"], "ranks": 64}
    before = sorted(folder.rglob("*"))
    assert (
        run([folder / NOTEBOOK.name], "tiny", on_gpus, str(folder / "not" / "yet"), check=True) == 0
    )
    assert (
        f"all-reduce-sweep: ready; its results go to {folder / 'not' / 'yet'}"
        in capsys.readouterr().err
    )
    assert sorted(folder.rglob("*")) == before
    assert_refused("all-reduce-sweep: not within a Slurm job", folder, "tiny", on_gpus)
    assert_refused("unknown field 'rnaks'", folder, "tiny", {"rnaks": 2}, check=True)


@pytest.mark.integration  # seconds
def test_a_login_node_can_check_every_notebook(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(programs.shutil, "which", lambda *_, **__: "/usr/bin/srun")
    assert run(NOTEBOOKS, "slurm-gpu", folder=f"{tmp_path}/x", check=True) == 0
    assert not (tmp_path / "x").exists()


@pytest.mark.integration  # seconds
def test_a_parameter_is_for_the_notebooks_that_have_it() -> None:
    some = [
        ROOT / "experiments" / f"{name}.ipynb" for name in ("all-reduce-sweep", "massive-scale")
    ]
    sweep, simulator = planned(some, "quick", {"sizes": [4]})
    assert sweep.parameters["sizes"] == [4]
    assert "sizes" not in simulator.parameters
    with pytest.raises(ExperimentError, match="unknown field 'rnaks'"):
        planned(some, "quick", {"rnaks": [4]})


@pytest.mark.integration  # seconds
@pytest.mark.parametrize("preset", PRESETS, ids=lambda path: path.stem)
def test_a_preset_fits_every_notebook_it_is_for(preset: Path) -> None:
    fitting = {each.notebook.stem for each in planned(NOTEBOOKS, preset.stem, {})}
    assert fitting == set(
        EXPERIMENTS if preset.stem == "quick" else yaml.safe_load(preset.read_text())
    )


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_kept_without_outputs_and_know_their_parameters(path: Path) -> None:
    notebook = nbformat.read(path, 4)
    assert all(
        not cell.get("outputs") and not cell.get("execution_count") for cell in notebook.cells
    )
    (parameters,) = (
        cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])
    )
    namespace: dict[str, Any] = {}
    exec(parameters.source, namespace)
    assert load(path.stem).of(namespace)


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_a_failing_notebook_keeps_its_output_and_no_result(folder: Path) -> None:
    change(folder, 5, "raise ValueError('planted')")
    with pytest.raises(ExperimentError, match=r"failed: ValueError: planted; see .*failed\.ipynb"):
        run([folder / NOTEBOOK.name], "tiny")
    left = sorted(path.name for path in (folder / "results" / "tiny").iterdir())
    assert left == ["all-reduce-sweep.failed.ipynb"]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (KeyboardInterrupt("Ctrl-C"), "Ctrl-C"),
        (
            RuntimeError("Kernel died before\nreplying"),
            "could not be executed: RuntimeError: Kernel died before replying",
        ),
        (
            OSError(errno.ENOSPC, "No space left on device"),
            r"tiny/all-reduce-sweep.ipynb: No space left on device; what was measured is kept",
        ),
    ],
)
def test_a_kernel_that_ends_leaves_nothing(
    folder: Path, how: BaseException, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import papermill

    def dead(_: str, output: str, *__: object, **___: object) -> None:
        Path(output).write_text("half a notebook")
        raise how

    monkeypatch.setattr(papermill, "execute_notebook", dead)
    with pytest.raises((KeyboardInterrupt, ExperimentError), match=message):
        run([folder / NOTEBOOK.name], "tiny")
    assert list((folder / "results" / "tiny").iterdir()) == []


def test_what_is_in_the_way_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "results").write_text("in the way")
    assert_refused("--output: got .*results, expected a folder that can be written", folder)
    (folder / "results").unlink()
    little = SimpleNamespace(total=1 << 30, free=1 << 20)
    monkeypatch.setattr(execute.shutil, "disk_usage", lambda _: little)
    assert_refused("--output: got .* on a disk with 1 MiB left, expected 16 MiB or more", folder)
    monkeypatch.undo()
    damaged = folder / "damaged"
    damaged.mkdir()
    (damaged / "all-reduce-sweep.parquet").write_text("no parquet")
    (damaged / "all-reduce-sweep.json").write_text("{}")
    said = "all-reduce-sweep.parquet and .json cannot be read: .*--output.*--replace"
    assert_refused(said, folder, folder=str(damaged))


def test_results_are_written_whole_or_not_at_all(tmp_path: Path) -> None:
    write(tmp_path / "rows", [{"a": 1, "samples": [1.0, 2.0]}], {"why": "because"})
    with pytest.raises(TypeError):
        write(tmp_path / "rows", [{"a": 2}], {"why": object()})
    with pytest.raises(ValueError, match="no rows"):
        write(tmp_path / "rows", [], {})
    rows, record = read(tmp_path / "rows")
    assert rows.a.tolist() == [1]
    assert record == {"version": 1, "why": "because", "date": record["date"]}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.json", "rows.parquet"]
    assert json.loads((tmp_path / "rows.json").read_text()) == record


@pytest.mark.integration
def test_a_killed_run_leaves_no_connection_file(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    temporary = tmp_path_factory.mktemp("tmp")
    change(folder, 5, "import sys, time; print('here', file=sys.stderr); time.sleep(60)")
    path = str(folder / NOTEBOOK.name)
    code = f"from pathlib import Path; from collectives_book.execute import run; run([Path({path!r})], 'tiny')"
    environment = os.environ | {"TMPDIR": str(temporary), "PYTHONPATH": os.pathsep.join(sys.path)}
    with started(
        [sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, env=environment
    ) as running:
        assert running.stderr is not None
        assert any("here" in line for line in running.stderr)
        assert list(temporary.rglob("kernel.json"))
        running.kill()
        assert comes_true(lambda: not list(temporary.rglob("kernel.json")))

"""Experiments: parameters are checked before anything is launched, and nothing is run twice or half written."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from datetime import date
from pathlib import Path
from typing import Any

import nbformat
import pytest
import torch
import yaml

from collectives.bench import launches
from collectives.bench.results import read, write
from collectives.launch import programs
from collectives_book import EXPERIMENTS, ExperimentError, checked, execute, load
from collectives_book.all_reduce_sweep.experiment import Parameters as Sweep
from collectives_book.collectives_sweep.experiment import Parameters as CollectivesSweep
from collectives_book.execute import folder_name, planned, run
from command import started
from places import ROOT

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
    "timeout": "60s",
    "output": "out/rows",
}


def test_good_parameters_pass() -> None:
    sweep = checked(Sweep, GOOD | {"_i": "x", "In": ["x"], "checked": checked})
    assert sweep.settings()[0].bytes == [4, 1024]
    assert sweep.settings()[0].timeout == 60
    (other,) = checked(Sweep, GOOD | {"dtype": "bfloat16", "in_place": False}).settings()
    assert (other.dtype, other.in_place, sweep.settings()[0].in_place) == ("bfloat16", False, None)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rnaks": 4}, "unknown parameter 'rnaks': did you mean 'ranks'? Known are output, ranks, sizes"),
        ({"ranks": "4"}, "ranks: Input should be a valid integer, got '4'"),
        ({"ranks": 2.0}, "ranks: Input should be a valid integer, got 2.0"),
        ({"ranks": True}, "ranks: Input should be a valid integer, got True"),
        ({"sizes": "64K"}, "sizes: Input should be a valid list, got '64K'"),
        ({"sizes": []}, "sizes: List should have at least 1 item"),
        ({"sizes": ["64Q"]}, "invalid size '64Q'"),
        ({"sizes": [6]}, "6 bytes are no whole number of float32"),
        ({"dtype": "float8"}, "unknown dtype 'float8'; known are float16"),
        ({"dtype": "int64"}, "4 bytes are no whole number of int64 (8 bytes each)"),
        ({"in_place": "yes"}, "in_place: Input should be a valid boolean, got 'yes'"),
        ({"algorithms": ["rnig"]}, "no algorithm 'rnig' for 'all_reduce'"),
        ({"backends": ["nccl2"]}, "unknown backend 'nccl2'"),
        ({"where": "moon"}, "unknown where 'moon'; known are loopback, "),
        ({"repetitions": 0}, "repetitions: Input should be greater than or equal to 1, got 0"),
        ({"repetitions": 10**12}, "repetitions: Input should be less than or equal to 10000"),
        ({"ranks": 10**12}, "ranks: Input should be less than or equal to 1048576"),
        ({"timeout": 60}, "timeout: expected a number with its unit"),
        ({"timeout": "0s"}, "timeout: Input should be greater than 0"),
        ({"timeout": "8000000s"}, "timeout: Input should be less than or equal to 604800"),
        ({"sizes": [1024, "1K"]}, "sizes: 1024 is given twice"),
        ({"sizes": [0]}, "sizes.0: Input should be greater than or equal to 1, got 0"),
        ({"sizes": ["9" * 30 + "G"]}, "is too large; expected less than 2^63 bytes"),
        ({"algorithms": ["ring", "ring"]}, "algorithms: 'ring' is given twice"),
        ({"backends": ["p2p", "p2p"]}, "backends: 'p2p' is given twice"),
        ({"where": "2020-01-01"}, "unknown where '2020-01-01'; known are loopback"),
        ({"where": ""}, "unknown where ''"),
        ({"where": "cluster:5ms,0MB/s"}, "rate out of range: got '0MB/s', expected 1B/s to 1TB/s"),
        ({"where": "cluster:5ms,25MB/s", "ranks": 255}, "invalid number of hosts: got 255, expected 1 to 254"),
    ],
)
def test_wrong_parameters_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ExperimentError) as caught:
        checked(Sweep, GOOD | given)
    assert message in str(caught.value)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An experiments folder of its own, with a preset that is done in seconds."""
    (tmp_path / "presets").mkdir()
    (tmp_path / "presets" / "tiny.yaml").write_text(
        "all-reduce-sweep: {ranks: 2, sizes: [4, 1K], algorithms: [ring], repetitions: 3}\n"
    )
    shutil.copy(NOTEBOOK, tmp_path)
    return tmp_path


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_an_experiment_runs_once_and_again_when_its_preset_changes(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    notebook, results = folder / NOTEBOOK.name, folder / "results" / "tiny"
    run([notebook], "tiny")
    rows, record = read(results / "all-reduce-sweep")
    assert list(zip(rows.backend, rows.algorithm, rows.bytes, strict=True)) == [
        ("p2p", "ring", 4),
        ("gloo", "default", 4),
        ("p2p", "ring", 1024),
        ("gloo", "default", 1024),
    ]
    assert rows.wrong.sum() == 0
    assert [len(samples) for samples in rows.samples] == [3] * 4
    assert len(record["environment"]) == 2
    assert record["settings"][0]["repetitions"] == 3
    executed = nbformat.read(results / NOTEBOOK.name, 4)
    assert executed.metadata.papermill.exception is None
    assert not list(results.glob(".*"))

    where = f"results in {results / NOTEBOOK.name} and {results / 'all-reduce-sweep.parquet'}\n"
    said = capsys.readouterr().err
    assert re.search(r"\[1/1\].*: running\n(.*\n)*\[1/1\].*: took \d+ s\n", said)
    assert said.endswith(where)
    run([notebook], "tiny")
    said = capsys.readouterr().err
    assert "up to date" in said
    assert said.endswith(where)
    (folder / "presets" / "tiny.yaml").write_text(
        "all-reduce-sweep: {ranks: 1, sizes: [4], algorithms: [ring], repetitions: 1}\n"
    )
    with pytest.raises(ExperimentError, match="was made with other parameters or other code; name another folder"):
        run([notebook], "tiny")
    assert read(results / "all-reduce-sweep")[0].ranks.tolist() == [2] * 4
    run([notebook], "tiny", replace=True)
    assert read(results / "all-reduce-sweep")[0].ranks.tolist() == [1, 1]
    assert re.search(r": running, \d+ s last time\n", capsys.readouterr().err)


def test_a_preset_is_checked_before_anything_runs(folder: Path) -> None:
    notebook = folder / NOTEBOOK.name
    with pytest.raises(ExperimentError, match="unknown preset 'tinny': did you mean 'tiny'"):
        run([notebook], "tinny")
    (folder / "presets" / "tiny.yaml").write_text("all-reduce-sweep: {rnaks: 2}\n")
    with pytest.raises(ExperimentError, match="with preset tiny: unknown parameter 'rnaks': did you mean 'ranks'"):
        run([notebook], "tiny")
    (folder / "presets" / "tiny.yaml").write_text("all-reduce-swep: {ranks: 2}\n")
    with pytest.raises(ExperimentError, match="preset tiny: unknown experiment 'all-reduce-swep': did you mean"):
        run([notebook], "tiny")
    (folder / "presets" / "tiny.yaml").write_text("")
    with pytest.raises(ExperimentError, match="preset tiny has nothing for any of these notebooks"):
        run([notebook], "tiny")
    with pytest.raises(ExperimentError, match=r"notebook: got .*none\.ipynb, expected an existing file"):
        run([folder / "none.ipynb"], "tiny")
    assert not (folder / "results").exists()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [(["-p", "rnaks", "2"], "did you mean 'ranks'"), (["-p", "ranks", "two"], "should be a valid integer, got 'two'")],
)
def test_values_in_place_of_the_presets_are_checked_too(folder: Path, wrong: list[str], message: str) -> None:
    _, name, value = wrong
    with pytest.raises(ExperimentError, match="all-reduce-sweep with preset tiny: .*" + message):
        run([folder / NOTEBOOK.name], "tiny", {name: value})
    assert not (folder / "results").exists()


@pytest.mark.integration  # seconds
def test_what_runs_with_other_values_lies_elsewhere(folder: Path) -> None:
    notebook, seen = folder / NOTEBOOK.name, set()
    for overrides, name in (({}, None), ({"ranks": 3}, None), ({"ranks": 5}, None), ({"ranks": 5}, "mine")):
        (planned_run,) = planned([notebook], "tiny", overrides, folder_name("tiny", overrides, name))
        assert planned_run.parameters["ranks"] == overrides.get("ranks", 2)
        seen.add(planned_run.executed.parent.name)
    assert len(seen) == 4
    assert {"tiny", "mine"} < seen


@pytest.mark.integration
@pytest.mark.parametrize(
    ("wrong", "message"),
    [(["-p", "rnaks", "2"], "did you mean 'ranks'"), (["-p", "ranks", "two"], "should be a valid integer, got 'two'")],
)
def test_plain_papermill_refuses_too(folder: Path, wrong: list[str], message: str) -> None:
    """papermill itself only warns of an unknown name; the notebook stops before anything is launched."""
    command = [sys.executable, "-m", "papermill", NOTEBOOK.name, "out.ipynb", *wrong, "-p", "output", "results/x/rows"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=120, check=False)
    assert done.returncode == 1
    assert message in done.stderr
    assert not (folder / "results").exists()


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_a_failing_notebook_keeps_its_output_and_no_result(folder: Path) -> None:
    notebook = nbformat.read(folder / NOTEBOOK.name, 4)
    notebook.cells[5].source = "raise ValueError('planted')"
    nbformat.write(notebook, folder / NOTEBOOK.name)
    with pytest.raises(ExperimentError, match=r"failed: ValueError: planted; see .*failed\.ipynb"):
        run([folder / NOTEBOOK.name], "tiny")
    left = sorted(path.name for path in (folder / "results" / "tiny").iterdir())
    assert left == ["all-reduce-sweep.failed.ipynb"]


@pytest.mark.integration  # seconds
def test_an_interrupted_notebook_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import papermill

    def interrupted(_: str, output: str, *__: object, **___: object) -> None:
        Path(output).write_text("half a notebook")
        raise KeyboardInterrupt

    monkeypatch.setattr(papermill, "execute_notebook", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run([folder / NOTEBOOK.name], "tiny")
    assert list((folder / "results" / "tiny").iterdir()) == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_kept_without_outputs_and_know_their_parameters(path: Path) -> None:
    notebook = nbformat.read(path, 4)
    assert all(not cell.get("outputs") and not cell.get("execution_count") for cell in notebook.cells)
    (parameters,) = (cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", []))
    namespace: dict[str, Any] = {}
    exec(parameters.source, namespace)
    assert checked(load(path.stem).Parameters, namespace)


@pytest.mark.integration  # seconds
@pytest.mark.parametrize("preset", PRESETS, ids=lambda path: path.stem)
def test_a_preset_fits_every_notebook_it_is_for(preset: Path) -> None:
    assert preset.read_text().startswith("# "), "the first line says what the preset is for"
    assert {each.notebook.stem for each in planned(NOTEBOOKS, preset.stem, {}, "x")} == set(
        yaml.safe_load(preset.read_text())
    )


@pytest.mark.integration  # seconds
def test_every_notebook_has_a_model_and_is_in_the_quick_preset() -> None:
    assert {notebook.stem for notebook in NOTEBOOKS} == set(EXPERIMENTS)
    assert {each.notebook.stem for each in planned(NOTEBOOKS, "quick", {}, "x")} == set(EXPERIMENTS)


def test_results_are_written_whole_or_not_at_all(tmp_path: Path) -> None:
    write(tmp_path / "rows", [{"a": 1, "samples": [1.0, 2.0]}], {"why": "because"})
    with pytest.raises(TypeError):
        write(tmp_path / "rows", [{"a": 2}], {"why": object()})
    with pytest.raises(ValueError, match="no rows"):
        write(tmp_path / "rows", [], {})
    rows, record = read(tmp_path / "rows")
    assert rows.a.tolist() == [1]
    assert date.fromisoformat(record["date"])
    assert record == {"version": 1, "why": "because", "date": record["date"]}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.json", "rows.parquet"]
    assert json.loads((tmp_path / "rows.json").read_text()) == record
    with pytest.raises(FileNotFoundError, match="`make experiments` makes them"):
        read(tmp_path / "nothing")


def test_a_notebook_that_could_measure_nothing_has_no_failed_rows(tmp_path: Path) -> None:
    """As where no emulated hosts are allowed: it says so, and leaves nothing but itself."""
    assert execute._failed_rows(tmp_path / "straggler.ipynb") == 0


EIGHT = GOOD | {"sizes": ["1K"], "collectives": ["gather", "all_reduce"], "backends": ["p2p", "horovod", "mpi"]}
del EIGHT["algorithms"]


def test_each_collective_is_measured_by_the_back_ends_that_have_it() -> None:
    wanted = checked(CollectivesSweep, EIGHT).settings()
    assert [(each.collective, each.backends) for each in wanted] == [
        ("gather", ["p2p", "mpi"]),
        ("all_reduce", ["p2p", "horovod", "mpi"]),
    ]
    halves = checked(CollectivesSweep, EIGHT | {"dtype": "float16", "in_place": True}).settings()
    assert [(each.dtype, each.in_place, each.backends) for each in halves] == [
        ("float16", True, ["p2p"]),
        ("float16", True, ["p2p", "horovod"]),
    ]
    assert [[(one.where, one.collective) for one in alike] for alike in launches(wanted)] == [
        [("loopback", "gather"), ("loopback", "all_reduce")],
        [("mpirun", "gather"), ("mpirun", "all_reduce")],
        [("horovodrun", "all_reduce")],
    ]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"collectives": ["allreduce"]}, "unknown collective 'allreduce'"),
        ({"collectives": []}, "collectives: List should have at least 1 item"),
        ({"collectives": ["gather"], "backends": ["horovod"]}, "horovod has no 'gather'"),
        ({"collectives": ["all_to_all"], "in_place": True}, "all_to_all in place: got p2p, expected out of place"),
        ({"backends": ["p2p", "nccl2"]}, "unknown backend 'nccl2'"),
        ({"sizes": [4]}, "sizes for gather on 2 ranks: got 4 bytes, expected an element or more for each rank"),
        (
            {"sizes": [1024, 1028]},
            "gather on 2 ranks: got 1024 bytes and another size of 256 elements, expected distinct ones",
        ),
        ({"backends": ["mpi:ring"]}, "mpi takes an algorithm for all_reduce only, so not 'mpi:ring' for gather"),
    ],
)
def test_wrong_parameters_of_many_collectives_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ExperimentError) as caught:
        checked(CollectivesSweep, EIGHT | given)
    assert message in str(caught.value)


def test_an_absent_back_end_is_left_out_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs.importlib.util, "find_spec", lambda _: None)
    asked = checked(CollectivesSweep, EIGHT)
    assert asked.present().backends == ["p2p", "mpi"]
    assert [found.absent for found in asked.presence()] == [None, programs.NO_HOROVODRUN, None]
    alone = checked(CollectivesSweep, EIGHT | {"backends": ["horovod"], "collectives": ["all_reduce"]})
    with pytest.raises(ImportError, match="horovod is absent: Horovod is not installed"):
        alone.present()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"all-reduce-sweep: {ranks: [}", r"tiny\.yaml: invalid YAML: line 1"),
        (b"\xff", r"tiny\.yaml: invalid YAML: 'utf-8' codec"),
        (b"[all-reduce-sweep]", r"got \['all-reduce-sweep'\], expected the experiments' names"),
        (b"3: {ranks: 2}", "unknown experiment '3'"),
        (b"all-reduce-sweep: 3", "all-reduce-sweep: got 3, expected its parameters"),
        (b"all-reduce-sweep: {3: 2}", "unknown parameter '3'"),
        (b"all-reduce-sweep: {where: 2020-01-01}", "unknown where '2020-01-01'"),
        (b"all-reduce-sweep: {__name__: x}", "unknown parameter '__name__'"),
        (b"all-reduce-sweep: {output: ../../x}", "invalid parameter 'output': expected --output NAME instead"),
        (b"a: &a [x]\nb: *a", r"tiny\.yaml: line 2, column 4: got an alias, expected the value itself"),
        (b"[" * 1000, r"tiny\.yaml: line 1, column 17: got more than 16 levels"),
        (b"#" * 100_000, r"tiny\.yaml: got more than 64 KiB"),
    ],
)
def test_a_broken_preset_is_one_line(folder: Path, text: bytes, message: str) -> None:
    (folder / "presets" / "tiny.yaml").write_bytes(text)
    assert_one_line(message, folder / NOTEBOOK.name, "tiny")
    assert not (folder / "results").exists()


def assert_one_line(message: str, notebook: Path, *arguments: Any, **options: Any) -> None:
    with pytest.raises(ExperimentError, match=message) as caught:
        run([notebook], *arguments, **options)
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("name", ["__name__", "_", "__builtins__", "In", "exit", "x\nimport os", "ranks;x", "2"])
def test_only_the_models_names_reach_the_notebook(folder: Path, name: str) -> None:
    assert_one_line("unknown parameter", folder / NOTEBOOK.name, "tiny", {name: 1})
    assert not (folder / "results").exists()


@pytest.mark.parametrize(
    "value", [float("nan"), "9" * 5000, [[[[1]]]], {"a": 1}, None, -1, [["x"] * 99] * 99], ids=range(7)
)
@pytest.mark.parametrize("name", ["ranks", "sizes", "where", "algorithms"])
def test_odd_values_are_one_line(folder: Path, name: str, value: object) -> None:
    assert_one_line(name if name != "where" else "where|place", folder / NOTEBOOK.name, "tiny", {name: value})


@pytest.mark.parametrize("name", ["../presets/tiny", "..", "/etc/passwd", "", "x" * 101, "a b", "tiny\n", ".hidden"])
def test_names_of_presets_are_plain(folder: Path, name: str) -> None:
    assert_one_line("--preset .*expected up to 100 letters", folder / NOTEBOOK.name, name)


@pytest.mark.parametrize("name", ["..", "x" * 101, "a b", "tiny\n", ".hidden"])
def test_an_output_is_a_plain_name_or_a_path(folder: Path, name: str) -> None:
    assert_one_line("--output .*expected a path, or up to 100", folder / NOTEBOOK.name, "tiny", folder=name)


@pytest.mark.integration  # seconds
def test_results_go_to_any_path(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the clone is read-only: absolute, or from the current folder."""
    monkeypatch.chdir(tmp_path)
    for given in (str(tmp_path / "elsewhere" / "mine"), "./elsewhere/mine"):
        (planned_run,) = planned([folder / NOTEBOOK.name], "tiny", {}, given)
        assert planned_run.executed == tmp_path / "elsewhere" / "mine" / NOTEBOOK.name
        assert planned_run.checked.output == str(tmp_path / "elsewhere" / "mine" / "all-reduce-sweep")
    assert_one_line(
        "--output: got /etc/passwd, expected a folder", folder / NOTEBOOK.name, "tiny", folder="/etc/passwd/x"
    )
    monkeypatch.setattr(os, "access", lambda *_: False)
    given = str(tmp_path / "elsewhere")
    assert_one_line(f"--output: got {tmp_path}, expected a folder", folder / NOTEBOOK.name, "tiny", folder=given)


def test_a_check_starts_nothing_and_leaves_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(execute, "_execute", lambda _: pytest.fail("a notebook was started"))
    before = sorted(folder.rglob("*"))
    assert run([folder / NOTEBOOK.name], "tiny", folder=str(folder / "not" / "yet"), check=True) == 0
    assert f"all-reduce-sweep: ready; its results go to {folder / 'not' / 'yet'}" in capsys.readouterr().err
    assert sorted(folder.rglob("*")) == before
    assert_one_line("unknown parameter 'rnaks'", folder / NOTEBOOK.name, "tiny", {"rnaks": 2}, check=True)


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
    monkeypatch.setattr(execute, "_execute", lambda _: pytest.fail("a notebook was started"))
    overrides, message = ABSENT[name]
    assert_one_line(message, folder / NOTEBOOK.name, "tiny", overrides)
    assert not (folder / "results").exists()


def test_a_login_node_needs_neither_a_job_nor_gpus(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs.shutil, "which", lambda *_, **__: "/usr/bin/srun")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    on_gpus = {"where": "slurm", "backends": ["nccl"], "ranks": 64}
    assert run([folder / NOTEBOOK.name], "tiny", on_gpus, check=True) == 0
    assert_one_line("all-reduce-sweep: not within a Slurm job", folder / NOTEBOOK.name, "tiny", on_gpus)


@pytest.mark.integration  # seconds
def test_a_login_node_can_check_every_notebook(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(programs.shutil, "which", lambda *_, **__: "/usr/bin/srun")
    assert run(NOTEBOOKS, "slurm-gpu", folder=f"{tmp_path}/x", check=True) == 0
    assert not (tmp_path / "x").exists()


@pytest.mark.integration  # seconds
def test_a_parameter_is_for_the_notebooks_that_have_it() -> None:
    some = [ROOT / "experiments" / f"{name}.ipynb" for name in ("all-reduce-sweep", "bench-simulator")]
    sweep, simulator = planned(some, "quick", {"sizes": [4]}, "x")
    assert sweep.parameters["sizes"] == [4]
    assert "sizes" not in simulator.parameters
    with pytest.raises(ExperimentError, match="unknown parameter 'rnaks'"):
        planned(some, "quick", {"rnaks": [4]}, "x")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", "null", '{"cells": 3}', "\xff", '{"cells": [], "metadata": {}, "nbformat": 99}']
)
def test_a_broken_notebook_is_one_line(folder: Path, text: str) -> None:
    (folder / NOTEBOOK.name).write_text(text, encoding="latin1")
    assert_one_line(r"all-reduce-sweep", folder / NOTEBOOK.name, "tiny")


def test_a_default_that_is_no_value_is_one_line(folder: Path) -> None:
    notebook = nbformat.read(folder / NOTEBOOK.name, 4)
    notebook.cells[1].source = "ranks = int(__import__('os').environ['RANKS'])"
    nbformat.write(notebook, folder / NOTEBOOK.name)
    assert_one_line("all-reduce-sweep.ipynb cannot be read as a notebook", folder / NOTEBOOK.name, "tiny")


def test_where_nothing_can_be_written_the_file_is_named(folder: Path) -> None:
    (folder / "results").write_text("in the way")
    assert_one_line("--output: got .*results, expected a folder that can be written", folder / NOTEBOOK.name, "tiny")


def test_damaged_results_are_named(folder: Path) -> None:
    results = folder / "results" / "tiny"
    results.mkdir(parents=True)
    (results / NOTEBOOK.name).write_text("{")
    assert_one_line("was made with other parameters or other code", folder / NOTEBOOK.name, "tiny")
    (planned_run,) = planned([folder / NOTEBOOK.name], "tiny", {}, "tiny")
    (results / NOTEBOOK.name).write_text(json.dumps({"metadata": {"collectives": {"inputs": planned_run.inputs}}}))
    (results / "all-reduce-sweep.parquet").write_text("no parquet")
    (results / "all-reduce-sweep.json").write_text("{}")
    assert_one_line("all-reduce-sweep.parquet and .json cannot be read: .*--output", folder / NOTEBOOK.name, "tiny")


def test_a_kernel_that_cannot_be_started_is_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import papermill

    def dead(*_: object, **__: object) -> None:
        raise RuntimeError("Kernel died before replying\nto kernel_info")

    monkeypatch.setattr(papermill, "execute_notebook", dead)
    message = "could not be executed: RuntimeError: Kernel died before replying to kernel_info"
    assert_one_line(message, folder / NOTEBOOK.name, "tiny")


@pytest.mark.integration
def test_a_killed_run_leaves_no_connection_file(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    temporary = tmp_path_factory.mktemp("tmp")
    notebook = nbformat.read(folder / NOTEBOOK.name, 4)
    notebook.cells[5].source = "import sys, time; print('here', file=sys.stderr); time.sleep(60)"
    nbformat.write(notebook, folder / NOTEBOOK.name)
    path = str(folder / NOTEBOOK.name)
    code = f"from pathlib import Path; from collectives_book.execute import run; run([Path({path!r})], 'tiny')"
    environment = os.environ | {"TMPDIR": str(temporary), "PYTHONPATH": os.pathsep.join(sys.path)}
    with started([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, env=environment) as running:
        assert running.stderr is not None
        assert any("here" in line for line in running.stderr)
        assert list(temporary.rglob("kernel.json"))
        running.kill()
    until = time.monotonic() + 30
    while connection_files(temporary) and time.monotonic() < until:
        time.sleep(0.1)
    assert not connection_files(temporary)


def connection_files(folder: Path) -> list[str]:
    """What of them is there; a folder may vanish meanwhile."""
    return [name for _, _, names in os.walk(folder) for name in names if name.endswith(".json")]

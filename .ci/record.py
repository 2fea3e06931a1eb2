"""Make every committed row again, on a machine with nothing else to do (`make record`): over two hours.

``python .ci/record.py computed`` makes those computed rows alone that are older than their code,
five minutes, and ``python .ci/record.py computed NAME`` those of one name: they are the same on
every machine.

Rows go to ``experiments/results/FOLDER``, and once all are there, to
``experiments/results/reference/FOLDER``. What was measured before a cut is not measured again. The
rows of Slurm come from a job on nodes that are this machine; where there can be no such cluster,
the committed ones stay, and so do those of the rivals where one of these is absent. The sweeps
stand in ``record.yaml``.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from collectives.bench import Settings
from collectives.bench.results import read
from collectives.bench.sweep import sweep
from collectives.files import replace
from collectives.units import parse_bytes
from collectives_book import computed
from collectives_book.execute import run
from collectives_book.rivals import Rivals

EXPERIMENTS = Path(__file__).resolve().parent.parent / "experiments"
RESULTS = EXPERIMENTS / "results"
FOLDERS = ("slow-motion", "loopback", "one-machine", "slurm-cpu")
KEPT = ("*.parquet", "*.jsonl", "*.yaml")
SLURM_JOB = ["--nodes=4", "--ntasks-per-node=2", "experiments/slurm/papermill.sbatch"]
SLURM_SECONDS = 1800


def main() -> None:
    """Compute, measure, then replace what is committed."""
    if sys.argv[1:2] == ["computed"]:
        compute(sys.argv[2:] or [*computed.outdated()])
        return
    compute([*computed.outdated()])
    for hosts in (8, 32):
        check(hosts, RESULTS / "slow-motion" / f"check-{hosts}.jsonl")
    preset = yaml.safe_load(
        (EXPERIMENTS / "presets" / "slow-motion.yaml").read_text(encoding="utf8")
    )
    failed = run([EXPERIMENTS / f"{name}.ipynb" for name in preset], "slow-motion", replace=True)
    beside = {"beside": ["gloo", "horovod"], "fusion": [0, "128M"]}
    failed += run([EXPERIMENTS / "data-parallel.ipynb"], "quick", beside, "loopback", replace=True)
    for name, entries in yaml.safe_load(
        Path(__file__).with_suffix(".yaml").read_text(encoding="utf8")
    ).items():
        print(f"==> {name}", file=sys.stderr, flush=True)
        measure(RESULTS / name, entries)
    failed += measure_rivals()
    measure_on_slurm(RESULTS / "slurm-cpu")
    if failed:
        sys.exit(f"failed rows: got {failed}, expected none; `make record` measures them again")
    for folder in filter(lambda each: (RESULTS / each).exists(), FOLDERS):
        keep(RESULTS / folder, RESULTS / "reference" / folder)
        shutil.rmtree(RESULTS / folder)  # the next call measures again


def compute(names: list[str]) -> None:
    """Make the computed rows of these names.

    If none differs, their record alone says of which code they are.
    """
    for name in names:
        print(f"==> computed/{name}", file=sys.stderr, flush=True)
        stem, code = computed.FOLDER / name, computed.code(name)
        before = read(stem) if stem.with_suffix(".parquet").exists() else None
        if name == computed.EXPERIMENT:
            run([EXPERIMENTS / f"{name}.ipynb"], "computed", replace=True)
            keep(RESULTS / "computed", computed.FOLDER)
        else:
            computed.make(name)
        rows, record = read(stem)
        if before is not None and before[0].equals(rows):
            record = before[1] | {"settings": record["settings"]}
        write_record(stem, record | {"code": code})


def keep(measured: Path, reference: Path) -> None:
    """Copy rows, their records, and machines."""
    for path in (path for pattern in KEPT for path in measured.glob(pattern)):
        shutil.copyfile(path, reference / path.name)
        if path.suffix == ".parquet":
            shutil.copyfile(path.with_suffix(".json"), reference / f"{path.stem}.json")


def settings(entry: dict[str, Any]) -> list[Settings]:
    """Return the measurements of an entry of ``record.yaml``, one for each number of ranks."""
    given = {name: value for name, value in entry.items() if name != "variables"}
    nbytes = [parse_bytes(str(each)) for each in entry["bytes"]]
    return [Settings(**given | {"ranks": ranks, "bytes": nbytes}) for ranks in entry["ranks"]]


def measure(stem: Path, entries: list[dict[str, Any]]) -> None:
    """Measure one sweep; its record says which variables it was started with."""
    if stem.with_suffix(".parquet").exists():
        return
    variables = {
        name: value for entry in entries for name, value in entry.get("variables", {}).items()
    }
    os.environ.update(variables)
    sweep([each for entry in entries for each in settings(entry)], stem)
    for name in variables:
        del os.environ[name]
    if variables:
        write_record(stem, read(stem)[1] | {"variables": variables})


def write_record(stem: Path, record: dict[str, Any]) -> None:
    """Write the record of rows that are there."""
    text = json.dumps(record, indent=1) + "\n"
    replace(stem.with_suffix(".json"), lambda path: path.write_text(text, encoding="utf8"))


def measure_rivals() -> int:
    """Measure every rival on this machine, if all are here; return the number of failed rows."""
    preset = (EXPERIMENTS / "presets" / "one-machine.yaml").read_text(encoding="utf8")
    experiment = Rivals.given(yaml.safe_load(preset)["rivals"] | {"output": "rivals"})
    absent = experiment.left_out()
    if absent:
        reasons = "; ".join(absent.values())
        print(f"==> one-machine: the committed rows stay: {reasons}", file=sys.stderr, flush=True)
        return 0
    return run([EXPERIMENTS / "rivals.ipynb"], "one-machine", replace=True)


def measure_on_slurm(folder: Path) -> None:
    """Submit the job script of the chapter on clusters, and take its rows."""
    from slurm.four_nodes import cluster, lacking, submit  # of tests/, where `make record` finds it

    if folder.exists():
        return
    if reason := lacking():
        print(f"==> slurm-cpu: the committed rows stay: {reason}", file=sys.stderr, flush=True)
        return
    print("==> slurm-cpu", file=sys.stderr, flush=True)
    with TemporaryDirectory() as logs, cluster(Path(logs) / "daemons") as inside:
        log = f"--output={logs}/job"
        job, state, said = submit(
            inside, EXPERIMENTS.parent, log, *SLURM_JOB, seconds=SLURM_SECONDS
        )
    if state != "COMPLETED 0:0":
        sys.exit(f"job on Slurm: got {state}, expected COMPLETED 0:0\n{said}")
    (RESULTS / f"slurm-cpu-{job}").rename(folder)


def check(hosts: int, path: Path) -> None:
    """Measure whether that many emulated hosts have the links that were asked for."""
    command = [
        sys.executable,
        "-m",
        "collectives",
        "cluster",
        "--hosts",
        str(hosts),
        "--check",
        "--json",
    ]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=600).stdout
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(said)


if __name__ == "__main__":
    main()

"""Measure every committed row again, on a machine with nothing else to do (`make record`), 90 minutes.

Rows go to ``experiments/results/FOLDER``, and once all are there, to ``experiments/results/reference/FOLDER``. What was
measured before a cut is not measured again. The rows of Slurm come from a job on nodes that are this machine; where
there can be no such cluster, the committed ones stay.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import yaml

from collectives.bench import Settings
from collectives.bench.results import read, replace
from collectives.bench.sweep import sweep
from collectives_book.execute import run
from slurm.four_nodes import cluster, lacking, submit

EXPERIMENTS = Path(__file__).resolve().parent.parent / "experiments"
RESULTS = EXPERIMENTS / "results"
FOLDERS = ("slow-motion", "loopback", "slurm-cpu")
KEPT = ("*.parquet", "*.jsonl", "*.yaml")

LINKS = "cluster:5ms,25MB/s"
LIBRARIES = ["p2p", "gloo", "mpi"]
ANY_SIZE = [4, 64, 1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20]
FEW_SIZES = [4, 64 << 10, 1 << 20, 4 << 20, 16 << 20]

SLURM_JOB = ["--nodes=4", "--ntasks-per-node=2", "experiments/slurm/papermill.sbatch"]
SLURM_SECONDS = 1800


class Run(NamedTuple):
    """What one sweep measures, and the variables that it is started with."""

    settings: list[Settings]
    variables: dict[str, str]


def on_this_machine(variables: dict[str, str]) -> Run:
    """`auto` beside gloo and Open MPI, in turn in the same processes, which share this machine's cores."""
    once = {"where": "mpirun", "bytes": ANY_SIZE, "backends": LIBRARIES, "repetitions": 51, "warmups": 5}
    return Run([Settings(ranks=p, **once) for p in (2, 4)], variables)


def on_hosts(hosts: list[int], where: str, backends: list[str], sizes: list[int], repetitions: int) -> Run:
    """`auto` beside the libraries on emulated hosts."""
    once = {"where": where, "bytes": sizes, "backends": backends, "timeout": 1800.0}
    return Run([Settings(ranks=p, repetitions=repetitions, warmups=1, **once) for p in hosts], {})


SWEEPS = {
    "slow-motion/four-fast-hosts": on_hosts([4], "cluster:1ms,125MB/s", LIBRARIES, ANY_SIZE, 15),
    "slow-motion/any-number": on_hosts([6, 12, 24, 31], LINKS, [*LIBRARIES, "horovod"], FEW_SIZES, 7),
    "slow-motion/two-trees-broadcast": Run(
        [
            Settings(
                collective="broadcast",
                algorithms=["binomial", "chain", "scatter_allgather", "two_tree"],
                ranks=24,
                where=LINKS,
                bytes=[64 << 10 << i for i in range(7)],
                repetitions=9,
                warmups=1,
                timeout=900.0,
            )
        ],
        {},
    ),
    "slow-motion/two-trees-all-reduce": Run(
        [
            Settings(
                algorithms=[
                    *("segmented_ring", "recursive_doubling", "halving_doubling", "optimal"),
                    *("tree", "overlapped_tree", "two_tree"),
                ],
                ranks=31,
                where="cluster:10ms,12.5MB/s",
                bytes=[128 << 10 << i for i in range(5)],
                repetitions=7,
                warmups=1,
                timeout=900.0,
            )
        ],
        {},
    ),
    # The same elements in float32 and in bfloat16.
    "slow-motion/wires": Run(
        [
            Settings(algorithms=algorithms, dtype=dtype, ranks=8, where=LINKS, bytes=sizes, repetitions=7, warmups=1)
            for dtype, sizes, algorithms in (
                (
                    "float32",
                    [64 << 10, 1 << 20, 4 << 20, 16 << 20],
                    [
                        *("ring", "ring/bfloat16", "ring/mxint8"),
                        *("parameter_server", "parameter_server/bfloat16", "parameter_server/mxint8"),
                    ],
                ),
                ("bfloat16", [32 << 10, 512 << 10, 2 << 20, 8 << 20], ["ring", "ring/float32", "parameter_server"]),
            )
        ],
        {},
    ),
    # The links of a DGX-1, ten thousand times as slow: 48 of 2.5 MB/s.
    "slow-motion/dgx1": Run(
        [
            Settings(
                collective="all_gather",
                algorithms=[
                    "packed_trees@dgx1",
                    *(f"examples/dgx1_rings.py:{name}" for name in ("six_rings", "one_ring")),
                ],
                ranks=8,
                where="cluster:dgx1,10000",
                bytes=[64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20],
                repetitions=7,
                warmups=1,
            )
        ],
        {},
    ),
    "loopback/all-reduce": on_this_machine({}),
    "loopback/all-reduce-tcp": on_this_machine({"COLLECTIVES_TRANSPORT": "tcp", "OMPI_MCA_btl": "tcp,self"}),
}


def main() -> None:
    """Measure, then replace what is committed."""
    for hosts in (8, 32):
        check(hosts, RESULTS / "slow-motion" / f"check-{hosts}.jsonl")
    preset = yaml.safe_load((EXPERIMENTS / "presets" / "slow-motion.yaml").read_text(encoding="utf8"))
    failed = run([EXPERIMENTS / f"{name}.ipynb" for name in preset], "slow-motion", replace=True)
    failed += run(
        [EXPERIMENTS / "data-parallel.ipynb"],
        "quick",
        {"beside": ["gloo", "horovod"], "fusion": [0, "128M"]},
        "loopback",
        replace=True,
    )
    for name, each in SWEEPS.items():
        print(f"==> {name}", file=sys.stderr, flush=True)
        measure(RESULTS / name, each)
    measure_on_slurm(RESULTS / "slurm-cpu")
    if failed:
        sys.exit(f"failed rows: got {failed}, expected none; `make record` measures them again")
    for folder in filter(lambda each: (RESULTS / each).exists(), FOLDERS):
        keep(RESULTS / folder, RESULTS / "reference" / folder)
        shutil.rmtree(RESULTS / folder)  # the next call measures again


def keep(measured: Path, reference: Path) -> None:
    """Copy rows, their records, and machines."""
    for path in (path for pattern in KEPT for path in measured.glob(pattern)):
        shutil.copyfile(path, reference / path.name)
        if path.suffix == ".parquet":
            shutil.copyfile(path.with_suffix(".json"), reference / f"{path.stem}.json")


def measure(stem: Path, wanted: Run) -> None:
    """One sweep, whose record says which variables it was started with."""
    if stem.with_suffix(".parquet").exists():
        return
    os.environ.update(wanted.variables)
    sweep(wanted.settings, stem)
    for name in wanted.variables:
        del os.environ[name]
    if wanted.variables:
        _, record = read(stem)
        text = json.dumps(record | {"variables": wanted.variables}, indent=1) + "\n"
        replace(stem.with_suffix(".json"), lambda path: path.write_text(text, encoding="utf8"))


def measure_on_slurm(folder: Path) -> None:
    """Submit the job script of the chapter on clusters, and take its rows."""
    if folder.exists():
        return
    if reason := lacking():
        print(f"==> slurm-cpu: the committed rows stay: {reason}", file=sys.stderr, flush=True)
        return
    print("==> slurm-cpu", file=sys.stderr, flush=True)
    with TemporaryDirectory() as logs, cluster(Path(logs) / "daemons") as inside:
        log = f"--output={logs}/job"
        job, state, said = submit(inside, EXPERIMENTS.parent, log, *SLURM_JOB, seconds=SLURM_SECONDS)
    if state != "COMPLETED 0:0":
        sys.exit(f"job on Slurm: got {state}, expected COMPLETED 0:0\n{said}")
    (RESULTS / f"slurm-cpu-{job}").rename(folder)


def check(hosts: int, path: Path) -> None:
    """Measure whether that many emulated hosts have the links that were asked for."""
    command = [sys.executable, "-m", "collectives", "cluster", "--hosts", str(hosts), "--check", "--json"]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=600).stdout
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(said)


if __name__ == "__main__":
    main()

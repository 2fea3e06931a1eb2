"""Plant each fault on random ranks of an emulated cluster, read the dumps, and count how often the culprit is named.

    python -m collectives_book.faults.planting FOLDER [RUNS]

writes ``FOLDER/faults.csv`` with a row for each run, and the dumps of each fault's first run as ``FOLDER/case-N.zip``.
"""

import csv
import json
import os
import random
import re
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from collectives.bench.results import replace
from collectives.emulator import Cluster, cluster
from collectives.logs.flight.pickled import load
from collectives.logs.read import read
from collectives.processes import end
from collectives.torch_backend.flight import PACKAGE
from collectives_book.faults.cases import STEP

HOSTS, RUNS, SEED = 4, 10, 33
# Importing torch on all ranks takes seconds; a hang ends after its timeout.
MOST_SECONDS = 60.0
SLOW_RATE = "1MB/s"
ROOT = f"{Path(__file__).parents[3]}{os.sep}"  # frames are named below it
HEALTHY = "healthy"  # where nothing may be found
# Faults of two ranks, of which either may be named: nothing shows which end of a link is slow.
TWO_ENDS = ("link", "buffer")
OTHER_VERSION = "0.0.1"


class Outcome(NamedTuple):
    """One run: the fault, who had it, whether the first finding names them, and what it says."""

    fault: str
    run: int
    culprit: int
    named: bool
    kind: str
    found: str


def outcome(fault: str, run: int, culprit: int, dumps: list[Path]) -> Outcome:
    """What is read in the dumps of a run."""
    faults = [found for _, found in read(sorted(dumps)) if found.follows]
    first = faults[0] if faults else None
    named = first_ranks(first.found) if first else set()
    is_named = culprit in named and len(named) <= (2 if fault in TWO_ENDS else 1)
    if fault == HEALTHY:
        is_named = first is None
    said = first.found.replace(ROOT, "") if first else ""
    return Outcome(fault, run, culprit, is_named, first.kind if first else "", said)


def first_ranks(text: str) -> set[int]:
    """The ranks that a sentence names first, both ends of a link.

    >>> first_ranks("rank 3 left no dump; ranks 0–2 wait"), first_ranks("rank 1 to rank 2: slow")
    ({3}, {1, 2})
    """
    found = re.match(r"ranks? (\d+)(?:(?:–| to rank )(\d+))?", text)
    return {int(rank) for rank in found.groups() if rank} if found else set()


def play(hosts: Cluster, fault: str, culprit: int, folder: Path) -> None:
    """Run the job until all ranks have ended, or are killed because they never would."""
    if fault == "link":
        hosts.set(culprit, (culprit + 1) % hosts.hosts, rate=SLOW_RATE)
    command = [sys.executable, "-m", "collectives_book.faults.cases", fault, str(culprit)]
    processes = []
    with (folder / "log").open("wb") as log:
        for rank in range(hosts.hosts):
            variables = {"TORCH_FR_DUMP_TEMP_FILE": str(folder / "rank"), "OMP_NUM_THREADS": "1"}
            if rank == culprit:
                variables |= _peculiar(fault, folder)
            environment = hosts.variables(rank) | variables
            processes.append(hosts.popen(rank, command, environment=environment, stdout=log, stderr=log))
        deadline = time.monotonic() + MOST_SECONDS
        while time.monotonic() < deadline:
            running = [rank for rank, process in enumerate(processes) if process.poll() is None]
            if not running or (fault == "stopped" and running == [culprit]):
                break
            time.sleep(0.1)
        end(processes)


def _peculiar(fault: str, folder: Path) -> dict[str, str]:
    """What the culprit's environment has that the others' have not."""
    if fault == "algorithm":
        return {"COLLECTIVES_ALGORITHM": "tree"}
    if fault == "version":
        info = folder / "other" / f"{PACKAGE.replace('-', '_')}-{OTHER_VERSION}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: {OTHER_VERSION}\n")
        return {"PYTHONPATH": os.pathsep.join(filter(None, [str(info.parent), os.environ.get("PYTHONPATH")]))}
    return {}


def outcomes(folder: Path, runs: int) -> Iterator[Outcome]:
    """All runs of all faults, each on a random rank."""
    chance = random.Random(SEED)
    for number, fault in enumerate(STEP):
        for run in range(runs):
            culprit = chance.randrange(HOSTS)
            with tempfile.TemporaryDirectory() as name, cluster(HOSTS) as hosts:
                here = Path(name)
                play(hosts, fault, culprit, here)
                dumps = [path for path in here.glob("rank*") if path.is_file()]
                if run == 0:
                    _archive(dumps, folder / f"case-{number}.zip")
                yield outcome(fault, run, culprit, dumps)


def _archive(dumps: list[Path], path: Path) -> None:
    """The dumps as JSON, with the paths of frames below the repository's root."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for each in sorted(dumps):
            text = json.dumps(load(each.read_bytes()), indent=1).replace(ROOT, "")
            archive.writestr(zipfile.ZipInfo(f"{path.stem}/{each.name}.json"), text, zipfile.ZIP_DEFLATED)


def main(folder: str, runs: str = str(RUNS)) -> None:
    """Play all, and write the table after each run."""
    table: list[Outcome] = []
    Path(folder).mkdir(parents=True, exist_ok=True)
    for row in outcomes(Path(folder), int(runs)):
        table.append(row)
        replace(Path(folder) / "faults.csv", lambda partial: _write(partial, table))
        print(*row, sep=" | ", flush=True)


def _write(path: Path, table: list[Outcome]) -> None:
    with path.open("w", encoding="utf8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([Outcome._fields, *table])


if __name__ == "__main__":
    main(*sys.argv[1:])

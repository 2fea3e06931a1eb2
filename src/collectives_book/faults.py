"""Ten faults, each planted on a random rank of a job in slow motion.

Its dumps are read, and the culprit is sought.

    python -m collectives_book.faults FOLDER [RUNS]

writes ``FOLDER/faults.csv`` with a row for each run, and the dumps of each fault's first run as
``FOLDER/case-N.zip``. With the variables that torchrun sets, ``python -m collectives_book.faults
FAULT CULPRIT`` is one rank of a job: a few collectives in which one rank, the culprit, does
something wrong.
"""

import csv
import json
import os
import random
import re
import signal
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import torch
from torch import distributed as dist
from torch.distributed.rendezvous import rendezvous

from collectives.emulator import Cluster, cluster
from collectives.files import replace
from collectives.processes import end
from collectives.torch_backend import flight
from collectives_logs.flight_dump import load
from collectives_logs.read import read

HOSTS, RUNS, SEED = 4, 10, 33
STEPS = 8
AT = 5
ELEMENTS = 1 << 14
SIZE = {"buffer": 1 << 21}  # no system buffers 8 MiB of one connection
# A hang ends after so many seconds. A late rank is this late in every step.
TIMEOUT, LATE = 4.0, 0.1
# Importing torch on all ranks takes seconds; a hang ends after its timeout.
MOST_SECONDS = 60.0
SLOW_RATE = "1MB/s"
ROOT = f"{Path(__file__).parents[2]}{os.sep}"  # frames are named below it
HEALTHY = "healthy"  # where nothing may be found
# Faults of two ranks, of which either may be named: nothing shows which end of a link is slow.
TWO_ENDS = ("link", "buffer")
OTHER_VERSION = "0.0.1"


class Job(NamedTuple):
    """The tensor and groups of a rank: a tensor, and two more groups of all ranks."""

    tensor: torch.Tensor
    one: dist.ProcessGroup
    other: dist.ProcessGroup
    sends_first: bool


Step = Callable[[Job, bool], object]

# Functions are named by what a program does there, because their names are in the dumps, and a name
# tells the fault.


def train(job: Job, _: bool) -> None:
    """Run a program without a fault: the fault is outside, or there is none."""
    dist.all_reduce(job.tensor)


def out_of_memory(job: Job, is_guilty: bool) -> None:
    """The system kills the rank."""
    if is_guilty:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(job.tensor)


def read_file(job: Job, is_guilty: bool) -> None:
    """The rank does not run any more, as behind a file system that hangs."""
    if is_guilty:
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.all_reduce(job.tensor)


def pass_on(job: Job, _: bool) -> None:
    """Send from each rank to the next."""
    rank = dist.get_rank()
    size = dist.get_world_size()
    received = torch.empty_like(job.tensor)
    sent = dist.isend(job.tensor, (rank + 1) % size)
    dist.recv(received, (rank - 1) % size)
    if sent:
        sent.wait()
    dist.barrier()


def average(job: Job, is_guilty: bool) -> None:
    """The rank calls two collectives in the wrong order."""
    if is_guilty:
        dist.broadcast(job.tensor, 0)
    dist.all_reduce(job.tensor)
    if not is_guilty:
        dist.broadcast(job.tensor, 0)


def last_batch(job: Job, is_guilty: bool) -> None:
    """The rank's tensor is shorter, as the last batch of an epoch."""
    dist.all_reduce(job.tensor[:-7] if is_guilty else job.tensor)


def two_groups(job: Job, is_guilty: bool) -> None:
    """The rank takes two groups in the other order."""
    for group in (job.other, job.one) if is_guilty else (job.one, job.other):
        dist.all_reduce(job.tensor, group=group)


def exchange(job: Job, is_guilty: bool) -> None:
    """Exchange tensors in pairs.

    The culprit sends first, as its partner does, and no buffer holds what they send.
    """
    partner = dist.get_rank() ^ 1
    received = torch.empty_like(job.tensor)
    sends_first = is_guilty or job.sends_first
    if sends_first:
        dist.send(job.tensor, partner)
    dist.recv(received, partner)
    if not sends_first:
        dist.send(job.tensor, partner)


# By the fault. What `train` does not do itself, the launcher does around it: another algorithm,
# another version.
STEP: dict[str, Step] = {
    HEALTHY: train,
    "killed": out_of_memory,
    "stopped": read_file,
    "late": train,
    "link": pass_on,
    "order": average,
    "sizes": last_batch,
    "algorithm": train,
    "groups": two_groups,
    "version": train,
    "buffer": exchange,
}


def run_rank(fault: str, culprit: int) -> None:
    """Run all steps, then write the dump that an operator would ask for."""
    patience = timedelta(seconds=TIMEOUT)
    # Ranks start apart.
    store, rank, size = next(rendezvous("env://", timeout=timedelta(seconds=MOST_SECONDS)))
    store.set_timeout(patience)
    dist.init_process_group(
        "collectives", timeout=patience, world_size=size, rank=rank, store=store
    )
    one, other = (dist.new_group(timeout=patience) for _ in range(2))
    sends_first = rank == culprit ^ 1 or (rank != culprit and rank % 2 == 0)
    job = Job(
        torch.full((SIZE.get(fault, ELEMENTS),), float(rank)),
        one,
        other,
        sends_first,
    )
    for step in range(STEPS):
        if fault == "late" and rank == culprit:
            time.sleep(LATE)
        STEP[fault](job, rank == culprit and step == AT)
    flight.dump(rank)
    dist.barrier()


class Outcome(NamedTuple):
    """One run: the fault, who had it, whether the first finding names them, and what it says."""

    fault: str
    run: int
    culprit: int
    named: bool
    kind: str
    found: str


def outcome(fault: str, run: int, culprit: int, dumps: list[Path]) -> Outcome:
    """Return what is read in the dumps of a run."""
    first = next((found for _, found in read(sorted(dumps)) if found.follows), None)
    if first is None:
        return Outcome(fault, run, culprit, fault == HEALTHY, "", "")
    named = first_ranks(first.found)
    is_named = (
        fault != HEALTHY and culprit in named and len(named) <= (2 if fault in TWO_ENDS else 1)
    )
    return Outcome(fault, run, culprit, is_named, first.kind, first.found.replace(ROOT, ""))


def first_ranks(text: str) -> set[int]:
    """Return the ranks that a sentence names first, both ends of a link.

    >>> first_ranks("rank 3 left no dump; ranks 0–2 wait"), first_ranks("rank 1 to rank 2: slow")
    ({3}, {1, 2})
    """
    found = re.match(r"ranks? (\d+)(?:(?:–| to rank )(\d+))?", text)
    return {int(rank) for rank in found.groups() if rank} if found else set()


def play(hosts: Cluster, fault: str, culprit: int, folder: Path) -> list[Path]:
    """Run the job until all ranks have ended, or are killed because they never would.

    Return the dumps that they left.

    One that is stopped is not waited for.
    """
    if fault == "link":
        hosts.set(culprit, (culprit + 1) % hosts.hosts, rate=SLOW_RATE)
    command = [sys.executable, "-m", "collectives_book.faults", fault, str(culprit)]
    processes = []
    with (folder / "log").open("wb") as log:
        for rank in range(hosts.hosts):
            variables = {
                "TORCH_FR_DUMP_TEMP_FILE": str(folder / "rank"),
                "OMP_NUM_THREADS": "1",
            }
            variables |= _peculiar(fault, folder) if rank == culprit else {}
            environment = hosts.variables(rank) | variables
            processes.append(
                hosts.popen(rank, command, environment=environment, stdout=log, stderr=log)
            )
        deadline = time.monotonic() + MOST_SECONDS
        while time.monotonic() < deadline:
            running = [rank for rank, process in enumerate(processes) if process.poll() is None]
            if not running or (fault == "stopped" and running == [culprit]):
                break
            time.sleep(0.1)
        end(processes)
    return sorted(path for path in folder.glob("rank*") if path.is_file())


def _peculiar(fault: str, folder: Path) -> dict[str, str]:
    """Return what the culprit's environment has that the others' have not."""
    if fault == "algorithm":
        return {"COLLECTIVES_ALGORITHM": "tree"}
    if fault == "version":
        info = folder / "other" / f"{flight.PACKAGE.replace('-', '_')}-{OTHER_VERSION}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {flight.PACKAGE}\nVersion: {OTHER_VERSION}\n"
        )
        return {
            "PYTHONPATH": os.pathsep.join(
                filter(None, [str(info.parent), os.environ.get("PYTHONPATH")])
            )
        }
    return {}


def outcomes(folder: Path, runs: int) -> Iterator[Outcome]:
    """Yield all runs of all faults, each on a random rank."""
    chance = random.Random(SEED)
    for number, fault in enumerate(STEP):
        for run in range(runs):
            culprit = chance.randrange(HOSTS)
            with tempfile.TemporaryDirectory() as name, cluster(HOSTS) as hosts:
                dumps = play(hosts, fault, culprit, Path(name))
                if run == 0:
                    _archive(dumps, folder / f"case-{number}.zip")
                yield outcome(fault, run, culprit, dumps)


def _archive(dumps: list[Path], path: Path) -> None:
    """Write the dumps as JSON, with the paths of frames below the repository's root."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for each in dumps:
            text = json.dumps(load(each.read_bytes()), indent=1).replace(ROOT, "")
            archive.writestr(
                zipfile.ZipInfo(f"{path.stem}/{each.name}.json"),
                text,
                zipfile.ZIP_DEFLATED,
            )


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
    if "RANK" in os.environ:  # torchrun's, which the cluster sets for each of its ranks
        run_rank(sys.argv[1], int(sys.argv[2]))
    else:
        main(*sys.argv[1:])

"""One host's ranks in a row, each a process of its own that does all-reduces until it fails: for test_faults.py.

Jobs come as lines of JSON on standard input and answers go, as such lines, to standard output.
torch and the compiled loop are imported once: every rank is a fork of this process, which has no
threads.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist

from collectives import all_reduce

CALLS = 1000  # far more than there is time for
ELEMENTS = 64 << 10


def main() -> None:
    """Start a rank for each job, and kill it where the next line says so."""
    lines = open(0, "rb", buffering=0)  # noqa: SIM115, what a fork finds in a buffer it would read again
    torch.set_num_threads(1)
    say({"host": os.environ["RANK"]})
    while line := lines.readline():
        job = json.loads(line)
        reader, writer = os.pipe()
        if (child := os.fork()) == 0:
            os.close(writer)
            be_a_rank(job, reader)
            os._exit(0)
        os.close(reader)
        with os.fdopen(writer, "wb", buffering=0) as told:
            for line in iter(lines.readline, b'"end"\n'):
                if json.loads(line) == "die":
                    os.kill(child, signal.SIGKILL)
                told.write(line)
        say({"ended": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])})


def be_a_rank(job: dict[str, Any], reader: int) -> None:
    """All-reduces until one fails, then one in a new group of those that are left."""
    lines = os.fdopen(reader, "rb", buffering=0)
    limit = timedelta(seconds=job["timeout"])
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.FileStore(job["file"], ranks)  # type: ignore[attr-defined]  # public, but not in the package's list
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=limit)
    say({"right": is_right(range(ranks), None, job["algorithm"])})
    lines.readline()
    say({"error": error(job["algorithm"])})
    lines.readline()
    group = dist.new_group(job["left"], timeout=limit, use_local_synchronization=True)
    say({"right": is_right(job["left"], group, job["algorithm"])})
    dist.destroy_process_group()


def error(algorithm: str) -> str:
    """What the all-reduce said that failed."""
    try:
        for _ in range(CALLS):
            all_reduce(torch.ones(ELEMENTS), algorithm=algorithm, segments=1)
    except RuntimeError as failure:
        return str(failure)
    return f"nothing failed in {CALLS} calls"


def is_right(ranks: Any, group: Any, algorithm: str) -> bool:
    """Whether an all-reduce gives the sum of what these ranks had."""
    tensor = torch.arange(1000.0) + 1000 * dist.get_rank()
    all_reduce(tensor, group=group, algorithm=algorithm)
    return bool(torch.equal(tensor, len(ranks) * torch.arange(1000.0) + 1000 * sum(ranks)))


def say(event: dict[str, Any]) -> None:
    """One line to the test."""
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

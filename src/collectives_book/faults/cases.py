"""What every rank runs: a few collectives in which one rank, the culprit, does something wrong.

    python -m collectives_book.faults.cases FAULT CULPRIT

with the variables that torchrun sets. The ranks leave dumps of the flight recorder under TORCH_FR_DUMP_TEMP_FILE.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple

import torch
from torch import distributed as dist

from collectives.torch_backend import flight

STEPS, AT, ELEMENTS = 8, 5, 1 << 14
SIZE = {"buffer": 1 << 21}  # no system buffers 8 MiB of one connection
# A hang ends after so many seconds. A late rank is this late in every step.
TIMEOUT, LATE = 4.0, 0.1


class Job(NamedTuple):
    """What a rank has: a tensor, and two more groups of all ranks."""

    tensor: torch.Tensor
    one: dist.ProcessGroup
    other: dist.ProcessGroup
    sends_first: bool


Step = Callable[[Job, bool], object]

# Functions are named by what a program does there, because their names are in the dumps, and a name tells the fault.


def train(job: Job, _: bool) -> None:
    """Nothing is wrong in the program: the fault is outside, or there is none."""
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
    """Each rank sends to the next."""
    rank, size, received = dist.get_rank(), dist.get_world_size(), torch.empty_like(job.tensor)
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
    """Two ranks exchange tensors, the culprit's partner sends first; then both do, and no buffer holds so much."""
    partner, received = dist.get_rank() ^ 1, torch.empty_like(job.tensor)
    sends_first = is_guilty or job.sends_first
    if sends_first:
        dist.send(job.tensor, partner)
    dist.recv(received, partner)
    if not sends_first:
        dist.send(job.tensor, partner)


# By the fault. What `train` does not do itself, the launcher does around it: another algorithm, another version.
STEP: dict[str, Step] = {
    "healthy": train,
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


def play(fault: str, culprit: int) -> None:
    """All steps, then the dump that an operator would ask for."""
    dist.init_process_group("collectives", timeout=timedelta(seconds=TIMEOUT))
    rank = dist.get_rank()
    one, other = (dist.new_group(timeout=timedelta(seconds=TIMEOUT)) for _ in range(2))
    sends_first = rank == culprit ^ 1 or (rank != culprit and rank % 2 == 0)
    job = Job(torch.full((SIZE.get(fault, ELEMENTS),), float(rank)), one, other, sends_first)
    for step in range(STEPS):
        if fault == "late" and rank == culprit:
            time.sleep(LATE)
        STEP[fault](job, rank == culprit and step == AT)
    flight.dump(rank)
    dist.barrier()


if __name__ == "__main__":
    play(sys.argv[1], int(sys.argv[2]))

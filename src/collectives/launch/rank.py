"""One rank's process, whatever started it: learns its job and its number, joins the group, runs its module.

python -m collectives.launch.rank JOB                      started by `loopback`: all is in the argument; on a cluster
                                                           the fork server's forks call `main` with it, without the
                                                           rank's number if it is mpirun that has it started
python -m collectives.launch.rank WHERE HOST PORT          started by a command: the launcher listens there, and gives
                                                           the job to a rank that shows it their secret (`channel`)
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, NamedTuple

from collectives.launch.channel import LOOPBACK, Connection, connect
from collectives.launch.secret import FILE_VARIABLE, VARIABLE, given
from collectives.launch.tasks import module_of
from collectives.processes.parent_death import die_with
from collectives.processes.supervise import loopback_interface

Event = dict[str, Any]

JOIN_SECONDS = 60.0

# Where what starts the ranks tells each of them its number, how many there are, and its number on its machine.
VARIABLES = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    "horovodrun": ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK"),
    "mpirun": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    "slurm": ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
}


class Link(NamedTuple):
    """What joins a rank to the others and to its launcher."""

    module: str
    job: Event
    rank: int
    store: Any
    report: Callable[[Event], None]
    failed: Callable[[list[str]], None]


def main(arguments: list[str]) -> None:
    """Run ``job["module"].run(settings, report)`` as one rank; only rank 0's reports go anywhere."""
    link = _by_argument(*arguments) if len(arguments) == 1 else _by_launcher(*arguments)
    try:
        _run(link)
    except BaseException:
        # Leave at once: the library's threads would abort an orderly exit and hide what went wrong.
        traceback.print_exc()
        sys.stderr.flush()
        link.failed(traceback.format_exc().splitlines())
        os._exit(1)


def _run(link: Link) -> None:
    from torch import distributed as dist

    job, timeout = link.job, timedelta(seconds=link.job["timeout"])
    dist.init_process_group("gloo", store=link.store, rank=link.rank, world_size=job["ranks"], timeout=timeout)
    importlib.import_module(link.module).run(job["settings"], link.report)
    dist.barrier()  # whoever keeps the meeting point may not leave before all are done
    dist.destroy_process_group()


def _by_argument(text: str) -> Link:
    from torch import distributed as dist

    job = json.loads(text)
    if "rank" not in job:
        job["rank"] = _from_mpirun()
    if "launcher" in job:  # a process on an emulated host cannot see its launcher, and ends with its host
        die_with(job["launcher"])
    store = dist.TCPStore(  # type: ignore[attr-defined]  # public, but not in the package's list
        job.get("host", "127.0.0.1"),
        job["port"],
        job["ranks"],
        is_master=job["rank"] == 0,
        timeout=timedelta(seconds=job["timeout"]),
        master_listen_fd=job.get("listener"),
    )
    return Link(job["module"], job, job["rank"], store, _writer(job.get("events"), job.get("answers")), lambda _: None)


def _from_mpirun() -> int:
    rank, _, local = (int(os.environ[name]) for name in VARIABLES["mpirun"])
    os.environ["LOCAL_RANK"] = str(local)
    return rank


def _writer(events: int | None, answers: int | None) -> Callable[[Event], None]:
    """Leave each event as a line in an open file; where the launcher answers, wait until it has."""
    if events is None:
        return lambda _: None
    stream = open(events, "w", buffering=1)  # noqa: PTH123, SIM115  # it stays open as long as we live

    def report(event: Event) -> None:
        print(json.dumps(event), file=stream)
        if answers is not None:
            os.read(answers, 1)

    return report


def _by_launcher(where: str, host: str, port: str) -> Link:
    from torch import distributed as dist

    rank, ranks, local = (int(os.environ[name]) for name in VARIABLES[where])
    os.environ["LOCAL_RANK"] = str(local)
    connection = connect((host, int(port)), _secret(), "rank", rank, JOIN_SECONDS)
    job = connection.receive()
    if job is None:
        raise ConnectionError(f"the launcher at {host}:{port} has ended")
    threading.Thread(target=_end_with, args=(connection,), daemon=True).start()
    if ranks != job["ranks"]:
        raise RuntimeError(f"{where} started {ranks} ranks, not {job['ranks']}")
    if host == LOOPBACK:  # all ranks are here: gloo need not listen on other interfaces
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback_interface())
    store = dist.TCPStore(  # type: ignore[attr-defined]  # public, but not in the package's list
        job["store"][0], job["store"][1], is_master=False, timeout=timedelta(seconds=job["timeout"])
    )

    def report(event: Event) -> None:
        connection.send({"event": event})

    def failed(lines: list[str]) -> None:
        with suppress(OSError):  # the launcher is gone, and the reason with it
            connection.send({"failed": lines})

    return Link(module_of(job["task"]), job, rank, store, report if rank == 0 else lambda _: None, failed)


def _secret() -> str:
    """The launcher's secret, which whatever this rank starts need not inherit."""
    shared = given()
    if shared is None:
        raise ValueError(
            f"no secret: got neither {VARIABLE} nor {FILE_VARIABLE}, expected the launcher's in one of them"
        )
    for name in (VARIABLE, FILE_VARIABLE):
        os.environ.pop(name, None)
    return shared


def _end_with(connection: Connection) -> None:
    """End this process and its children when the launcher ends the connection, or is gone."""
    try:
        while connection.receive() is not None:
            pass
    finally:
        os.killpg(os.getpgrp(), signal.SIGKILL)  # what starts ranks gives each a group of its own


if __name__ == "__main__":
    main(sys.argv[1:])

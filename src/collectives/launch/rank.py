"""The process of one rank: gets its job and its number, joins the group, runs its module.

python -m collectives.launch.rank LAUNCHER HOST PORT       started by a command. The launching process listens there and
                                                           sends the job to a rank that shows the secret (`channel`).
python -m collectives.launch.rank LAUNCHER job=5 events=6  started by `loopback`, with the job in an open file: a file
                                                           that only children inherit needs no secret. A fork server's
                                                           forks call `main` with the same arguments.

LAUNCHER selects the variables in which the rank finds its number. A job has the ranks' module or task, its settings,
the number of ranks, the timeout in seconds and the address of the group's store.
"""

import gc
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

from collectives.launch.address import LOOPBACK, loopback_interface
from collectives.launch.channel import AuthenticatedConnection, Event, connect
from collectives.launch.request import module_of, read_job
from collectives.launch.secret import FILE_VARIABLE, VARIABLE, given
from collectives.processes import die_with

JOIN_SECONDS = 60.0
# The longest that a failed rank waits for its launcher to receive the report.
ANSWER_SECONDS = 5.0

# Variables in which each launcher sets the rank, the world size and the local rank.
TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
VARIABLES = {
    "loopback": TORCHRUN,
    "cluster": TORCHRUN,
    "torchrun": TORCHRUN,
    "horovodrun": ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK"),
    "mpirun": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    "slurm": ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
}


class RankContext(NamedTuple):
    """What a rank knows: its job, its number, and how it reaches the others and its launcher."""

    module: str
    job: Event
    rank: int
    store: Any
    report: Callable[[Event], None]
    failed: Callable[[list[str]], None]


def main(arguments: list[str]) -> None:
    """Run ``module.run(settings, report)`` of the job as one rank; only rank 0's reports go anywhere."""
    launcher, *where = arguments
    context = _by_files(launcher, where) if "=" in where[0] else _by_channel(launcher, *where)
    try:
        _run(context)
    except BaseException:
        # Exit at once: the library's threads would abort an orderly exit and hide the error.
        traceback.print_exc()
        sys.stderr.flush()
        context.failed(traceback.format_exc().splitlines())
        os._exit(1)


def _run(context: RankContext) -> None:
    from torch import distributed as dist

    job, timeout = context.job, timedelta(seconds=context.job["timeout"])
    dist.init_process_group("gloo", store=context.store, rank=context.rank, world_size=job["ranks"], timeout=timeout)
    importlib.import_module(context.module).run(job["settings"], context.report)
    dist.barrier()  # rank 0 keeps the store, so it may not end before all are done
    dist.destroy_process_group()
    # A thread of gloo that still frees a tensor while the interpreter ends aborts the process. A group joins its
    # threads when it is freed, so free those that only cycles hold.
    gc.collect()


def _by_files(launcher: str, files: list[str]) -> RankContext:
    numbers = {name: int(number) for name, _, number in (file.partition("=") for file in files)}
    job = read_job(numbers["job"])
    if "launcher" in job:  # absent for a fork, which ends with its server
        die_with(job["launcher"])
    rank = _rank(launcher, job["ranks"])
    store = _store(job, is_master=rank == 0, listener=numbers.get("listener"))
    report = _writer(numbers.get("events"), numbers.get("answers"))
    return RankContext(job["module"], job, rank, store, report, lambda _: None)


def _rank(launcher: str, ranks: int) -> int:
    """The number of this process; LOCAL_RANK is its number on its machine from now on."""
    rank, started, local = (int(os.environ[name]) for name in VARIABLES[launcher])
    if started != ranks:
        raise RuntimeError(f"wrong number of ranks: got {started} from {launcher}, expected {ranks}")
    os.environ["LOCAL_RANK"] = str(local)
    return rank


def _store(job: Event, *, is_master: bool = False, listener: int | None = None) -> Any:
    from torch import distributed as dist

    host, port = job["store"]
    return dist.TCPStore(  # type: ignore[attr-defined]  # public, but not in the package's list
        host,
        port,
        job["ranks"],
        is_master=is_master,
        timeout=timedelta(seconds=job["timeout"]),
        master_listen_fd=listener,
    )


def _writer(events: int | None, answers: int | None) -> Callable[[Event], None]:
    """Write each event as a line to an open file; if the launcher answers, wait for that."""
    if events is None:
        return lambda _: None
    stream = open(events, "w", buffering=1)  # noqa: PTH123, SIM115  # open until this process ends

    def report(event: Event) -> None:
        print(json.dumps(event), file=stream)
        if answers is not None:
            os.read(answers, 1)

    return report


def _by_channel(launcher: str, host: str, port: str) -> RankContext:
    number = int(os.environ[VARIABLES[launcher][0]])
    connection = connect((host, int(port)), _secret(), "rank", number, JOIN_SECONDS)
    job = connection.receive()
    if job is None:
        raise ConnectionError(f"the launcher at {host}:{port} has ended")
    answered = threading.Event()
    threading.Thread(target=_end_with, args=(connection, answered), daemon=True).start()
    rank = _rank(launcher, job["ranks"])
    if host == LOOPBACK:  # all ranks are on this machine, so gloo listens on loopback only
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback_interface())
    store = _store(job)

    def report(event: Event) -> None:
        connection.send({"event": event})

    def failed(lines: list[str]) -> None:
        with suppress(OSError):  # the launcher is gone, and the reason with it
            connection.send({"failed": lines})
            answered.wait(ANSWER_SECONDS)

    return RankContext(module_of(job["task"]), job, rank, store, report if rank == 0 else lambda _: None, failed)


def _secret() -> str:
    """The launcher's secret, removed from the environment so that children do not inherit it."""
    shared = given()
    if shared is None:
        raise ValueError(f"no secret: got neither {VARIABLE} nor {FILE_VARIABLE}, expected one of them")
    for name in (VARIABLE, FILE_VARIABLE):
        os.environ.pop(name, None)
    return shared


def _end_with(connection: AuthenticatedConnection, answered: threading.Event) -> None:
    """End this process and its children when the connection to the launcher ends; until then, hear its answer."""
    try:
        while connection.receive() is not None:
            answered.set()
    finally:
        os.killpg(os.getpgrp(), signal.SIGKILL)  # every launcher gives each rank its own group


if __name__ == "__main__":
    main(sys.argv[1:])

"""The process of one rank: gets its job and its number, joins the group, runs its module.

python -m collectives.launch.rank LAUNCHER HOST:PORT   started by a command; connects to the
launcher (`channel`). main(LAUNCHER, FILE, MODULE)                           in a fork (`forks`),
which inherits its connection.

LAUNCHER selects the variables in which the rank finds its number. A job has the ranks' task, its
settings, the number of ranks, the timeout in seconds, the launcher's address and the address of the
group's store, which rank 0 keeps.
"""

import gc
import importlib
import os
import socket
import sys
import threading
import traceback
from contextlib import suppress
from datetime import timedelta
from queue import Empty, SimpleQueue
from typing import Any

from collectives.cause import Cause, Kind, noted
from collectives.launch.address import LOOPBACK, loopback_interface, reachable
from collectives.launch.channel import JOIN_SECONDS, Channel, Event, connect
from collectives.launch.request import module_of
from collectives.launch.secret import FILE_VARIABLE, VARIABLE, given
from collectives.processes import kill_group

# The longest that a failed rank waits for its launcher to receive the report.
ANSWER_SECONDS = 5.0

GLOO_LOST = ("Connection closed by peer", "Connection reset by peer")

# Variables in which each launcher sets the rank, the world size and the local rank.
TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
HYDRA = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID")
VARIABLES = {
    "loopback": TORCHRUN,
    "cluster": TORCHRUN,
    "torchrun": TORCHRUN,
    "horovodrun": ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK"),
    "mpirun": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    "mpich": HYDRA,
    "impi": HYDRA,
    "slurm": ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
}


def main(launcher: str, where: str, module: str = "") -> None:
    """Run ``module.run(settings, report)`` as one rank; only rank 0's reports go anywhere."""
    rank, ranks, local = (int(os.environ[name]) for name in VARIABLES[launcher])
    channel = _channel(where, rank)
    answers = SimpleQueue[Event]()
    try:
        job = channel.receive()
        if job is None:
            raise ConnectionError("the launcher has ended")
        threading.Thread(target=_end_with, args=(channel, answers), daemon=True).start()
        if ranks != job["ranks"]:
            raise RuntimeError(
                f"wrong number of ranks: got {ranks} from {launcher}, expected {job['ranks']}"
            )
        os.environ["LOCAL_RANK"] = str(local)
        _run(module or module_of(job["task"]), job, rank, channel, answers)
    except BaseException as error:
        # Exit at once: the library's threads would abort an orderly exit and hide the error.
        traceback.print_exc()
        sys.stderr.flush()
        with suppress(OSError, Empty):  # the launcher is gone, and the reason with it
            kind, failed, _, *seen = _cause(error, rank)
            lines = traceback.format_exc().splitlines()
            channel.send({"failed": lines, "cause": [kind, failed, *seen]})
            answers.get(timeout=ANSWER_SECONDS)
        os._exit(1)


def _cause(error: BaseException, rank: int) -> Cause:
    """Return why this rank fails, by the error that ends it.

    After a failed call of ours no other call of its group works, so a RuntimeError comes from that.
    """
    failed_call = noted()
    if failed_call and isinstance(error, RuntimeError):
        return failed_call
    # gloo says in its text alone that a peer has gone, and not which one.
    is_lost = isinstance(error, RuntimeError) and any(end in str(error) for end in GLOO_LOST)
    return Cause(Kind.LOST if is_lost else Kind.OWN, rank, str(error))


def _channel(where: str, rank: int) -> Channel:
    """Return the channel that this process has inherited, or a new one to an address with the launcher's secret."""
    if ":" not in where:
        return Channel(socket.socket(fileno=int(where)))
    shared = given()
    if shared is None:
        raise ValueError(
            f"no secret: got neither {VARIABLE} nor {FILE_VARIABLE}, expected one of them"
        )
    for name in (VARIABLE, FILE_VARIABLE):
        os.environ.pop(name, None)  # so that children do not inherit it
    host, _, port = where.partition(":")
    return connect((host, int(port)), shared, {"role": "rank", "rank": rank}, JOIN_SECONDS)


def _end_with(channel: Channel, answers: SimpleQueue[Event]) -> None:
    """End this process and its children when the connection to the launcher ends.

    Until then, pass its answers on.
    """
    try:
        while (answer := channel.receive()) is not None:
            answers.put(answer)
    finally:
        kill_group(os.getpgrp())  # every launcher gives each rank its own group


def _run(module: str, job: Event, rank: int, channel: Channel, answers: SimpleQueue[Event]) -> None:
    from torch import distributed as dist

    def report(event: Event) -> None:
        channel.send({"event": event})
        answers.get()

    if job["host"] == LOOPBACK:  # all ranks are on this machine, so gloo listens on loopback only
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback_interface())
    timeout = timedelta(seconds=job["timeout"])
    store = _store(job, channel)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=job["ranks"], timeout=timeout
    )
    importlib.import_module(module).run(job["settings"], report if rank == 0 else lambda _: None)
    dist.barrier()  # rank 0 keeps the store, so it may not end before all are done
    dist.destroy_process_group()
    # A thread of gloo that still frees a tensor while the interpreter ends aborts the process. A
    # group joins its threads when it is freed, so free those that only cycles hold.
    gc.collect()


def _store(job: Event, channel: Channel) -> Any:
    """Return the store of the ranks' group.

    Rank 0 keeps it, and the launcher passes its address on to the others.

    It holds no data of ours, because torch does not authenticate its peers.
    """
    from torch import distributed as dist

    limit = timedelta(seconds=job["timeout"])
    if "store" in job:
        host, port = job["store"]
        return dist.TCPStore(host, port, is_master=False, timeout=limit)  # type: ignore[attr-defined]
    try:
        listener = socket.create_server((job["host"], 0), backlog=job["ranks"] + 1)
    except OSError:  # the launcher is on another machine
        listener = socket.create_server((reachable(is_local=False), 0), backlog=job["ranks"] + 1)
    host, port = listener.getsockname()
    store = dist.TCPStore(  # type: ignore[attr-defined]  # public, but not in the package's list
        host,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=limit,
        master_listen_fd=listener.detach(),
    )
    channel.send({"store": [host, port]})
    return store


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Ranks as processes on this machine, joined by gloo over the loopback interface.

On Linux ranks are forks of one process (`fork_server`), which has imported torch and is kept for the next launch. No
rank outlives the launcher. Each rank has its own process group, which the launcher ends. If the launcher is killed, the
ranks are killed too. Nothing is left on disk, because logs, the store's socket and the pipes are file descriptors
without a name.
"""

import json
import os
import select
import socket
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from typing import IO

from collectives.launch.address import LOOPBACK, loopback_interface
from collectives.launch.fork_server import IS_SUPPORTED, fork_server, rank_command, wait_until_gone
from collectives.launch.request import Request, job_file
from collectives.processes import ChildProcess, Event, Log, end, open_streams, start, supervise


def launch(wanted: Request) -> list[Event]:
    """`collectives.launch.launch`, one process for each rank on this machine."""
    open_streams()
    ranks, variables = wanted.ranks, {"GLOO_SOCKET_IFNAME": loopback_interface()} | dict(wanted.environment)
    server = fork_server(wanted.environment, wanted.timeout) if IS_SUPPORTED else None
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server((LOOPBACK, 0), backlog=ranks + 1))
        events, events_end = _pipe(stack)
        lives, lives_end = _pipe(stack)
        stack.callback(wait_until_gone, lives)
        logs: list[Log] = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(ranks)]
        processes: list[ChildProcess] = []
        stack.callback(end, processes)
        job = {"module": wanted.module, "settings": wanted.settings, "timeout": wanted.timeout, "ranks": ranks}
        job |= {"store": listener.getsockname()} | ({} if server else {"launcher": os.getpid()})
        with events_end, lives_end, listener, job_file(job) as file:
            for rank, log in enumerate(logs):
                files = {"job": file, "lives": lives_end.fileno()}
                if rank == 0:
                    files |= {"listener": listener.fileno(), "events": events_end.fileno()}
                numbers = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank)}
                processes.append(_start(server, files, log, numbers | variables))
        names = [f"rank {rank} of {ranks}" for rank in range(ranks)]
        return supervise(names, processes, logs, reading(events), wanted.timeout, wanted.on_event)


def _pipe(stack: ExitStack) -> tuple[IO[bytes], IO[bytes]]:
    """A pipe's two ends; the stack closes the one for reading."""
    reader, writer = os.pipe()
    return stack.enter_context(os.fdopen(reader, "rb", buffering=0)), os.fdopen(writer, "wb")


def _start(server: str | None, files: dict[str, int], log: Log, environment: dict[str, str]) -> ChildProcess:
    """One rank: a fork of the server where there is one, else a process that imports everything itself."""
    named = [f"{name}={number}" for name, number in files.items()]
    alone = [sys.executable, "-m", "collectives.launch.rank", "loopback", *named]
    command = rank_command(server, "loopback", files) if server else alone
    return start(command, log, environment, list(files.values()))


def reading(stream: IO[bytes], event: Callable[[bytes], Event] = json.loads) -> Callable[[float], list[Event] | None]:
    """A function for `supervise` that returns the events in a stream's lines, by default JSON, and None at its end."""
    rest = b""

    def events(seconds: float) -> list[Event] | None:
        nonlocal rest
        if not select.select([stream], [], [], seconds)[0]:
            return []
        piece = stream.read(1 << 16)
        *lines, rest = (rest + piece).split(b"\n")
        return [event(line) for line in lines] if piece else None

    return events

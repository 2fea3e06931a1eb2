"""Ranks as processes on this machine, joined by gloo over the loopback interface.

No rank outlives the launcher. Each rank has its own process group, which the launcher ends. If the launcher is killed,
the ranks are killed too, but not their children. Nothing is left on disk, because logs, the store's socket and the pipe
of events are file descriptors without a name.
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
from collectives.launch.request import Request
from collectives.processes.supervise import Event, Log, Process, end, open_streams, start, supervise


def launch(wanted: Request) -> list[Event]:
    """`collectives.launch.launch`, one process for each rank on this machine."""
    open_streams()
    ranks = wanted.ranks
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server((LOOPBACK, 0), backlog=ranks + 1))
        reader, writer = os.pipe()
        events = stack.enter_context(os.fdopen(reader, "rb", buffering=0))
        logs: list[Log] = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(ranks)]
        processes: list[Process] = []
        stack.callback(end, processes)
        with os.fdopen(writer, "wb"):
            for rank, log in enumerate(logs):
                job = {"module": wanted.module, "settings": wanted.settings, "timeout": wanted.timeout}
                if rank == 0:
                    job |= {"listener": listener.fileno(), "events": writer}
                job |= {"rank": rank, "ranks": ranks, "port": listener.getsockname()[1], "launcher": os.getpid()}
                processes.append(_start(job, log, dict(wanted.environment)))
        listener.close()
        names = [f"rank {rank} of {ranks}" for rank in range(ranks)]
        return supervise(names, processes, logs, reading(events), wanted.timeout, wanted.on_event)


def _start(job: Event, log: Log, environment: dict[str, str]) -> Process:
    command = [sys.executable, "-m", "collectives.launch.rank", json.dumps(job)]
    own = {"GLOO_SOCKET_IFNAME": loopback_interface(), "LOCAL_RANK": str(job["rank"])}
    return start(command, log, own | environment, [job[name] for name in ("listener", "events") if name in job])


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

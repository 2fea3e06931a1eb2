"""Ranks as processes on this machine, joined by gloo over the loopback interface.

    launch("collectives.bench.measure", settings, ranks=4, timeout=600)

starts four processes that call ``collectives.bench.measure.run(settings, report)`` within a process group, and returns
what rank 0 reported. Nothing outlives the launcher and nothing is left on disk: each rank has its own process group and
dies with its parent; logs, the meeting point and the report are open file descriptors, not files.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import IO, Any

Event = dict[str, Any]
Log = IO[bytes]
Process = subprocess.Popen[bytes]

LAST_LINES = 20
POLL_SECONDS = 0.05


class RankError(RuntimeError):
    """A rank failed, or the ranks took too long; the message ends with the rank's last lines."""


def launch(
    module: str,
    settings: Event,
    ranks: int,
    *,
    timeout: float,
    on_event: Callable[[Event], None] = lambda _: None,
) -> list[Event]:
    """Run ``module.run(settings, report)`` on so many ranks; returns every event that rank 0 reported, in order.

    ``on_event`` sees each event when it comes. Raises RankError when a rank fails or when ``timeout`` seconds are
    over; all ranks are gone by then.
    """
    if ranks < 1:
        raise ValueError(f"ranks must be at least 1, not {ranks}")
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=ranks + 1))
        reader, writer = os.pipe()
        events = stack.enter_context(os.fdopen(reader, "rb", buffering=0))
        logs: list[Log] = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(ranks)]
        processes: list[Process] = []
        stack.callback(_end, processes)
        with os.fdopen(writer, "wb"):
            for rank, log in enumerate(logs):
                job = {"module": module, "settings": settings, "timeout": timeout, "launcher": os.getpid()}
                if rank == 0:
                    job |= {"listener": listener.fileno(), "events": writer}
                job |= {"rank": rank, "ranks": ranks, "port": listener.getsockname()[1]}
                processes.append(_start(job, log))
        listener.close()
        seen = []
        for event in _watch(processes, logs, events, time.monotonic() + timeout):
            seen.append(event)
            on_event(event)
        return seen


def _start(job: Event, log: Log) -> Process:
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    return subprocess.Popen(
        [sys.executable, "-m", "collectives.launch.rank", json.dumps(job)],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env=os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": loopback},
        pass_fds=[job[name] for name in ("listener", "events") if name in job],
        start_new_session=True,
    )


def _watch(processes: list[Process], logs: list[Log], events: IO[bytes], deadline: float) -> Iterator[Event]:
    """Events as they come, until every rank has ended well."""
    text, is_open = b"", True
    while is_open or any(process.poll() is None for process in processes):
        if is_open and select.select([events], [], [], POLL_SECONDS)[0]:
            piece = events.read(1 << 16)
            is_open = bool(piece)
            *lines, text = (text + piece).split(b"\n")
            yield from map(json.loads, lines)
        elif not is_open:
            time.sleep(POLL_SECONDS)
        _need_well(processes, logs, deadline)
    _need_well(processes, logs, deadline)


def _need_well(processes: list[Process], logs: list[Log], deadline: float) -> None:
    if any(process.poll() for process in processes):
        raise RankError(_first_failure(processes, logs))
    late = [rank for rank, process in enumerate(processes) if process.returncode is None]
    if late and time.monotonic() > deadline:
        raise RankError(
            f"rank {late[0]} of {len(processes)} is not done in time; its last lines:\n{_last_lines(logs[late[0]])}"
        )


def _first_failure(processes: list[Process], logs: list[Log]) -> str:
    """One failing rank brings the others down: the first is the one whose last words are the oldest."""
    failed = [rank for rank, process in enumerate(processes) if process.poll()]
    rank = min(failed, key=lambda rank: os.fstat(logs[rank].fileno()).st_mtime_ns)
    code = processes[rank].returncode
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return f"rank {rank} of {len(processes)} {how}; its last lines:\n{_last_lines(logs[rank])}"


def _last_lines(log: Log) -> str:
    log.seek(0)
    lines = log.read().decode(errors="replace").splitlines()[-LAST_LINES:]
    return "\n".join(f"    {line}" for line in lines or ["(nothing was printed)"])


def _end(processes: list[Process]) -> None:
    """Kill whatever is left of every rank's process group, and wait for it."""
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    for process in processes:
        process.wait()

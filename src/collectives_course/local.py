"""Run a function on ranks that are threads of this process, without a sandbox: for a student's own tests."""

import socket
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from collectives_course.rank import serve
from collectives_course.world import Channel, Network, RunResult, World


def run(
    function: Callable[..., Any],
    arguments: Sequence[Sequence[Any]],
    network: Network | None = None,
    limit: float = 5.0,
    world: type[World] = World,
    **more: Any,
) -> RunResult:
    """Call ``function(comm, *arguments[r])`` on a rank r for each list of arguments.

    The result has, for each rank, the value and the arrays among the arguments as the function left
    them; all messages; and the simulated time in seconds. Raises `Failed` for a deadlock, and
    `Crashed` where the function raised an error.

    >>> def shift(comm, array):
    ...     into = array.copy()
    ...     comm.sendrecv(array, (comm.rank + 1) % comm.size, into, (comm.rank - 1) % comm.size)
    ...     array[:] = into
    >>> import numpy as np
    >>> result = run(shift, [[np.full(2, rank)] for rank in range(3)])
    >>> [after[0].tolist() for after in result.arguments], len(result.sent)
    ([[2, 2], [0, 0], [1, 1]], 3)
    """
    file = Path(function.__code__.co_filename).name
    module = ModuleType("submission")
    module.call = function  # type: ignore[attr-defined]
    pairs = [socket.socketpair() for _ in arguments]
    threads = [
        threading.Thread(target=_serve, args=(theirs, module), daemon=True) for _, theirs in pairs
    ]
    for thread in threads:
        thread.start()
    try:
        stacks = [partial(_line, thread) for thread in threads]
        channels = [
            Channel(ours, stack=stack) for (ours, _), stack in zip(pairs, stacks, strict=True)
        ]
        return world(channels, network or Network(), limit, file, **more).run(
            "call", [list(each) for each in arguments]
        )
    finally:
        for ours, _ in pairs:
            ours.close()
        for thread in threads:
            thread.join(0.5)


def _serve(connection: socket.socket, module: ModuleType) -> None:
    with connection, suppress(OSError):  # the run ended before this rank did
        serve(connection, lambda _file: module)


def _line(thread: threading.Thread, file: str) -> int:
    """Return the line of a file at which a thread is, or 0."""
    frame = sys._current_frames().get(thread.ident or 0)
    lines = [
        line for each, line in traceback.walk_stack(frame) if each.f_code.co_filename.endswith(file)
    ]
    return lines[0] if lines else 0

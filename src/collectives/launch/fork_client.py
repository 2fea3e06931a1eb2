"""What the launcher or mpirun starts on a host for each rank: it has the rank forked, and ends as the rank does.

Run as a script, ``python fork_client.py SERVER JOB``, it needs nothing but Python, so that it costs no time; the
other end is `fork_server`. Its parent sees an ordinary process: its exit code, the signal that ended it, its output.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from contextlib import suppress

# The files that a job may name by number, behind those for input, output and errors.
FILES = ("events", "answers")
STREAMS = 3


def connection(server: str) -> str:
    """Where the fork server of a launch listens: a name that each host's network has for itself, and no file."""
    return f"\0collectives/{server}"


def main(server: str, text: str) -> None:
    """Ask for the rank, hand it everything that this process has been given, and wait for its end."""
    job = json.loads(text)
    files = _files(job)
    request = {"job": job, "files": list(files), "environment": dict(os.environ), "directory": os.getcwd()}  # noqa: PTH109
    answer = b""
    with suppress(ConnectionError), socket.socket(socket.AF_UNIX) as asked:
        asked.connect(connection(server))
        socket.send_fds(asked, [b"\n"], [*range(STREAMS), *files.values()])
        asked.sendall(json.dumps(request).encode())
        asked.shutdown(socket.SHUT_WR)
        answer = asked.recv(16)
    if not answer:
        sys.exit("the fork server has ended before the rank, or is another user's")
    _end_as(int(answer))


def _files(job: dict[str, object]) -> dict[str, int]:
    """The job's files. mpirun hands none down to rank 0, but its own can be opened."""
    given = {name: int(str(job[name])) for name in FILES if name in job}
    if "rank" in job:
        return given
    if os.environ["OMPI_COMM_WORLD_RANK"] != "0":
        return {}
    return {name: os.open(f"/proc/{os.getppid()}/fd/{number}", os.O_WRONLY) for name, number in given.items()}


def _end_as(code: int) -> None:
    """Exit with this code, or by this signal where it is negative."""
    if code < 0:
        if -code != signal.SIGKILL:  # which nobody can handle, and Python handles or ignores some others
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    main(*sys.argv[1:])

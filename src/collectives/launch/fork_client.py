"""The client of a fork server: requests a rank on its host, and ends with the rank's exit code or signal.

It is a script, ``python fork_client.py SERVER LAUNCHER job=5 events=6``, as `rank` is, but on a server's host. It
imports Python's own modules only, so that it starts fast.
The other end is `fork_server`. To its parent it looks like the rank: the same exit code, signal and output.
"""

import json
import os
import signal
import socket
import sys
from contextlib import suppress

# The files that the arguments may name by number, after those for input, output and errors. The job is in a file,
# because every user can read a command line, and because its length is limited.
FILES = ("job", "events", "answers", "listener", "lives")
STREAMS = 3


def connection(server: str) -> str:
    """The abstract Unix address of a fork server: each host's network namespace has its own, and no file."""
    return f"\0collectives/{server}"


def main(server: str, launcher: str, *arguments: str) -> None:
    """Request the rank, pass it this process's environment and open files, and wait for its end."""
    files = _files(launcher, {name: int(number) for name, _, number in (each.partition("=") for each in arguments)})
    request = {"launcher": launcher, "files": list(files), "environment": dict(os.environ), "directory": os.getcwd()}  # noqa: PTH109
    answer = b""
    with suppress(ConnectionError), socket.socket(socket.AF_UNIX) as asked:
        asked.connect(connection(server))
        user = asked.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[4:8]  # process, user, group
        if int.from_bytes(user, sys.byteorder) != os.geteuid():  # the name is free once a server has ended
            raise ConnectionError
        socket.send_fds(asked, [b"\n"], [*range(STREAMS), *files.values()])
        asked.sendall(json.dumps(request).encode())
        asked.shutdown(socket.SHUT_WR)
        answer = asked.recv(16)
    if not answer:
        sys.exit("no rank: the fork server has ended, or is another user's")
    _end_as(int(answer))


def _files(launcher: str, given: dict[str, int]) -> dict[str, int]:
    """The rank's files. mpirun and its daemons pass none on: ranks open their parent's, and only rank 0 reports."""
    if launcher != "mpirun":
        return given
    modes = {"job": os.O_RDONLY} | ({"events": os.O_WRONLY} if os.environ["OMPI_COMM_WORLD_RANK"] == "0" else {})
    return {name: os.open(f"/proc/{os.getppid()}/fd/{given[name]}", mode) for name, mode in modes.items()}


def _end_as(code: int) -> None:
    """Exit with this code, or by this signal where it is negative."""
    if code < 0:
        if -code != signal.SIGKILL:  # SIGKILL has no handler; Python handles or ignores some others
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    main(*sys.argv[1:])

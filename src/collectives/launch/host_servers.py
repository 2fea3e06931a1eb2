"""Fork servers on emulated hosts: a fork of this machine's server enters each host, and serves ranks there.

Thirty-two imports of torch keep two cores busy for most of a minute and fill the memory with 32 copies. Here one
process imports (`fork_server`), a fork of it imports the ranks' module, and a fork of that enters each host. A module
may have a function ``preload``, which imports more of what its ranks share.

Each of these processes is killed when its parent ends, so all end with the first, and that with its launcher.
"""

import ctypes
import json
import os
import select
import socket
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import IO

from collectives.launch.fork_client import connection
from collectives.launch.fork_server import BACKLOG, READY, fork, fork_server, preload, rank_command, serve
from collectives.processes import RankError, end, last_lines, start
from collectives.processes.parent_death import die_with

NAMESPACES = ("user", "net", "uts", "pid", "mnt")  # in the order in which they are entered
GONE_SECONDS = 5.0
FAILED = b"!"  # what a host's server reports if it is not ready


@contextmanager
def host_servers(pids: Sequence[int], module: str, environment: Mapping[str, str], seconds: float) -> Iterator[str]:
    """A fork server on each host, for ranks that run ``module``; yields the servers' common name.

    ``pids`` are the hosts' first processes; ``environment`` is that of the ranks, and counts for the imports too.
    Raises RankError if the servers are not ready within ``seconds``. All forks have ended afterwards.
    """
    name, (reader, writer) = uuid.uuid4().hex, os.pipe()
    with os.fdopen(reader, "rb", buffering=0) as lives, tempfile.TemporaryFile() as log:
        with os.fdopen(writer, "wb"):
            job = {"hosts": list(pids), "module": module, "name": name, "lives": writer, "rank": 0}
            process = start(rank_command(fork_server(environment, seconds), job), log, dict(environment), [writer])
        try:
            if not _heard(lives, len(pids), seconds):
                raise RankError(f"the fork servers did not start; {last_lines(log)}")
            yield name
        finally:
            end([process])
            wait_until_gone(lives)


def wait_until_gone(lives: IO[bytes]) -> None:
    """Wait until no process holds the other end of this pipe: for servers, and for the ranks of one launch."""
    _heard(lives, sys.maxsize, GONE_SECONDS)


def _heard(lives: IO[bytes], count: int, seconds: float) -> bool:
    """Whether ``count`` servers report that they are ready, each within ``seconds``; False once all have ended."""
    return all(select.select([lives], [], [], seconds)[0] and lives.read(1) == READY for _ in range(count))


def main(arguments: list[str]) -> None:
    """Import the ranks' module, fork a server on every host, and wait until the launcher ends us."""
    job = json.loads(*arguments)
    os.set_inheritable(job["lives"], False)  # children of ranks do not hold it open
    preload(job["module"])
    own = os.getpid()
    for pid in job["hosts"]:
        fork(_enter, own, pid, job["name"], job["lives"])
    with suppress(ChildProcessError):
        while True:
            os.wait()


def _enter(parent: int, pid: int, name: str, lives: int) -> None:
    """Enter a host and fork there: only a child gets a process number of the host. Waits for that child."""
    directory = os.getcwd()  # noqa: PTH109
    try:
        _set_namespaces(pid)
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        sys.stderr.flush()
        os.write(lives, FAILED)
        os._exit(1)
    die_with(parent)  # only now: entering a user namespace clears it
    os.chdir(directory)
    os.waitpid(fork(_serve, name, lives), 0)
    os._exit(0)


def _set_namespaces(pid: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    with ExitStack() as stack:
        files = [stack.enter_context(open(f"/proc/{pid}/ns/{name}", "rb")) for name in NAMESPACES]  # noqa: PTH123
        own = stack.enter_context(open("/proc/self/ns/user", "rb"))  # noqa: PTH123
        for file in files:
            if not os.path.sameopenfile(file.fileno(), own.fileno()) and libc.setns(file.fileno(), 0):
                raise OSError(code := ctypes.get_errno(), f"{file.name}: {os.strerror(code)}")


def _serve(name: str, lives: int) -> None:
    die_with(0)  # a parent outside the host has number 0 here
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(connection(name))
        listener.listen(BACKLOG)
        os.write(lives, READY)
        serve(listener)

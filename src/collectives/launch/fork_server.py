"""Ranks on emulated hosts as forks of one process, which has imported torch and the ranks' module once for all of them.

Thirty-two processes that import torch keep two cores busy for most of a minute, and each fills memory of its own with
the same. Here one does it. It leaves a fork of itself on every host, and what is started there by `rank_command`
(`fork_client`) sends that fork its job, its environment and its open files: the fork forks again, and that is the rank.

Each of these processes is killed when the one that made it ends, so all end with the first, and that with its launcher.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import IO, Any

from collectives.launch import fork_client, rank
from collectives.processes.parent_death import die_with
from collectives.processes.supervise import Event, RankError, end, last_lines, start

NAMESPACES = ("user", "net", "uts", "pid", "mnt")  # in the order in which they are entered
MOST_FILES = fork_client.STREAMS + len(fork_client.FILES)
BACKLOG = 256  # as many ranks may be asked for at once
GONE_SECONDS = 5.0

# What each host's server says.
READY, FAILED = b".", b"!"


@contextmanager
def forkserver(pids: Sequence[int], module: str, environment: Mapping[str, str], seconds: float) -> Iterator[str]:
    """A server on each of the hosts whose first processes these are, for ranks that run ``module``; yields its name.

    It imports in the environment that the ranks will have. Raises RankError where it is not ready within ``seconds``.
    All that was forked is gone afterwards.
    """
    reader, writer = os.pipe()
    command = [sys.executable, "-m", "collectives.launch.fork_server"]
    job = [str(os.getpid()), str(writer), module, *map(str, pids)]
    with os.fdopen(reader, "rb", buffering=0) as lives, tempfile.TemporaryFile() as log:
        with os.fdopen(writer, "wb"):
            process = start([*command, *job], log, dict(environment), [writer])
        try:
            if not _heard(lives, len(pids), seconds):
                raise RankError(f"the ranks' fork server did not start; {last_lines(log)}")
            yield str(process.pid)
        finally:
            end([process])
            _heard(lives, sys.maxsize, GONE_SECONDS)


def rank_command(server: str, job: Event) -> list[str]:
    """What to run on a host so that it becomes a rank with this job."""
    return [sys.executable, "-I", "-S", fork_client.__file__, server, json.dumps(job)]


def _heard(lives: IO[bytes], count: int, seconds: float) -> bool:
    """Whether so many servers say in so many seconds each that they are ready; no more can when all have ended."""
    return all(select.select([lives], [], [], seconds)[0] and lives.read(1) == READY for _ in range(count))


def main(launcher: int, lives: int, module: str, *pids: int) -> None:
    """Import, leave a server on every host, and wait for the launcher to end us."""
    die_with(launcher)
    os.set_inheritable(lives, False)  # what ranks start does not hold it open
    for name in ("torch.distributed", module):
        with suppress(Exception):  # the ranks fail in the same way, and say why
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # what is there now stays where it is: nothing of it is copied because it was looked through
    own = os.getpid()
    for pid in pids:
        _fork(_enter, own, pid, lives)
    with suppress(ChildProcessError):
        while True:
            os.wait()


def _fork(do: Callable[..., None], *arguments: Any) -> int:
    """A child that does this and ends in Python's orderly way, as back ends have things to do at exit."""
    child = os.fork()
    if child == 0:
        do(*arguments)
        sys.exit()
    return child


def _enter(parent: int, pid: int, lives: int) -> None:
    """Enter a host, where only a child's process number is one of the host's, and wait for that child."""
    directory = os.getcwd()  # noqa: PTH109
    try:
        _set_namespaces(pid)
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        sys.stderr.flush()
        os.write(lives, FAILED)
        os._exit(1)
    die_with(parent)  # only now: a process that becomes another user's is released from it
    os.chdir(directory)
    os.waitpid(_fork(_serve, str(parent), lives), 0)
    os._exit(0)


def _set_namespaces(pid: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    with ExitStack() as stack:
        files = [stack.enter_context(open(f"/proc/{pid}/ns/{name}", "rb")) for name in NAMESPACES]  # noqa: PTH123
        own = stack.enter_context(open("/proc/self/ns/user", "rb"))  # noqa: PTH123
        for file in files:
            if not os.path.sameopenfile(file.fileno(), own.fileno()) and libc.setns(file.fileno(), 0):
                raise OSError(code := ctypes.get_errno(), f"{file.name}: {os.strerror(code)}")


def _serve(server: str, lives: int) -> None:
    """On a host: for each connection fork a rank, and who looks after it."""
    die_with(0)  # so our parent's number reads here, as it is not one of the host's processes
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    own = os.getpid()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(fork_client.connection(server))
        listener.listen(BACKLOG)
        os.write(lives, READY)
        while True:
            asking, _ = listener.accept()
            with asking:
                if _user(asking) == os.geteuid():  # another user's processes on the host get nothing run
                    _fork(_look_after, own, asking)


def _user(peer: socket.socket) -> int:
    """Of the process at the other end, as the kernel says."""
    _, user, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return int(user)


def _look_after(parent: int, asking: socket.socket) -> None:
    """Fork a rank, and tell who asked for it how it has ended."""
    die_with(parent)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    text, files, _, _ = socket.recv_fds(asking, 1 << 16, MOST_FILES)
    while piece := asking.recv(1 << 16):
        text += piece
    child = _fork(_be, os.getpid(), json.loads(text), files)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with suppress(OSError):  # who asked may be gone
        asking.sendall(str(code).encode())
    os._exit(0)


def _be(parent: int, request: Event, files: Sequence[int]) -> None:
    """Be a rank, as if it had been started where the request comes from."""
    die_with(parent)
    os.setsid()
    for stream in range(fork_client.STREAMS):
        os.dup2(files[stream], stream)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    job = {name: value for name, value in request["job"].items() if name not in fork_client.FILES}
    rank.main([json.dumps(job | dict(zip(request["files"], files[fork_client.STREAMS :], strict=True)))])


if __name__ == "__main__":
    launcher, lives, module, *pids = sys.argv[1:]
    main(int(launcher), int(lives), module, *map(int, pids))

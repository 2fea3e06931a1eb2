"""Fork servers: ranks on emulated hosts as forks of one process, which imports torch and the ranks' module once.

Thirty-two imports of torch keep two cores busy for most of a minute and fill the memory with 32 copies. Here one
process imports, and forks a server on every host. `rank_command` starts a `fork_client` there, which sends the server
its job, its environment and its open files; the server forks again, and that process is the rank.

Each of these processes is killed when its parent ends, so all end with the first, and that with its launcher.
"""

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
BACKLOG = 256  # ranks requested at the same time
GONE_SECONDS = 5.0

# What each host's server reports.
READY, FAILED = b".", b"!"


@contextmanager
def fork_servers(pids: Sequence[int], module: str, environment: Mapping[str, str], seconds: float) -> Iterator[str]:
    """A fork server on each host, for ranks that run ``module``; yields the servers' common name.

    ``pids`` are the hosts' first processes; ``environment`` is that of the ranks, and counts for the imports too.
    Raises RankError if the servers are not ready within ``seconds``. All forks have ended afterwards.
    """
    reader, writer = os.pipe()
    command = [sys.executable, "-m", "collectives.launch.fork_server"]
    job = [str(os.getpid()), str(writer), module, *map(str, pids)]
    with os.fdopen(reader, "rb", buffering=0) as lives, tempfile.TemporaryFile() as log:
        with os.fdopen(writer, "wb"):
            process = start([*command, *job], log, dict(environment), [writer])
        try:
            if not _heard(lives, len(pids), seconds):
                raise RankError(f"the fork servers did not start; {last_lines(log)}")
            yield str(process.pid)
        finally:
            end([process])
            _heard(lives, sys.maxsize, GONE_SECONDS)


def rank_command(server: str, job: Event) -> list[str]:
    """The command that becomes a rank with this job on a host."""
    return [sys.executable, "-I", "-S", fork_client.__file__, server, json.dumps(job)]


def _heard(lives: IO[bytes], count: int, seconds: float) -> bool:
    """Whether ``count`` servers report that they are ready, each within ``seconds``; False once all have ended."""
    return all(select.select([lives], [], [], seconds)[0] and lives.read(1) == READY for _ in range(count))


def main(launcher: int, lives: int, module: str, *pids: int) -> None:
    """Import, fork a server on every host, and wait until the launcher ends us."""
    die_with(launcher)
    os.set_inheritable(lives, False)  # children of ranks do not hold it open
    for name in ("torch.distributed", module):
        with suppress(Exception):  # the ranks fail in the same way and report it
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # the collector leaves these objects alone, so their pages stay shared
    own = os.getpid()
    for pid in pids:
        _fork(_enter, own, pid, lives)
    with suppress(ChildProcessError):
        while True:
            os.wait()


def _fork(do: Callable[..., None], *arguments: Any) -> int:
    """A child that does this and exits in an orderly way, because back ends have exit handlers."""
    child = os.fork()
    if child == 0:
        do(*arguments)
        sys.exit()
    return child


def _enter(parent: int, pid: int, lives: int) -> None:
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
    """On a host: for each connection fork a rank and its supervisor."""
    die_with(0)  # a parent outside the host has number 0 here
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    own = os.getpid()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(fork_client.connection(server))
        listener.listen(BACKLOG)
        os.write(lives, READY)
        while True:
            client, _ = listener.accept()
            with client:
                if _user(client) == os.geteuid():  # other users' processes on the host are refused
                    _fork(_supervise_rank, own, client)


def _user(peer: socket.socket) -> int:
    """The user of the process at the other end, from the kernel."""
    _, user, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return int(user)


def _supervise_rank(parent: int, client: socket.socket) -> None:
    """Fork a rank, and send its exit code to the client."""
    die_with(parent)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    text, files, _, _ = socket.recv_fds(client, 1 << 16, MOST_FILES)
    while piece := client.recv(1 << 16):
        text += piece
    child = _fork(_become_rank, os.getpid(), json.loads(text), files)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with suppress(OSError):  # the client may have ended
        client.sendall(str(code).encode())
    os._exit(0)


def _become_rank(parent: int, request: Event, files: Sequence[int]) -> None:
    """Become a rank with the client's environment, directory and open files."""
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

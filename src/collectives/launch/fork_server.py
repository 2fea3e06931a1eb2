"""The fork server of this machine: ranks as forks of one process, which is kept between launches.

A rank needs two to three seconds of processor time to import torch and to load the compiled executor. A fork of a
process that has done so needs milliseconds. The server starts with the first launch and ends with the process that
started it. It imports modules of this library, never yours: the next launch reads a module that you have edited.

`rank_command` starts a `fork_client`, which sends the server its environment and its open files. The server
forks, and that process is the rank. It and its process group end with the client.

On emulated hosts `host_servers` has a fork of this server import the ranks' module; a fork of that enters each host and
serves ranks there. Thirty-two imports of torch would keep two cores busy for most of a minute and fill the memory with
32 copies. A module may have a function ``preload``, which imports more of what its ranks share.

Each of these processes is killed when its parent ends, so all end with the first, and that with its launcher.
"""

import atexit
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import IO, Any, NamedTuple

from collectives.launch import fork_client
from collectives.launch.request import job_file, read_job
from collectives.processes import ChildProcess, Event, RankError, die_with, end, is_ours, last_lines, start

IS_SUPPORTED = sys.platform == "linux"  # abstract sockets, and children that the kernel kills with their parent
PRELOADED = "collectives.bench.measure"
MOST_FILES = fork_client.STREAMS + len(fork_client.FILES)
BACKLOG = 256  # ranks requested at the same time
READY = b"."
HOSTS = "hosts"  # the launcher of servers on emulated hosts, as a client names it
FAILED = b"!"  # what a host's server reports if it is not ready
NAMESPACES = ("user", "net", "uts", "pid", "mnt")  # of a host, in the order in which they are entered
GONE_SECONDS = 5.0
RETRY_SECONDS = 0.1

# Beginnings of the variables that count when a library is loaded. Ranks get all other variables anew.
# fmt: off
AT_IMPORT = ("HOME", "KMP_", "LANG", "LC_", "LD_", "MALLOC_", "MKL_", "NUMBA_", "OMP_", "OPENBLAS_", "PATH", "PYTHON",
             "TMPDIR", "TORCH", "TZ", "VIRTUAL_ENV", "XDG_")
# fmt: on


class ForkServer(NamedTuple):
    """A running fork server; it ends when ``control`` is closed."""

    name: str
    process: ChildProcess
    control: socket.socket


_servers: dict[tuple[object, ...], ForkServer] = {}
_starting = threading.Lock()


def fork_server(environment: Mapping[str, str], seconds: float) -> str:
    """The name of a fork server for ranks with this environment; starts one where none is running.

    Raises RankError if it is not ready within ``seconds``.
    """
    whole = os.environ | environment
    loaded = sorted(item for item in whole.items() if item[0].startswith(AT_IMPORT))
    key = os.getpid(), os.getcwd(), *loaded  # noqa: PTH109
    with _starting:
        if key not in _servers or _servers[key].process.poll() is not None:
            _servers[key] = _start(environment, seconds)
        return _servers[key].name


def rank_command(server: str, launcher: str, files: Mapping[str, int]) -> list[str]:
    """The command that becomes a rank with these open files (`rank`), where a server of this name runs."""
    named = [f"{name}={number}" for name, number in files.items()]
    return [sys.executable, "-I", "-S", fork_client.__file__, server, launcher, *named]


def _start(environment: Mapping[str, str], seconds: float) -> ForkServer:
    name, (ours, theirs) = uuid.uuid4().hex, socket.socketpair()
    ours.settimeout(seconds)
    with theirs, _listener(name) as listener, tempfile.TemporaryFile() as log:
        files = [theirs.fileno(), listener.fileno()]
        command = [sys.executable, "-m", "collectives.launch.fork_server", *map(str, files)]
        process = start(command, log, dict(environment), files)
        theirs.close()
        try:
            if ours.recv(1) != READY:
                raise RankError(f"the fork server ended at its start; {last_lines(log)}")
        except BaseException as error:
            end([process])
            ours.close()
            if isinstance(error, TimeoutError):
                raise RankError(f"the fork server timed out after {seconds:g} s; {last_lines(log)}") from None
            raise
    server = ForkServer(name, process, ours)
    atexit.register(_stop, os.getpid(), server)
    return server


def _listener(name: str) -> socket.socket:
    """Return the listening socket of a server; nobody else knows its name before, so nobody can have taken it."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(fork_client.connection(name))
    listener.listen(BACKLOG)
    return listener


def _stop(owner: int, server: ForkServer) -> None:
    server.control.close()
    if os.getpid() == owner:  # a fork of the owner has this handler, too
        end([server.process])


def main(control: str, clients: str) -> None:
    """Import, and fork a rank for each client until the launcher closes its end of ``control`` or has ended."""
    with socket.socket(fileno=int(control)) as launcher, socket.socket(fileno=int(clients)) as listener:
        preload(PRELOADED)
        launcher.sendall(READY)
        serve(listener, launcher)


def preload(module: str) -> None:
    """Import what the ranks share."""
    for name in ("torch.distributed", module):
        with suppress(Exception):  # the ranks fail in the same way and report it
            getattr(importlib.import_module(name), "preload", lambda: None)()
    gc.collect()
    gc.freeze()  # the collector leaves these objects alone, so their pages stay shared


def fork(do: Callable[..., None], *arguments: Any) -> int:
    """A child that does this and exits in an orderly way, because back ends have exit handlers."""
    child = os.fork()
    if child == 0:
        do(*arguments)
        sys.exit()
    return child


def serve(listener: socket.socket, *until: socket.socket) -> None:
    """For each connection fork a rank and its supervisor, until one of the other sockets is closed at its other end."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    own = os.getpid()
    while listener in select.select([listener, *until], [], [])[0]:
        try:
            client, _ = listener.accept()
            with client:
                if is_ours(client):  # other users' processes are refused
                    fork(_supervise, own, client)
        except OSError:  # no descriptor or process is free now; a client that waits is accepted later
            if os.getpid() != own:
                raise
            time.sleep(RETRY_SECONDS)


def _supervise(parent: int, client: socket.socket) -> None:
    """Fork a rank, and send its exit code to the client. When either has ended, end the rank's process group."""
    die_with(parent)
    changes, wakeup = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wakeup)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    text, files, _, _ = socket.recv_fds(client, 1 << 16, MOST_FILES)
    while piece := client.recv(1 << 16):
        text += piece
    child = fork(_become, os.getpid(), json.loads(text), files)
    _wait_for_either(client, child, changes)
    os.kill(child, signal.SIGKILL)
    with suppress(ProcessLookupError):  # it had no group of its own yet
        os.killpg(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with suppress(OSError):  # the client may have ended
        client.sendall(str(code).encode())
    os._exit(0)


def _wait_for_either(client: socket.socket, child: int, changes: int) -> None:
    """Wait until the client or the child has ended; a byte in ``changes`` may also say that the child was stopped."""
    either = select.poll()
    either.register(client, 0)  # the kernel reports that it hung up, without being asked
    either.register(changes, select.POLLIN)
    while not os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        if client.fileno() in dict(either.poll()):
            return
        os.read(changes, 1 << 10)


def _become(parent: int, request: Event, files: Sequence[int]) -> None:
    """Become a rank, or the servers on emulated hosts, with the client's environment, directory and open files."""
    die_with(parent)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    for stream in range(fork_client.STREAMS):
        os.dup2(files[stream], stream)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    _draw_anew()
    numbers = dict(zip(request["files"], files[fork_client.STREAMS :], strict=True))
    if request["launcher"] == HOSTS:
        _serve_hosts(numbers["job"], numbers["lives"])
    else:
        named = [f"{name}={number}" for name, number in numbers.items()]
        importlib.import_module("collectives.launch.rank").main([request["launcher"], *named])


def _draw_anew() -> None:
    """All forks would draw the same numbers from numpy; Python's own module sees to itself."""
    import numpy as np

    np.random.seed()  # noqa: NPY002


@contextmanager
def host_servers(pids: Sequence[int], module: str, environment: Mapping[str, str], seconds: float) -> Iterator[str]:
    """A fork server on each host, for ranks that run ``module``; yields the servers' common name.

    ``pids`` are the hosts' first processes; ``environment`` is that of the ranks, and counts for the imports too.
    Raises RankError if the servers are not ready within ``seconds``. All forks have ended afterwards.
    """
    name, (reader, writer) = uuid.uuid4().hex, os.pipe()
    with os.fdopen(reader, "rb", buffering=0) as lives, tempfile.TemporaryFile() as log:
        with os.fdopen(writer, "wb"), job_file({"hosts": list(pids), "module": module, "name": name}) as job:
            command = rank_command(fork_server(environment, seconds), HOSTS, {"job": job, "lives": writer})
            process = start(command, log, dict(environment), [job, writer])
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


def _serve_hosts(file: int, lives: int) -> None:
    """Import the ranks' module, fork a server on every host, and wait until the launcher ends us."""
    os.set_inheritable(lives, False)  # children of ranks do not hold it open
    job = read_job(file)
    preload(job["module"])
    own = os.getpid()
    for pid in job["hosts"]:
        fork(_enter_host, own, pid, job["name"], lives)
    with suppress(ChildProcessError):
        while True:
            os.wait()


def _enter_host(parent: int, pid: int, name: str, lives: int) -> None:
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
    os.waitpid(fork(_serve_host, name, lives), 0)
    os._exit(0)


def _set_namespaces(pid: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    with ExitStack() as stack:
        files = [stack.enter_context(open(f"/proc/{pid}/ns/{name}", "rb")) for name in NAMESPACES]  # noqa: PTH123
        own = stack.enter_context(open("/proc/self/ns/user", "rb"))  # noqa: PTH123
        for file in files:
            if not os.path.sameopenfile(file.fileno(), own.fileno()) and libc.setns(file.fileno(), 0):
                raise OSError(code := ctypes.get_errno(), f"{file.name}: {os.strerror(code)}")


def _serve_host(name: str, lives: int) -> None:
    die_with(0)  # a parent outside the host has number 0 here
    with _listener(name) as listener:
        os.write(lives, READY)
        serve(listener)


if __name__ == "__main__":
    main(*sys.argv[1:])

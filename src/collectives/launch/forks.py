"""Ranks as forks of one process, on this machine or on emulated hosts.

A rank needs two to three seconds of processor time to import torch and to load the compiled
executor. A fork of a process that has done so needs milliseconds.

    launcher --> fork server --> a starter for each launch --> ranks

The fork server starts with the first launch, serves all launches in the same environment, and ends
with its launcher. It imports modules of this library, never yours: the next launch reads a module
that you have edited. A launch passes it one end of a socket pair, which has no name that others
could take or reach. The server forks a starter, which forks ranks on request and reports how they
end. When the other end is closed, or a rank has ended, the starter kills what is left of the ranks'
process groups.

For emulated hosts the starter imports the ranks' module first, and its forks enter the hosts.
Thirty-two imports of torch would keep two cores busy for most of a minute and fill the memory with
32 copies. A module may have a function ``preload``, which imports more of what its ranks share.

`multiprocessing.forkserver` does not serve: it has one server for each process, whose forks keep
the environment of its first start and run the user's main module again, and it ends them by
`os._exit`, so that back ends' exit handlers never run. When the launcher is killed, its forks hold
the pipe that keeps the server alive, so that server, ranks and whatever ranks started live on.
"""

import atexit
import ctypes
import gc
import importlib
import os
import select
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from multiprocessing.connection import wait
from typing import NamedTuple

from collectives.launch.address import LOOPBACK, loopback_interface
from collectives.launch.channel import Channel, Event
from collectives.launch.driver import Driver, Reported, Supervised, drive, rank_names, unnamed_logs
from collectives.launch.request import Request
from collectives.nccl import gpus
from collectives.processes import (
    POLL_SECONDS,
    ChildProcess,
    Log,
    Process,
    RankError,
    die_with,
    end,
    end_as,
    kill_group,
    last_lines,
    open_streams,
    start,
)

IS_SUPPORTED = sys.platform == "linux"  # where the kernel kills children with their parent
PRELOADED = "collectives.bench.measure"
GONE_SECONDS = 5

# Beginnings of the variables that count when a library is loaded. Ranks get all other variables
# anew.
# fmt: off
AT_IMPORT = ("HOME", "KMP_", "LANG", "LC_", "LD_", "MALLOC_", "MKL_", "NUMBA_", "OMP_", "OPENBLAS_", "PATH", "PYTHON",
             "TMPDIR", "TORCH", "TZ", "VIRTUAL_ENV", "XDG_")
# fmt: on


class ForkServer(NamedTuple):
    """A running fork server; it ends when ``control`` is closed."""

    process: ChildProcess
    control: socket.socket
    log: Log


_servers: dict[tuple[object, ...], ForkServer] = {}
_starting = threading.Lock()


def fork_server(environment: Mapping[str, str]) -> ForkServer:
    """Return the fork server for ranks with this environment; start one if none is running."""
    loaded = sorted(
        item for item in (os.environ | environment).items() if item[0].startswith(AT_IMPORT)
    )
    key = os.getpid(), os.getcwd(), tuple(loaded)  # noqa: PTH109
    with _starting:
        if key in _servers and _servers[key].process.poll() is not None:
            _stop(os.getpid(), _servers.pop(key))
        if key not in _servers:
            ours, theirs = socket.socketpair()
            log = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the server
            with theirs:
                command = [sys.executable, "-m", "collectives.launch.forks", str(theirs.fileno())]
                process = start(command, log, dict(environment), [theirs.fileno()])
            _servers[key] = ForkServer(process, ours, log)
            atexit.register(_stop, os.getpid(), _servers[key])
        return _servers[key]


def _stop(owner: int, server: ForkServer) -> None:
    server.control.close()
    if os.getpid() == owner:  # a fork of the owner has this handler, too
        end([server.process])
        server.log.close()


class Forks:
    """The launcher's end of a starter: requests ranks and hears how they end.

    `close` ends all of them.
    """

    def __init__(self, request: Request, *, preload: bool) -> None:
        ours, theirs = socket.socketpair()
        server, timeout = fork_server(request.environment), request.timeout
        with theirs:
            socket.send_fds(server.control, [b"."], [theirs.fileno()])
        self.ranks = [Reported() for _ in range(request.ranks)]
        self._channel, self._requesting = Channel(ours), threading.Lock()
        common = dict(os.environ) | {"OMP_NUM_THREADS": "1"} | dict(request.environment)
        self._channel.send({"module": request.module, "preload": preload, "environment": common})
        if not wait([self._channel.fileno()], timeout) or self._channel.receive() is None:
            is_alive = server.process.poll() is None
            how = f"timed out after {timeout:g} s" if is_alive else "ended at its start"
            self._channel.close()
            raise RankError(f"the fork server {how}; {last_lines(server.log)}")
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def fork(
        self,
        rank: int,
        launcher: str,
        log: Log,
        inherited: socket.socket,
        environment: Mapping[str, str],
        host: int = 0,
        namespaces: Sequence[str] = (),
    ) -> None:
        """Request a rank that prints into ``log``: here, or in these namespaces of the process ``host``."""
        wanted = {
            "rank": rank,
            "launcher": launcher,
            "environment": dict(environment),
            "host": host,
        }
        wanted |= {"namespaces": list(namespaces)}
        with inherited, suppress(OSError), self._requesting:  # all of them end if the starter does
            self._channel.send(wanted, log.fileno(), inherited.fileno())

    def _read(self) -> None:
        while (ended := self._channel.receive()) is not None:
            self.ranks[ended["rank"]].code = ended["code"]
        for each in self.ranks:
            if each.code is None:  # the starter was killed, and the ranks with it
                each.code = -signal.SIGKILL
        self._channel.close()

    def close(self) -> None:
        """End all ranks, and wait until the starter has ended."""
        self._channel.end(socket.SHUT_WR)
        self._reader.join(GONE_SECONDS)
        self._channel.end()


def launch(request: Request) -> list[Event]:
    """`collectives.launch.launch`, one process for each rank on this machine.

    Nothing of them is on disk.
    """
    open_streams()
    ranks = range(request.ranks)
    if not request.share_gpus or len(ranks) <= len(gpus.visible()):
        return _launch(request, [{} for _ in ranks])
    with gpus.shared([f"rank{rank}" for rank in ranks], loopback_interface()) as variables:
        environment = variables.common | dict(request.environment)
        return _launch(request._replace(environment=environment), variables.own)


def _launch(request: Request, each: list[dict[str, str]]) -> list[Event]:
    """Launch ranks, each with variables of its own."""

    def begin(driver: Driver, stack: ExitStack) -> Supervised:
        count = request.ranks
        logs = unnamed_logs(count, stack)
        names = rank_names(count)
        own = [
            {"RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_RANK": str(rank), **each[rank]}
            for rank in range(count)
        ]
        if not IS_SUPPORTED:
            return Supervised(names, _start_alone(driver, logs, own, stack), logs)
        forks = Forks(request, preload=False)
        stack.callback(forks.close)
        for rank, log in enumerate(logs):
            variables = (
                own[rank] | {"GLOO_SOCKET_IFNAME": loopback_interface()} | dict(request.environment)
            )
            forks.fork(rank, "loopback", log, driver.inherited(rank), variables)
        return Supervised(names, forks.ranks, logs)

    return drive(Driver(request, LOOPBACK), begin)


def _start_alone(
    driver: Driver, logs: list[Log], own: list[dict[str, str]], stack: ExitStack
) -> list[Process]:
    """Start each rank as a process that imports everything itself."""
    processes: list[Process] = []
    request = driver.request
    for rank, log in enumerate(logs):
        with driver.inherited(rank) as inherited:
            file = inherited.fileno()
            command = [
                sys.executable,
                "-m",
                "collectives.launch.rank",
                "loopback",
                str(file),
                request.module,
            ]
            process = start(command, log, own[rank] | dict(request.environment), [file])
        stack.callback(end, [process])
        processes.append(process)
    return processes


def main(control: str) -> None:
    """Import what all launches share, and fork a starter for each until the launcher has ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    own = os.getpid()
    with socket.socket(fileno=int(control)) as launcher:
        _preload(PRELOADED, launcher.fileno())
        while True:
            message, files, _, _ = socket.recv_fds(launcher, 1, 1)
            if not message:
                break
            for file in files:
                if os.fork() == 0:
                    launcher.close()
                    _run_starter(own, Channel(socket.socket(fileno=file)))
                os.close(file)
    signal.alarm(GONE_SECONDS)  # starters end by themselves, or with this process
    with suppress(ChildProcessError):
        os.wait()


def _preload(module: str, launcher: int) -> None:
    """Import what ranks share.

    Ends this process when the other end of the socket ``launcher`` is closed meanwhile.
    """
    closed = select.poll()
    closed.register(launcher, select.POLLRDHUP)
    signal.signal(signal.SIGALRM, lambda *_: os._exit(1) if closed.poll(0) else None)
    signal.setitimer(signal.ITIMER_REAL, POLL_SECONDS, POLL_SECONDS)
    for name in ("torch.distributed", module):
        with suppress(Exception):  # the ranks fail in the same way and report it
            getattr(importlib.import_module(name), "preload", lambda: None)()
    gc.collect()
    gc.freeze()  # the collector leaves these objects alone, so their pages stay shared
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)


def _run_starter(server: int, channel: Channel) -> None:
    """Fork ranks until the launcher closes its end, then kill those that are left.

    Does not return.
    """
    die_with(server)
    wakeup, changes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(changes)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    common = channel.receive() or sys.exit()
    os.environ.clear()
    os.environ.update(common["environment"])
    if common["preload"]:
        _preload(common["module"], channel.fileno())
    channel.send({"ready": True})
    ranks: dict[int, int] = {}
    while True:
        ready = wait([channel.fileno(), wakeup])
        if wakeup in ready:
            os.read(wakeup, 1 << 10)
            for pid in [
                pid
                for pid in ranks
                if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            ]:
                with suppress(OSError):  # the launcher may have ended
                    channel.send({"rank": ranks.pop(pid), "code": _kill(pid)})
        if channel.fileno() in ready:
            wanted = channel.receive()
            if wanted is None:
                break
            log, inherited = channel.receive_file(), channel.receive_file()
            starter = os.getpid()
            pid = os.fork()
            if pid == 0:
                channel.close()
                _become_rank(starter, wanted, common["module"], log, inherited)
            ranks[pid] = wanted["rank"]
            os.close(log)
            os.close(inherited)
    for pid in ranks:
        _kill(pid)
    os._exit(0)


def _kill(pid: int) -> int:
    """Kill a rank, if it runs, and what is left of its group; return its exit code."""
    os.kill(pid, signal.SIGKILL)  # it may have no group of its own yet
    kill_group(pid)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _become_rank(starter: int, wanted: Event, module: str, log: int, inherited: int) -> None:
    """Become a rank with its variables and its log, or, on an emulated host, its parent.

    Does not return.
    """
    die_with(starter)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    for stream in (1, 2):
        os.dup2(log, stream)
    os.close(log)
    os.environ.update(wanted["environment"])
    if wanted["host"]:
        _enter_host(starter, wanted["host"], wanted["namespaces"], inherited)
    _seed_numpy()
    importlib.import_module("collectives.launch.rank").main(
        wanted["launcher"], str(inherited), module
    )
    sys.exit()  # in an orderly way, because back ends have exit handlers


def _seed_numpy() -> None:
    """Seed numpy, because all forks would draw the same numbers.

    Python's own module does so itself.
    """
    import numpy as np

    np.random.seed()  # noqa: NPY002


def _enter_host(starter: int, pid: int, names: list[str], inherited: int) -> None:
    """Enter these namespaces of a host and return there, if it has process numbers of its own in a child.

    Only a child gets such a number. This process ends as it does.
    """
    directory = os.getcwd()  # noqa: PTH109
    try:
        _set_namespaces(pid, names)
    except OSError as error:
        sys.exit(str(error))
    die_with(starter)  # again: entering a user namespace clears it
    os.chdir(directory)
    if "pid" not in names:
        return
    child = os.fork()
    if child:
        os.close(inherited)
        end_as(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    die_with(0)  # a parent outside the host has number 0 here


def _set_namespaces(pid: int, names: list[str]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    with ExitStack() as stack:
        files = [stack.enter_context(open(f"/proc/{pid}/ns/{name}", "rb")) for name in names]  # noqa: PTH123
        own = stack.enter_context(open("/proc/self/ns/user", "rb"))  # noqa: PTH123
        for file in files:
            if os.path.sameopenfile(file.fileno(), own.fileno()):
                continue  # it is in this user namespace, and may not enter it again
            if libc.setns(file.fileno(), 0) != 0:
                code = ctypes.get_errno()
                raise OSError(code, f"{file.name}: {os.strerror(code)}")


if __name__ == "__main__":
    main(*sys.argv[1:])

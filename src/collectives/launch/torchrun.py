"""Ranks that torchrun has started: every node runs the same command, and rank 0's process drives.

    torchrun --nnodes 2 --nproc-per-node 4 … -m collectives.launch.torchrun collectives run NOTEBOOK -p where=torchrun

This is for nodes that cannot start processes on one another, such as the pods of a Kubernetes TrainJob. Each of
torchrun's processes connects to that of rank 0 (`Hub`), over a connection on which both show a secret (`channel`), and
waits for orders. Rank 0's process also runs the command that follows the module's name. When that command launches
ranks (``where="torchrun"``), every process gets the order to start one, which gets its job from the launcher.

An order has the launcher's address, the number of ranks and variables for their environment, but no command: each
process makes the ranks' command itself. torch's store does not authenticate its peers. It is read only for the address
of rank 0's process, which then has to show the secret. All of them have 60 seconds to meet after importing torch, or
those in the variable COLLECTIVES_JOIN_SECONDS, because many nodes import slowly from one file system.
"""

import json
import os
import re
import signal
import sys
import time
from contextlib import closing, suppress
from datetime import timedelta
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any

from collectives.errors import short
from collectives.launch import secret
from collectives.launch.address import reachable
from collectives.launch.channel import AuthenticatedConnection, Listener, connect
from collectives.launch.command import launch_by
from collectives.launch.request import Event, Request
from collectives.processes import ChildProcess, RankError, die_with, guarded

NO_COMMAND = "command: got none, expected one after `-m collectives.launch.torchrun`, such as `collectives bench`"
OUTSIDE = "not within torchrun; start this command by `torchrun … -m collectives.launch.torchrun COMMAND`"
NO_SECRET = (
    f"no secret: got neither {secret.VARIABLE} nor {secret.FILE_VARIABLE}, expected one, the same on all nodes, "
    "because torchrun's processes are on several machines"
)
SAME = f"is {secret.VARIABLE} the same on every node?"
LOST = re.compile(r"rank (?P<rank>\d+) (?P<how>SIG\w+)")
ADDRESS = "COLLECTIVES_HUB"  # of rank 0's process, for the command that it runs
KEY = "collectives/hub"  # the same in torch's store, for the other processes
# Who connects: each torchrun process, and a launcher in the command that rank 0's process runs.
PROCESS, DRIVER = "process", "driver"
GONE = "rank {}: its torchrun process has ended"
POLL_SECONDS = 0.1
JOIN_VARIABLE = "COLLECTIVES_JOIN_SECONDS"


def launch(wanted: Request) -> list[Event]:
    """`collectives.launch.launch`, on torchrun's first ``ranks`` processes.

    Raises ImportError outside torchrun, RankError for more ranks than it started, and ValueError without a secret.
    """
    if ADDRESS not in os.environ:
        raise ImportError(OUTSIDE)
    if wanted.ranks > int(os.environ["WORLD_SIZE"]):
        raise RankError(f"too few torchrun processes: got {os.environ['WORLD_SIZE']}, expected at least {wanted.ranks}")
    order = json.dumps([wanted.ranks, dict(wanted.environment)])
    command = [sys.executable, "-m", "collectives.launch.torchrun", "--everywhere", order]
    here, host = wanted._replace(environment={}), reachable(_is_local())
    return launch_by(command, here, launcher="torchrun", host=host, shared=_secret(), lost=LOST)


def _is_local() -> bool:
    """Whether all of torchrun's processes are on this machine."""
    address = os.environ["MASTER_ADDR"]
    is_loopback = address in {"localhost", "::1"} or address.startswith("127.")
    return is_loopback or os.environ["LOCAL_WORLD_SIZE"] == os.environ["WORLD_SIZE"]


def _secret() -> str:
    """The secret that was given; this user's own if all processes are here. Raises ValueError without either."""
    shared = secret.given() or (secret.own() if _is_local() else None)
    if shared is None:
        raise ValueError(NO_SECRET)
    return shared


def join_seconds() -> int:
    """Return the seconds in which all of torchrun's processes have to meet. Raises ValueError for none that can be.

    >>> join_seconds()
    60
    """
    given = os.environ.get(JOIN_VARIABLE, "60")
    if not re.fullmatch("[0-9]{1,4}", given) or not 1 <= int(given) <= 3600:
        raise ValueError(f"invalid {JOIN_VARIABLE}: got {short(given)}, expected whole seconds, 1 to 3600")
    return int(given)


def everywhere(ranks: int, environment: dict[str, str], host: str, port: str) -> str | None:
    """Have the first ``ranks`` processes of torchrun start a rank of the launcher at this address.

    Returns the error of the first that failed, or None.
    """
    hub = _parsed(os.environ[ADDRESS])
    with closing(connect(hub, _secret(), DRIVER, 0, join_seconds())) as connection:
        connection.send({"ranks": ranks, "environment": environment, "launcher": [host, int(port)]})
        answer = connection.receive()
    return GONE.format(0) if answer is None else answer["failed"]


def serve(command: list[str]) -> int:
    """Run ranks as one of torchrun's processes until rank 0's command has ended; rank 0 returns its exit code."""
    from torch import distributed as dist

    die_with(os.getppid())
    shared = _secret()
    limit = timedelta(seconds=join_seconds())
    store, rank, size = next(dist.rendezvous("env://", timeout=limit))  # type: ignore[attr-defined]
    if rank == 0:
        return _drive(store, shared, size, command)
    return _follow(_joined(store, shared, rank), rank, shared)


def _drive(store: Any, shared: str, size: int, command: list[str]) -> int:
    """As rank 0's process, gather the others, run the command, and run ranks for it as the others do."""
    hub = Hub()
    with closing(Listener(reachable(_is_local()), shared, {PROCESS, DRIVER}, hub.serve)) as listener:
        own = connect(listener.address, shared, PROCESS, 0, join_seconds())
        follower = Thread(target=_follow, args=(own, 0, shared), daemon=True)
        follower.start()
        address = "{} {}".format(*listener.address)
        _gather(store, hub, size, address)
        code = _run_guarded(command, {ADDRESS: address, **secret.variables(shared)})
        hub.end()
        follower.join()
    return code


class Hub:
    """The hub in rank 0's process: it forwards orders to the other processes, one order at a time."""

    def __init__(self) -> None:
        self.processes: dict[int, AuthenticatedConnection] = {}
        self._answers: SimpleQueue[tuple[int, Event | None]] = SimpleQueue()
        self._one_order, self._orders = Lock(), 0

    def serve(self, connection: AuthenticatedConnection, role: str, rank: int) -> None:
        """Serve one connection until it ends."""
        if role == DRIVER:
            if order := connection.receive():
                connection.send({"failed": self._execute(order)})
            return
        self.processes[rank] = connection
        while (answer := connection.receive()) is not None:
            self._answers.put((rank, answer))
        if self.processes[rank] is connection:  # and not a newer one, after the first was cut off
            self._answers.put((rank, None))

    def _execute(self, order: Event) -> str | None:
        """Send the order to the first ranks' processes; returns how the first one failed, or None."""
        with self._one_order:
            self._orders += 1
            left = set(range(order["ranks"]))
            for rank in left:
                try:
                    self.processes[rank].send({"nth": self._orders, **order})
                except OSError:
                    return GONE.format(rank)
            while left:
                rank, answer = self._answers.get()
                if answer is None:
                    return GONE.format(rank)
                if answer["nth"] == self._orders:  # a late answer to an earlier order that failed
                    left.discard(rank)
                    if answer["failed"]:
                        return f"rank {rank} {answer['failed']}"
        return None

    def end(self) -> None:
        """Tell the processes to end."""
        for connection in self.processes.values():
            with suppress(OSError):  # it has ended before
                connection.send({"over": True})


def _gather(store: Any, hub: Hub, size: int, address: str) -> None:
    """Publish our address until all other processes have connected. Raises TimeoutError that names the missing ones."""
    until = time.monotonic() + join_seconds()
    while missing := sorted(set(range(size)) - set(hub.processes)):
        if time.monotonic() > until:
            names = ", ".join(map(str, missing))
            raise TimeoutError(f"torchrun's processes {names} have not joined within {join_seconds()} s; {SAME}")
        store.set(KEY, address)  # again each time, because any peer can overwrite it
        time.sleep(POLL_SECONDS)


def _joined(store: Any, shared: str, rank: int) -> AuthenticatedConnection:
    """A connection to rank 0's process, at the address in the store; it has to show our secret."""
    until = time.monotonic() + join_seconds()
    while time.monotonic() < until:
        with suppress(OSError, ValueError, OverflowError):
            if store.check([KEY]):
                return connect(_parsed(store.get(KEY).decode()), shared, PROCESS, rank, 0)
        time.sleep(POLL_SECONDS)
    raise TimeoutError(f"rank 0's process has not shown our secret within {join_seconds()} s; {SAME}")


def _follow(connection: AuthenticatedConnection, rank: int, shared: str) -> int:
    """Start a rank at each order until the hub ends; returns the exit code."""
    while (order := connection.receive()) is not None:
        if "over" in order:
            return 0
        connection.send({"nth": order["nth"], "failed": _run_rank(order, shared)})
    sys.stderr.write(f"rank {rank}: the process of rank 0 has ended\n")
    return 1


def _run_rank(order: Event, shared: str) -> str | None:
    """Run a rank of the launcher that the order names; returns how it failed, or None."""
    host, port = order["launcher"]
    command = [sys.executable, "-m", "collectives.launch.rank", "torchrun", host, str(port)]
    code = _run_guarded(command, order["environment"] | {"WORLD_SIZE": str(order["ranks"]), **secret.variables(shared)})
    if code < 0:
        return signal.Signals(-code).name
    return f"ended with exit code {code}" if code else None


def _run_guarded(command: list[str], environment: dict[str, str]) -> int:
    """Run a command in a session of its own, killed when this process exits; returns its exit code."""
    return ChildProcess(guarded(command), env=os.environ | environment).wait()


def _parsed(address: str) -> tuple[str, int]:
    host, port = address.split()
    return host, int(port)


def main(arguments: list[str]) -> None:
    """Run as a torchrun process, or send an order with ``--everywhere``; exits with one line after an error."""
    try:
        if arguments[:1] == ["--everywhere"]:
            ranks, environment = json.loads(arguments[1])
            sys.exit(everywhere(ranks, environment, *arguments[-2:]))
        if not arguments:
            raise ValueError(NO_COMMAND)
        sys.exit(serve(arguments))
    except (ValueError, OSError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])

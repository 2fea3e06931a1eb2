"""Ranks that torchrun has started: every node runs the same command, and rank 0's process drives.

    torchrun --nnodes 2 --nproc-per-node 4 … -m collectives.launch.torchrun collectives run NOTEBOOK
    -p where=torchrun

This is for nodes that cannot start processes on one another, such as the pods of a Kubernetes
TrainJob. Each of torchrun's processes connects to that of rank 0 (`Hub`), over a connection on
which both show a secret (`channel`), and waits for orders. Rank 0's process also runs the command
that follows the module's name. When that command launches ranks (``where="torchrun"``), every
process gets the order to start one, which gets its job from the launcher. The process reports to
the launcher how the rank has ended.

An order has the launcher's address, the number of ranks and variables for their environment, but no
command: each process makes the ranks' command itself. torch's store does not authenticate its
peers. It is read only for the address of rank 0's process, which then has to show the secret. All
of them have 60 seconds to meet after importing torch, or those in the variable
COLLECTIVES_JOIN_SECONDS, because many nodes import slowly from one file system.
"""

import os
import re
import signal
import socket
import sys
import time
from contextlib import ExitStack, closing, suppress
from datetime import timedelta
from threading import Thread
from typing import Any

from collectives.errors import short
from collectives.launch import secret
from collectives.launch.address import reachable
from collectives.launch.channel import Address, Channel, Listener, connect
from collectives.launch.driver import Driver, Reported, Supervised, drive, rank_names, unnamed_logs
from collectives.launch.programs import HUB_VARIABLE, OUTSIDE_TORCHRUN
from collectives.launch.request import Event, Request, task_of
from collectives.processes import ChildProcess, RankError, die_with, guarded

NO_COMMAND = "command: got none, expected one after `-m collectives.launch.torchrun`, such as `collectives bench`"
NO_SECRET = (
    f"no secret: got neither {secret.VARIABLE} nor {secret.FILE_VARIABLE}, expected one, the same on all nodes, "
    "because torchrun's processes are on several machines"
)
SAME = f"is {secret.VARIABLE} the same on every node?"
KEY = "collectives/hub"  # in torch's store: the address of rank 0's process
REPORT_SECONDS = 1.0  # in which a launch is reached that a rank has ended
POLL_SECONDS = 0.1
JOIN_VARIABLE = "COLLECTIVES_JOIN_SECONDS"


def launch(request: Request) -> list[Event]:
    """`collectives.launch.launch`, on torchrun's first ``ranks`` processes.

    Raises ImportError outside torchrun, RankError for more ranks than it started, and ValueError
    without a secret.
    """
    if HUB_VARIABLE not in os.environ:
        raise ImportError(OUTSIDE_TORCHRUN)
    if request.ranks > int(os.environ["WORLD_SIZE"]):
        raise RankError(
            f"too few torchrun processes: got {os.environ['WORLD_SIZE']}, expected at least {request.ranks}"
        )

    ranks = [Reported() for _ in range(request.ranks)]

    def report(_: Channel, hello: Event) -> None:
        ranks[hello["rank"]].code = hello["code"]

    def hear(hub: Channel) -> None:
        while (gone := hub.receive()) is not None:
            if gone["gone"] < len(ranks):  # its rank has ended with it
                ranks[gone["gone"]].code = -signal.SIGKILL
        hub.close()

    def begin(driver: Driver, stack: ExitStack) -> Supervised:
        logs = unnamed_logs(request.ranks, stack)
        hub = connect(
            _parsed(os.environ[HUB_VARIABLE]), _secret(), {"role": "driver"}, join_seconds()
        )
        stack.callback(hub.end)
        hub.send(
            {
                "ranks": request.ranks,
                "environment": dict(request.environment),
                "launcher": driver.address,
            }
        )
        Thread(target=hear, args=(hub,), daemon=True).start()
        return Supervised(rank_names(request.ranks), ranks, logs, has_reports=True)

    task, host = task_of(request.module), reachable(_is_local())
    return drive(Driver(request, host, _secret(), task=task, serve_others=report), begin)


def _is_local() -> bool:
    """Return True if all of torchrun's processes are on this machine."""
    address = os.environ["MASTER_ADDR"]
    is_loopback = address in {"localhost", "::1"} or address.startswith("127.")
    return is_loopback or os.environ["LOCAL_WORLD_SIZE"] == os.environ["WORLD_SIZE"]


def _secret() -> str:
    """Return the secret that was given; this user's own if all processes are here.

    Raises ValueError without either.
    """
    shared = secret.given() or (secret.own() if _is_local() else None)
    if shared is None:
        raise ValueError(NO_SECRET)
    return shared


def join_seconds() -> int:
    """Return the seconds in which all of torchrun's processes have to meet.

    Raises ValueError for none that can be.

    >>> join_seconds()
    60
    """
    given = os.environ.get(JOIN_VARIABLE, "60")
    if not re.fullmatch("[0-9]{1,4}", given) or not 1 <= int(given) <= 3600:
        raise ValueError(
            f"invalid {JOIN_VARIABLE}: got {short(given)}, expected whole seconds, 1 to 3600"
        )
    return int(given)


def serve(command: list[str]) -> int:
    """Run ranks as one of torchrun's processes until rank 0's command has ended.

    Return its exit code on rank 0.
    """
    die_with(os.getppid())  # before the imports of seconds that follow
    _check_store()
    from torch import distributed as dist

    shared = _secret()
    limit = timedelta(seconds=join_seconds())
    store, rank, size = next(dist.rendezvous("env://", timeout=limit))  # type: ignore[attr-defined]
    if rank == 0:
        return _drive(store, shared, size, command)
    return _follow(_joined(store, shared, rank), rank, shared)


def _check_store() -> None:
    """Raise ConnectionError if torchrun's store has gone, which torchrun starts before its processes.

    A process whose torchrun was killed before `die_with` would otherwise look for the store until
    the time is over.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return  # rank 0's process starts the store
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    try:
        socket.create_connection((host, port), join_seconds()).close()
    except ConnectionRefusedError as error:
        raise ConnectionError(
            f"torchrun's store: got no answer from {host}:{port}, expected a running torchrun"
        ) from error


def _drive(store: Any, shared: str, size: int, command: list[str]) -> int:
    """Gather the other processes as rank 0's, run the command, and run ranks for it as the others do."""
    hub = Hub()
    with closing(Listener(reachable(_is_local()), shared, hub.serve)) as listener:
        own = connect(listener.address, shared, {"role": "process", "rank": 0}, join_seconds())
        follower = Thread(target=_follow, args=(own, 0, shared), daemon=True)
        follower.start()
        address = f"{listener.address[0]} {listener.address[1]}"
        _gather(store, hub, size, address)
        code = _run_guarded(command, {HUB_VARIABLE: address, **secret.variables(shared)})
        hub.end()
        follower.join()
    return code


class Hub:
    """The hub in rank 0's process: it passes orders on to the other processes, and says which have ended."""

    def __init__(self) -> None:
        self.processes: dict[int, Channel] = {}
        self._drivers: set[Channel] = set()

    def serve(self, channel: Channel, hello: Event) -> None:
        """Serve one of torchrun's processes, or a launch in the command that rank 0's process runs."""
        if hello["role"] == "driver":
            self._drivers.add(channel)
            while (order := channel.receive()) is not None:
                for rank in range(order["ranks"]):
                    try:
                        self.processes[rank].send(order)
                    except OSError:
                        channel.send({"gone": rank})
            self._drivers.discard(channel)
            return
        rank = hello["rank"]
        self.processes[rank] = channel
        channel.receive()  # it ends without a word
        if self.processes[rank] is channel:  # and not a newer one, after the first was cut off
            for driver in list(self._drivers):
                with suppress(OSError):  # its launch has ended
                    driver.send({"gone": rank})

    def end(self) -> None:
        """Tell the processes to end."""
        for channel in self.processes.values():
            with suppress(OSError):  # it has ended before
                channel.send({"over": True})


def _gather(store: Any, hub: Hub, size: int, address: str) -> None:
    """Publish our address until all other processes have connected.

    Raises TimeoutError that names the missing ones.
    """
    until = time.monotonic() + join_seconds()
    while missing := [rank for rank in range(size) if rank not in hub.processes]:
        if time.monotonic() > until:
            names = ", ".join(str(rank) for rank in missing)
            raise TimeoutError(
                f"torchrun's processes {names} have not joined within {join_seconds()} s; {SAME}"
            )
        store.set(KEY, address)  # again each time, because any peer can overwrite it
        time.sleep(POLL_SECONDS)


def _joined(store: Any, shared: str, rank: int) -> Channel:
    """Return a channel to rank 0's process, at the address in the store.

    It has to show our secret.
    """
    until = time.monotonic() + join_seconds()
    while time.monotonic() < until:
        with suppress(OSError, ValueError, OverflowError):
            if store.check([KEY]):
                address = _parsed(store.get(KEY).decode())
                return connect(address, shared, {"role": "process", "rank": rank}, 0)
        time.sleep(POLL_SECONDS)
    raise TimeoutError(
        f"rank 0's process has not shown our secret within {join_seconds()} s; {SAME}"
    )


def _follow(channel: Channel, rank: int, shared: str) -> int:
    """Start a rank at each order until the hub ends; return the exit code."""
    while (order := channel.receive()) is not None:
        if "over" in order:
            return 0
        code = _run_rank(order, shared)
        with suppress(OSError):  # the launch has ended before
            hello = {"role": "process", "rank": rank, "code": code}
            connect(tuple(order["launcher"]), shared, hello, REPORT_SECONDS).close()
    sys.stderr.write(f"rank {rank}: the process of rank 0 has ended\n")
    return 1


def _run_rank(order: Event, shared: str) -> int:
    """Run a rank of the launcher that the order names.

    Return its exit code, negative for a signal.
    """
    host, port = order["launcher"]
    command = [sys.executable, "-m", "collectives.launch.rank", "torchrun", f"{host}:{port}"]
    environment = order["environment"] | {
        "WORLD_SIZE": str(order["ranks"]),
        **secret.variables(shared),
    }
    return _run_guarded(command, environment)


def _run_guarded(command: list[str], environment: dict[str, str]) -> int:
    """Run a command in a session of its own, killed when this process exits.

    Return its exit code.
    """
    return ChildProcess(guarded(command), env=os.environ | environment).wait()


def _parsed(address: str) -> Address:
    host, port = address.split()
    return host, int(port)


def main(arguments: list[str]) -> None:
    """Run as one of torchrun's processes; exits with one line after an error."""
    try:
        if not arguments:
            raise ValueError(NO_COMMAND)
        sys.exit(serve(arguments))
    except (ValueError, OSError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])

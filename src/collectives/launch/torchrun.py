"""Ranks that torchrun has started: every node runs the same command, and the process of rank 0 drives.

    torchrun --nnodes 2 --nproc-per-node 4 … -m collectives.launch.torchrun collectives run NOTEBOOK -p where=torchrun

This is for nodes that cannot start processes on one another, such as the pods of a Kubernetes TrainJob. Each of
torchrun's processes waits for work; that of rank 0 also runs the command that follows the module's name. When that
launches ranks (``where="torchrun"``), it leaves their command in torchrun's store, and each process runs it under the
number that it has.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from threading import Thread
from typing import Any

from collectives.launch import leash
from collectives.launch.command import launch_by
from collectives.launch.watch import Event

OUTSIDE = "not within torchrun; start this command by `torchrun … -m collectives.launch.torchrun COMMAND`"
LOST = re.compile(r"rank (?P<rank>\d+) (?P<how>SIG\w+)")
POLL_SECONDS = 0.1
STORE_TIMEOUT = timedelta(seconds=60)


def launch(
    module: str,
    settings: Event,
    ranks: int,
    *,
    timeout: float,
    environment: Mapping[str, str],
    on_event: Callable[[Event], None],
) -> list[Event]:
    """`collectives.launch.launch`, on torchrun's first ``ranks`` processes. Raises ImportError outside torchrun."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        raise ImportError(OUTSIDE)
    if ranks > int(os.environ["WORLD_SIZE"]):
        raise ValueError(f"torchrun has {os.environ['WORLD_SIZE']} processes, too few for {ranks} ranks")
    return launch_by(
        [sys.executable, "-m", "collectives.launch.torchrun", "--everywhere", json.dumps([ranks, dict(environment)])],
        module,
        settings,
        ranks,
        where="torchrun",
        timeout=timeout,
        environment={},
        on_event=on_event,
        lost=LOST,
    )


def everywhere(ranks: int, environment: dict[str, str], command: list[str]) -> str | None:
    """Have the first ``ranks`` processes of torchrun run the command; returns what went wrong, if anything did."""
    from torch import distributed as dist

    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = _ours(dist.TCPStore(host, port, is_master=False, timeout=STORE_TIMEOUT))  # type: ignore[attr-defined]
    nth = _announce(store, {"ranks": ranks, "environment": environment, "command": command})
    while int(store.add(f"ended/{nth}", 0)) < ranks:
        if store.check([f"failed/{nth}"]):
            break
        time.sleep(POLL_SECONDS)
    return str(store.get(f"failed/{nth}").decode()) if store.check([f"failed/{nth}"]) else None


def serve(command: list[str]) -> int:
    """Be one of torchrun's processes: run ranks until rank 0's command has ended, whose exit code rank 0 returns."""
    from torch import distributed as dist

    own, rank, size = next(dist.rendezvous("env://", timeout=STORE_TIMEOUT))  # type: ignore[attr-defined]
    store = _ours(own)
    if rank == 0:
        Thread(target=_drive, args=(store, command), daemon=True).start()
    for nth in itertools.count(1):
        work = _next_work(store, nth)
        if "over" in work:
            break
        if rank < work["ranks"]:
            _run(store, nth, rank, work)
    store.add("left", 1)
    while rank == 0 and int(store.add("left", 0)) < size:  # it may be rank 0 that keeps the store
        time.sleep(POLL_SECONDS)
    return int(work["over"]) if rank == 0 else 0


def _ours(store: Any) -> Any:
    from torch import distributed as dist

    return dist.PrefixStore("collectives", store)  # type: ignore[attr-defined]


def _announce(store: Any, work: dict[str, Any]) -> int:
    nth = int(store.add("work", 1))
    store.set(f"work/{nth}", json.dumps(work))
    return nth


def _next_work(store: Any, nth: int) -> dict[str, Any]:
    """Wait until there is work, or all is over: as long as rank 0's command takes, or until torchrun ends us."""
    while not store.check([f"work/{nth}"]):
        time.sleep(POLL_SECONDS)
    work: dict[str, Any] = json.loads(store.get(f"work/{nth}"))
    return work


def _drive(store: Any, command: list[str]) -> None:
    _announce(store, {"over": subprocess.run(_leashed(command), check=False).returncode})


def _run(store: Any, nth: int, rank: int, work: dict[str, Any]) -> None:
    environment = os.environ | work["environment"] | {"WORLD_SIZE": str(work["ranks"])}
    code = subprocess.run(_leashed(work["command"]), env=environment, check=False).returncode
    if code:
        how = signal.Signals(-code).name if code < 0 else f"ended with exit code {code}"
        store.compare_set(f"failed/{nth}", "", f"rank {rank} {how}")
    store.add(f"ended/{nth}", 1)


def _leashed(command: list[str]) -> list[str]:
    """The command as one that ends with this process, however that ends."""
    return [sys.executable, leash.__file__, str(os.getpid()), *command]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--everywhere"]:
        ranks, environment = json.loads(sys.argv[2])
        sys.exit(everywhere(ranks, environment, sys.argv[3:]))
    sys.exit(serve(sys.argv[1:]))

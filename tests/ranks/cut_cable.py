"""Cut a host's cable in the middle of an all-reduce, and note what every rank prints and when: for `make gpu-check`.

python cut_cable.py BACKEND SECONDS     what a rank runs: an ordinary program of torch, which
all-reduces until a call
                                        fails or takes more seconds
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

import torch
from torch import distributed as dist

from collectives.emulator import Cluster, cluster, name
from collectives.emulator.hosts import INTERFACE
from collectives.nccl import gpus
from collectives.processes import POLL_SECONDS, ChildProcess, end
from collectives_logs.cli import row
from collectives_logs.read import read
from collectives_logs.sources import LogError

Row = dict[str, Any]

LATENCY, RATE = "5ms", "25MB/s"
# A call of 4 MiB takes a third of a second; so many come before the one that is cut.
ELEMENTS, CALLS = 1 << 20, 5
MIDDLE = 0.1  # seconds from the beginning of the call until the cable is cut
LIMIT = 10  # seconds that torch waits for a call
SIGN = "the next call will not end"
MAX_LINES, MAX_LETTERS = 300, 400  # that the report keeps


def cut_cable(
    over: str, hosts: int, seconds: float, note: Callable[[Row], None], limit: int = LIMIT
) -> None:
    """Cut the last host off; ``over`` is torch's back end, "nccl" or, on CPUs, "gloo".

    Notes when each rank ended, in seconds after the cut, what it printed when, and what
    `collectives read` finds in the logs and in torch's flight recorder. Raises RuntimeError if the
    ranks do not come so far in ``seconds``.
    """
    until = time.monotonic() + seconds
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        names = [name(host) for host in range(hosts)]
        shared = stack.enter_context(gpus.shared(names, INTERFACE)) if over == "nccl" else None
        made = stack.enter_context(cluster(hosts, LATENCY, RATE, isolated=not shared))
        started: list[ChildProcess] = []
        stack.callback(end, started)
        logs: list[IO[bytes]] = []
        for rank in range(hosts):
            log = stack.enter_context((folder / f"rank-{rank}.log").open("wb"))
            logs.append(stack.enter_context((folder / f"rank-{rank}.log").open("rb")))
            variables = (
                made.variables(rank)
                | (shared.common | shared.own[rank] if shared else {})
                | recorder(folder)
            )
            command = [sys.executable, __file__, over, str(limit)]
            started.append(made.popen(rank, command, environment=variables, stdout=log, stderr=log))
        _watch(made, started, logs, until, note)
        end(started)
        note({"limit_s": limit})
        for finding in _findings(folder):
            note({"finding": finding})


def _findings(folder: Path) -> list[Row]:
    """Return what `collectives read` finds in a folder, or why it cannot read it.

    Paths begin in the folder.
    """
    try:
        found = [row(source, each) for source, each in read([folder])]
    except LogError as error:
        found = [{"source": "files", "kind": "unreadable", "found": str(error)}]
    text: list[Row] = json.loads(json.dumps(found).replace(f"{folder}/", ""))
    return text


def recorder(folder: Path) -> dict[str, str]:
    """Return the variables by which NCCL warns, and torch dumps its flight recorder into a folder."""
    dump = {"TORCH_FR_BUFFER_SIZE": "1000", "TORCH_FR_DUMP_TEMP_FILE": f"{folder}/fr_"}
    return dump | {"TORCH_NCCL_DUMP_ON_TIMEOUT": "1", "NCCL_DEBUG": "WARN", "OMP_NUM_THREADS": "1"}


def _watch(
    made: Cluster,
    ranks: list[ChildProcess],
    logs: list[IO[bytes]],
    until: float,
    note: Callable[[Row], None],
) -> None:
    """Cut the last host off when rank 0 says so, and note how all went on until they have ended, or time is up."""
    cut_at, ended, said = None, dict[int, float](), []
    while len(ended) < len(ranks) and time.monotonic() < until:
        for rank, (process, log) in enumerate(zip(ranks, logs, strict=True)):
            if rank not in ended and process.poll() is not None:
                ended[rank] = time.monotonic()
            said += [
                (time.monotonic(), rank, line.decode(errors="replace").rstrip()) for line in log
            ]
        if cut_at is None and any(SIGN in line for _, _, line in said):
            time.sleep(MIDDLE)
            made.cut(made.hosts - 1)
            cut_at = time.monotonic()
        time.sleep(POLL_SECONDS)
    if cut_at is None:
        raise RuntimeError(
            "\n".join(["no rank came to the call that was to be cut", *(line for *_, line in said)])
        )
    note({"cut": {"host": made.hosts - 1, "hosts": made.hosts}})
    for rank, process in enumerate(ranks):
        after = round(ended[rank] - cut_at, 2) if rank in ended else None
        note({"rank": rank, "exit": process.poll(), "seconds": after})
    note(
        {
            "lines": [
                (round(at - cut_at, 2), rank, line[:MAX_LETTERS])
                for at, rank, line in said[-MAX_LINES:]
            ]
        }
    )


def main(over: str, seconds: str) -> None:
    """Perform all-reduces until one fails."""
    device = torch.device("cuda" if over == "nccl" else "cpu")
    dist.init_process_group(over, timeout=timedelta(seconds=int(seconds)))
    tensor = torch.zeros(ELEMENTS, device=device)
    for call in range(1 << 20):
        if call == CALLS and os.environ["RANK"] == "0":
            print(SIGN, flush=True)
        dist.all_reduce(tensor)
        tensor[0].item()  # waits for the call


if __name__ == "__main__":
    main(*sys.argv[1:])

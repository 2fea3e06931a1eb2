"""What ranks report: the environment of all of them first, then rows as soon as they exist."""

import json
import os
import socket
from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist

from collectives.backends import backend, named
from collectives.bench.results import record, variables
from collectives.bench.settings import Row, Settings
from collectives.engine.handshake import all_gather_bytes
from collectives.launch.where import parse_where

SENT = 8  # the column of /proc/net/dev that counts the bytes an interface has sent


def launched(wanted: list[Settings]) -> Row:
    """Return how the ranks of these measurements were launched, and for which back ends."""
    names = list(dict.fromkeys(chain.from_iterable(one.backends for one in wanted)))
    return {"where": wanted[0].where, "backends": names, "set": wanted[0].variables()}


def report_rows(launched: Row, report: Callable[[Row], None], cases: Iterable[list[Row]]) -> None:
    """Report the environment of all ranks, then the rows of each case as soon as they exist, and close the back ends.

    ``launched`` says how these ranks were started: "where", for which "backends", and which
    variables were "set". ``cases`` measures: nothing of it is run before the environment is
    reported.
    """
    torch.set_num_threads(1)
    names = list(dict.fromkeys(named(typed)[0] for typed in launched["backends"]))
    report({"environment": _records(launched, names)})
    for rows in cases:
        report({"rows": rows})
    for name in names:
        backend(name).close()


def _records(launched: Row, names: list[str]) -> list[Row]:
    """Return every rank's record, with its host's name, so that a slow one is found.

    On loopback all have the same.
    """
    mine = record() | {
        "where": launched["where"],
        "backends": launched["backends"],
        "rank": dist.get_rank(),
    }
    mine |= {"set": variables() | launched.get("set", {})}
    mine |= (
        {}
        if parse_where(launched["where"]).launcher == "loopback"
        else {"host": socket.gethostname()}
    )
    for name in names:
        mine |= backend(name).record()
    return gathered(mine)


def gathered(mine: Any, device: torch.device | None = None) -> list[Any]:
    """Return every rank's JSON value, in the order of the ranks. All ranks call it."""
    return [json.loads(each) for each in all_gather_bytes(json.dumps(mine).encode(), device=device)]


def sent_bytes() -> int:
    """Return the bytes that this host's interface has sent, headers included.

    0 if it is the loopback interface.
    """
    name, counters = os.environ.get("GLOO_SOCKET_IFNAME", "lo"), Path("/proc/self/net/dev")
    lines = counters.read_text().splitlines() if counters.exists() else []
    fields = {line.partition(":")[0].strip(): line.partition(":")[2].split() for line in lines}
    return int(fields[name][SENT]) if name in fields and name != "lo" else 0

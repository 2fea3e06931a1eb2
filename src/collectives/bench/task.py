"""The frame of what ranks do in a measurement: they say where they run, and report the rows of each case at once."""

import json
import os
import socket
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist

from collectives.backends import backend, named
from collectives.backends.exchange import everyones
from collectives.bench.environment import record, variables
from collectives.bench.settings import Row

SENT = 8  # the column of /proc/net/dev that counts the bytes an interface has sent


def report_rows(launched: Row, report: Callable[[Row], None], cases: Iterable[list[Row]]) -> None:
    """Report the environment of all ranks, then the rows of each case as soon as they exist, and close the back ends.

    ``launched`` says how these ranks were started: "where", for which "backends", and which variables were "set".
    ``cases`` measures: nothing of it is run before the environment is reported.
    """
    torch.set_num_threads(1)
    names = list(dict.fromkeys(named(typed)[0] for typed in launched["backends"]))
    report({"environment": _everyones(launched, names)})
    for rows in cases:
        report({"rows": rows})
    for name in names:
        backend(name).close()


def _everyones(launched: Row, names: list[str]) -> list[Row]:
    """Return every rank's record. Where ranks are on several hosts it names the rank's, so that a slow one is found."""
    mine = record() | {"where": launched["where"], "backends": launched["backends"], "rank": dist.get_rank()}
    mine |= {"set": variables() | launched.get("set", {}), "host": socket.gethostname()}
    for name in names:
        mine |= backend(name).record()
    everyone = gathered(mine)
    left_out = {"host"} if len({each["host"] for each in everyone}) == 1 else set()
    return [{name: value for name, value in each.items() if name not in left_out} for each in everyone]


def gathered(mine: Any, device: torch.device | None = None) -> list[Any]:
    """Every rank's JSON value, in the order of the ranks; all of them call it alike."""
    return [json.loads(each) for each in everyones(json.dumps(mine).encode(), device=device)]


def sent_bytes() -> int:
    """Bytes that this host's interface has sent, headers included; 0 where ranks share the loopback interface."""
    name, counters = os.environ.get("GLOO_SOCKET_IFNAME", "lo"), Path("/proc/self/net/dev")
    lines = counters.read_text().splitlines() if counters.exists() else []
    fields = {line.partition(":")[0].strip(): line.partition(":")[2].split() for line in lines}
    return int(fields[name][SENT]) if name in fields and name != "lo" else 0

"""The process that is the network: makes the hosts, carries packets between their devices, and is told what to change.

It ends with its launcher, and the hosts end with it.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import sys
from contextlib import suppress
from typing import Any

import numpy as np

from collectives.launch.cluster import hosts as namespaces
from collectives.launch.cluster.devices import carry
from collectives.launch.cluster.hosts import Host
from collectives.launch.cluster.network import Link, Network, change, network
from collectives.launch.leash import die_with

MOST = 1 << 16  # bytes of what the launcher says
PR_SET_TIMERSLACK = 29


def main(launcher: str, control: str, text: str) -> None:
    """Be the network that ``text`` describes until the launcher closes the socket ``control``."""
    die_with(int(launcher))
    wanted = json.loads(text)
    uplink = Link(*wanted["uplink"]) if wanted["uplink"] else None
    net = network(wanted["hosts"], Link(*wanted["link"]), wanted["racks"], uplink)
    life = os.pipe()
    with socket.socket(fileno=int(control)) as told:
        try:
            made = _make(wanted["hosts"], life)
        except OSError as error:
            told.sendall(json.dumps({"error": str(error)}).encode() + b"\n")
            return
        _compile()
        _be_prompt()
        told.sendall(json.dumps({"pids": [host.pid for host in made]}).encode() + b"\n")
        devices = np.array([host.device for host in made])
        carry(net, devices, told.fileno())
        while _obey(net, told):
            carry(net, devices, told.fileno())
    os.close(life[1])
    with suppress(ChildProcessError):
        while True:
            os.wait()


def _make(hosts: int, life: tuple[int, int]) -> list[Host]:
    with namespaces.cubic_allowed():
        namespaces.prepare()
        return [namespaces.make(host, hosts, life) for host in range(hosts)]


def _compile() -> None:
    """Have compiled what is going to run, before anybody waits for a packet."""
    with open(os.devnull, encoding="utf8") as ready:  # noqa: PTH123
        carry(network(1, Link(1.0, 0.0), packets=1, most=1), np.zeros(0, dtype=np.int64), ready.fileno())


def _be_prompt() -> None:
    """Be woken at once and to the microsecond, where the system allows it."""
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))


def _obey(net: Network, told: socket.socket) -> bool:
    """Do what the launcher says, one line at a time, and answer; False when it has gone."""
    line = told.recv(MOST)
    if not line:
        return False
    wanted: dict[str, Any] = json.loads(line)
    for what, value in wanted["set"].items():
        change(net, wanted["host"], wanted["other"], what, value)
    told.sendall(b"{}\n")
    return True


if __name__ == "__main__":
    main(*sys.argv[1:])

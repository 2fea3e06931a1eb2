"""The fabric process: makes the hosts, carries packets between their devices, and changes links on request.

It ends with its launcher, and the hosts end with it.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import socket
import sys
from contextlib import suppress
from typing import Any

import numpy as np

from collectives.emulator import hosts as namespaces
from collectives.emulator.devices import carry
from collectives.emulator.forwarding import change
from collectives.emulator.hosts import Host
from collectives.emulator.network import NONE, Ints, Link, Network, network
from collectives.processes.parent_death import die_with

MOST = 1 << 16  # bytes of a request
PR_SET_TIMERSLACK = 29


def main(launcher: str, control: str, text: str) -> None:
    """Run the network that ``text`` describes until the launcher closes the socket ``control``."""
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
        _reduce_delays()
        told.sendall(json.dumps({"pids": [host.pid for host in made]}).encode() + b"\n")
        with _polling([*(host.device for host in made), told.fileno()]) as poll:
            carry(net, *_numbers(made, told.fileno()), poll.fileno())
            while _execute(net, told):
                carry(net, *_numbers(made, told.fileno()), poll.fileno())
    os.close(life[1])
    with suppress(ChildProcessError):
        while True:
            os.wait()


def _make(hosts: int, life: tuple[int, int]) -> list[Host]:
    namespaces.prepare()
    return [namespaces.make(host, hosts, life) for host in range(hosts)]


def _compile() -> None:
    """Compile `carry` before a packet waits for it."""
    reader, writer = os.pipe()
    os.close(writer)
    with os.fdopen(reader), _polling([reader]) as poll:
        carry(network(1, Link(1.0, 0.0), packets=1, most=1), *_numbers([], reader), poll.fileno())


def _polling(numbers: list[int]) -> select.epoll:
    poll = select.epoll()
    for number in numbers:
        poll.register(number, select.EPOLLIN)
    return poll


def _numbers(made: list[Host], most: int) -> tuple[Ints, Ints]:
    """The device of each host, and the host of each device, NONE for other files up to the number ``most``."""
    devices = np.array([host.device for host in made], dtype=np.int64)
    hosts = np.full(1 + max([most, *devices.tolist()]), NONE)
    hosts[devices] = np.arange(len(made))
    return devices, hosts


def _reduce_delays() -> None:
    """Ask for real-time scheduling and timers to the microsecond, if the system allows it."""
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))


def _execute(net: Network, told: socket.socket) -> bool:
    """Execute one request of the launcher, a line, and answer it; False if the launcher has closed the socket."""
    line = told.recv(MOST)
    if not line:
        return False
    wanted: dict[str, Any] = json.loads(line)
    for what, value in wanted["set"].items():
        change(net, wanted["host"], wanted["other"], what, value)
    told.sendall(b"{}\n")
    return True


if __name__ == "__main__":
    with suppress(ConnectionError):  # the launcher has gone: the hosts end as this process does
        main(*sys.argv[1:])

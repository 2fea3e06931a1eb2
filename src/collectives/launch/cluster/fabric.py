"""The process that is the network: makes the hosts, carries packets between their devices, and is told what to change.

It ends with its launcher, and the hosts end with it.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import select
import socket
import sys
import time
from contextlib import suppress
from typing import Any

from collectives.launch.cluster import hosts as namespaces
from collectives.launch.cluster.hosts import OFFLOAD_HEADER, Host, address
from collectives.launch.cluster.network import Link, Network, Port
from collectives.launch.leash import die_with

PACKET = 1 << 16
FLOW = slice(OFFLOAD_HEADER + 12, OFFLOAD_HEADER + 24)
TARGET = slice(OFFLOAD_HEADER + 16, OFFLOAD_HEADER + 20)
AT_ONCE = 16  # packets read from one device before others have their turn
PR_SET_TIMERSLACK = 29


def main(launcher: str, control: str, text: str) -> None:
    """Be the network that ``text`` describes until the launcher closes the socket ``control``."""
    die_with(int(launcher))
    wanted = json.loads(text)
    uplink = Link(*wanted["uplink"]) if wanted["uplink"] else None
    network = Network(wanted["hosts"], Link(*wanted["link"]), wanted["racks"], uplink)
    life = os.pipe()
    with socket.socket(fileno=int(control)) as told:
        try:
            made = _make(wanted["hosts"], life)
        except OSError as error:
            told.sendall(json.dumps({"error": str(error)}).encode() + b"\n")
            return
        told.sendall(json.dumps({"pids": [host.pid for host in made]}).encode() + b"\n")
        _be_prompt()
        _carry(network, made, told)
    os.close(life[1])
    with suppress(ChildProcessError):
        while True:
            os.wait()


def _make(hosts: int, life: tuple[int, int]) -> list[Host]:
    with namespaces.cubic_allowed():
        namespaces.prepare()
        return [namespaces.make(host, hosts, life) for host in range(hosts)]


def _be_prompt() -> None:
    """Be woken at once and to the microsecond, where the system allows it."""
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))


def _carry(network: Network, hosts: list[Host], told: socket.socket) -> None:
    """Read, let time pass, write; until the launcher has no more to tell."""
    devices = {host.device: source for source, host in enumerate(hosts)}
    outlet = {port: host.device for port, host in zip(network.into, hosts, strict=True)}
    target = {socket.inet_aton(address(host)): host for host in range(len(hosts))}
    poll = select.epoll()
    for each in (*devices, told.fileno()):
        poll.register(each, select.EPOLLIN)
    while True:
        _sleep_until(network.next_event(), poll)
        for ready, _ in poll.poll(0):
            if ready in devices:
                _read(network, ready, devices[ready], target)
            elif not _obey(network, told):
                return
        _write(network.advance(time.monotonic()), outlet)


def _sleep_until(moment: float, poll: select.epoll) -> None:
    """Until there is something to read, or it is time: an epoll itself counts in milliseconds."""
    seconds = moment - time.monotonic()
    if seconds > 0:
        select.select([poll], [], [], None if seconds == math.inf else seconds)


def _read(network: Network, device: int, source: int, target: dict[bytes, int]) -> None:
    """Take what a host sends. Bytes 12 to 24 of a packet are both addresses and both ports: a flow."""
    for _ in range(AT_ONCE):
        try:
            data = os.read(device, PACKET)
        except BlockingIOError:
            return
        to = target.get(data[TARGET])
        if to is not None and data[OFFLOAD_HEADER] >> 4 == 4:
            network.send(source, to, data, len(data) - OFFLOAD_HEADER, data[FLOW], time.monotonic())


def _write(arrived: list[tuple[Port, bytes]], outlet: dict[Port, int]) -> None:
    for port, data in arrived:
        with suppress(OSError):  # a host that is about to end takes no more
            os.write(outlet[port], data)


def _obey(network: Network, told: socket.socket) -> bool:
    """Do what the launcher says, one line at a time, and answer; False when it has gone."""
    line = told.recv(PACKET)
    if not line:
        return False
    change: dict[str, Any] = json.loads(line)
    for what, value in change["set"].items():
        network.change(change["host"], change["other"], what, value)
    told.sendall(b"{}\n")
    return True


if __name__ == "__main__":
    main(*sys.argv[1:])

"""The fabric process: makes the hosts, carries packets between their devices, and changes links on request.

It ends with its launcher, and the hosts end with it. Its loop is compiled and calls libc directly,
so that a packet costs microseconds beside the kernel's own time.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import select
import socket
import sys
from contextlib import suppress
from typing import Any

import numpy as np
from numba import types

from collectives.compiled import compiled
from collectives.emulator import hosts as namespaces
from collectives.emulator.hosts import OFFLOAD_HEADER, Host
from collectives.emulator.network import (
    NONE,
    EmulatedLink,
    EmulatedNetwork,
    Ints,
    advance,
    change,
    free_packet,
    network,
    next_event,
    release,
    send,
)
from collectives.processes import die_with

MAX_REQUEST = 1 << 16  # bytes of a request
PR_SET_TIMERSLACK = 29

Call = Any  # numba knows their types only when it compiles
read: Call = types.ExternalFunction("read", types.int64(types.int32, types.uintp, types.uint64))
write: Call = types.ExternalFunction("write", types.int64(types.int32, types.uintp, types.uint64))
clock_gettime: Call = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.uintp))
epoll_wait: Call = types.ExternalFunction(
    "epoll_wait", types.int32(types.int32, types.uintp, types.int32, types.int32)
)
ppoll: Call = types.ExternalFunction(
    "ppoll", types.int32(types.uintp, types.uint64, types.uintp, types.uintp)
)

MONOTONIC = 1
POLLIN = 1
BATCH = 16  # devices read per round, and packets read from each of them
# Seconds by which a packet leaves early. Waking this process and a host takes about as long, and
# one wake-up serves several packets.
EARLY = 1e-4
BILLION = 1_000_000_000
# Offsets of an IPv4 packet's version, target address and ports.
VERSION, TARGET, PORTS = OFFLOAD_HEADER, OFFLOAD_HEADER + 16, OFFLOAD_HEADER + 20


def main(launcher: str, descriptor: str, text: str) -> None:
    """Run the network that ``text`` describes until the launcher closes the control socket ``descriptor``."""
    die_with(int(launcher))
    request = json.loads(text)
    uplink = EmulatedLink(*request["uplink"]) if request["uplink"] else None
    net = network(request["hosts"], EmulatedLink(*request["link"]), request["racks"], uplink)
    life = os.pipe()
    with socket.socket(fileno=int(descriptor)) as control:
        try:
            made = _make(request["hosts"], life)
        except OSError as error:
            control.sendall(json.dumps({"error": str(error)}).encode() + b"\n")
            return
        _compile()
        _reduce_delays()
        control.sendall(json.dumps({"pids": [host.pid for host in made]}).encode() + b"\n")
        devices, numbers = _numbers(made, control.fileno())
        with _polling([*devices.tolist(), control.fileno()]) as poll:
            carry(net, devices, numbers, poll.fileno())
            while _execute(net, control):
                carry(net, devices, numbers, poll.fileno())
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
        net = network(1, EmulatedLink(1.0, 0.0), packets=1, most=1)
        devices, numbers = _numbers([], reader)
        carry(net, devices, numbers, poll.fileno())


def _polling(numbers: list[int]) -> select.epoll:
    poll = select.epoll()
    for number in numbers:
        poll.register(number, select.EPOLLIN)
    return poll


def _numbers(made: list[Host], most: int) -> tuple[Ints, Ints]:
    """Return the device of each host, and by descriptor up to ``most`` the host of each device, or NONE."""
    devices = np.array([host.device for host in made], dtype=np.int64)
    largest = max(most, int(devices.max(initial=0)))
    hosts = np.full(1 + largest, NONE)
    hosts[devices] = np.arange(len(made))
    return devices, hosts


def _reduce_delays() -> None:
    """Ask for real-time scheduling and timers to the microsecond, if the system allows it."""
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))


def _execute(net: EmulatedNetwork, control: socket.socket) -> bool:
    """Execute one request of the launcher, a line, and answer it.

    False if the launcher has closed the socket.
    """
    line = control.recv(MAX_REQUEST)
    if not line:
        return False
    request: dict[str, Any] = json.loads(line)
    for what, value in request["set"].items():
        change(net, request["host"], request["other"], what, value)
    control.sendall(b"{}\n")
    return True


def epoll_event(machine: str) -> tuple[int, int]:
    """Return the length of the system's ``epoll_event`` and the place of the descriptor, in words of 32 bits.

    The compiler aligns the 8 bytes of data behind 4 bytes of events. Only x86-64 packs the two.

    >>> epoll_event("x86_64"), epoll_event("aarch64")
    ((3, 1), (4, 2))
    """
    return (3, 1) if machine == "x86_64" else (4, 2)


EVENT_WORDS, DESCRIPTOR = epoll_event(platform.machine())


@compiled
def carry(net: EmulatedNetwork, devices: Ints, hosts: Ints, poll: int) -> None:
    """Carry packets between the hosts' devices until another descriptor can be read.

    ``hosts`` has the host of each device by descriptor, NONE for other descriptors; ``poll`` is an
    epoll of all of them.
    """
    time, events = np.zeros(2, dtype=np.int64), np.zeros(EVENT_WORDS * BATCH, dtype=np.uint32)
    # A pollfd: int32 descriptor, int16 events, int16 results.
    waiting = np.array([poll | POLLIN << 32], dtype=np.int64)
    while True:
        _sleep(next_event(net) - EARLY - _now(time), waiting, time)
        for nth in range(_poll(poll, events)):
            device = events[EVENT_WORDS * nth + DESCRIPTOR]
            if hosts[device] == NONE:
                return
            _read(net, device, hosts[device], time)
            _write(net, devices, time)
        _write(net, devices, time)


@compiled
def _now(time: Ints) -> float:
    clock_gettime(MONOTONIC, time.ctypes.data)
    return float(time[0] + time[1] / BILLION)


@compiled
def _poll(poll: int, events: Any) -> int:
    return int(epoll_wait(poll, events.ctypes.data, BATCH, 0))


@compiled
def _sleep(seconds: float, waiting: Ints, time: Ints) -> None:
    """Wait for input, at most for ``seconds``: epoll itself counts in milliseconds."""
    nanoseconds = int(min(max(seconds, 0.0), 1.0) * BILLION)
    time[0], time[1] = nanoseconds // BILLION, nanoseconds % BILLION
    ppoll(waiting.ctypes.data, np.uint64(1), time.ctypes.data, np.uintp(0))


@compiled
def _read(net: EmulatedNetwork, device: int, source: int, time: Ints) -> None:
    """Read packets that a host sends; drop those that are not for another host."""
    for _ in range(BATCH):
        packet = free_packet(net)
        if packet == NONE:
            return
        data = net.data[packet]
        length = read(device, net.data[packet].ctypes.data, np.uint64(len(data)))
        if length < 0:
            return
        target = int(data[TARGET + 3]) - 1
        if data[VERSION] >> 4 == 4 and 0 <= target < net.hosts:
            ports = 0
            for byte in data[PORTS : PORTS + 4]:
                ports = ports << 8 | int(byte)
            send(net, source, target, length - OFFLOAD_HEADER, ports, _now(time))


@compiled
def _write(net: EmulatedNetwork, devices: Ints, time: Ints) -> None:
    """Write the packets that have arrived to their hosts."""
    until = _now(time) + EARLY
    packet = advance(net, until)
    while packet != NONE:
        at = net.data[packet].ctypes.data
        # The write fails if the host is about to end, which does not matter.
        write(
            devices[net.packets[packet].target],
            at,
            np.uint64(net.packets[packet].size + OFFLOAD_HEADER),
        )
        release(net, packet)
        packet = advance(net, until)


if __name__ == "__main__":
    with suppress(ConnectionError):  # the launcher has gone: the hosts end as this process does
        main(*sys.argv[1:])

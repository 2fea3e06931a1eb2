"""Check that a cluster has the speed that was set: round trip, one way, all to one, and all pairs at once.

`check` runs this file as a script on every host, too: there it sends, receives and echoes, and
reports rates and times. So that it starts fast, it then imports Python's own modules only. Jobs are
lines of JSON on standard input.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import IO, TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collectives.emulator import Cluster
    from collectives.processes import ChildProcess as Probe

Row = dict[str, Any]
ROUND_TRIPS = 50
SETTLE_SECONDS = 0.3
LEAST_BYTES = 1 << 20  # of a stream, for more than TCP's slow start
SECONDS = 3.0  # of a stream at the set rate
LIMIT_SECONDS = 120
HEADING = f"{'what':<26}{'set':>12}{'measured':>12}{'off by':>9}"

PORT = 5001
PIECE = 1 << 20
CONNECT_SECONDS = 30.0


def check(cluster: Cluster, latency: float, report: Callable[[Row], None]) -> list[Row]:
    """Measure a cluster whose links are equal.

    Return rows of the set value, the measured one, and the relative error.

    ``latency`` is in seconds. A rate counts from the common start to the last byte, TCP's slow
    start included. ``load`` is the machine's load average: near or above the number of cores the
    error means little. Raises TimeoutError if a measurement takes more than two minutes.
    """
    from collectives.processes import end

    last, rate = cluster.hosts - 1, cluster.rate
    everyone = list(range(cluster.hosts))
    with ExitStack() as stack:
        probes: list[Probe] = []
        stack.callback(end, probes)
        for host in everyone:
            command = [sys.executable, "-S", "-E", __file__]
            started = cluster.popen(host, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            probes.append(stack.enter_context(started))
        _answers(probes)
        rows: list[Row] = []

        def add(what: str, wanted: float, measured: float, unit: str) -> None:
            row = {
                "what": what,
                "hosts": cluster.hosts,
                "set": wanted,
                "measured": measured,
                "unit": unit,
                "error": abs(measured / wanted - 1),
                "load": os.getloadavg()[0],
            }
            rows.append(row)
            report(row)

        one_way = {0: [last]}
        trips = _measure(probes, one_way, times=ROUND_TRIPS)[0]["round_trips"]
        add("round trip", 2 * latency, statistics.median(trips), "s")
        received = _stream(probes, one_way, rate)[last]
        add("one way", rate, received["rate"], "B/s")
        to_one = {host: [0] for host in everyone[1:]}
        received = _stream(probes, to_one, rate)[0]
        add("all to one", rate, received["rate"], "B/s")
        add("all to one: evenness", 1.0, received["evenness"], "Jain's index")
        pairs = {host: [to for to in everyone if to != host] for host in everyone}
        rates = [answer["rate"] for answer in _stream(probes, pairs, rate)]
        add("all pairs: median host", rate, statistics.median(rates), "B/s")
        return rows


def line(row: Row) -> str:
    """Describe a row in one line."""
    units = {"s": (1e3, "ms"), "B/s": (1e-6, "MB/s")}
    scale, unit = units.get(row["unit"], (1.0, ""))
    wanted, measured = row["set"] * scale, row["measured"] * scale
    values = f"{wanted:>7.4g} {unit:<4}{measured:>7.4g} {unit:<4}"
    return f"{row['what']:<26}{values}{row['error']:>9.1%}"


def _stream(probes: list[Probe], pairs: dict[int, list[int]], rate: float) -> list[Row]:
    """Send bytes over every pair, enough for three seconds at the busiest receiver."""
    most = max(sum(host in to for to in pairs.values()) for host in range(len(probes)))
    return _measure(probes, pairs, bytes=max(int(SECONDS * rate / most), LEAST_BYTES))


def _measure(probes: list[Probe], pairs: dict[int, list[int]], **job: Any) -> list[Row]:
    """Connect all pairs, then start all hosts at the same time; return every host's answer."""
    from collectives.emulator import address

    for host, process in enumerate(probes):
        targets = [address(to) for to in pairs.get(host, [])]
        senders = sum(host in to for to in pairs.values())
        _tell(process, {"to": targets, "from": senders, "limit": 1.0, **job})
    _answers(probes)
    at = time.monotonic() + SETTLE_SECONDS
    for process in probes:
        _tell(process, {"at": at})
    return _answers(probes)


def _tell(process: Probe, job: Row) -> None:
    stream = cast("IO[bytes]", process.stdin)
    stream.write(json.dumps(job).encode() + b"\n")
    stream.flush()


def _answers(probes: list[Probe]) -> list[Row]:
    """Read one line from every probe."""
    lines = [cast("IO[bytes]", process.stdout).readline() for process in probes]
    for host, process in enumerate(probes):
        if not lines[host]:
            if process.wait() == -signal.SIGALRM:
                raise TimeoutError(f"the check timed out after {LIMIT_SECONDS} s on host {host}")
            raise RuntimeError(f"the probe on host {host} has ended")
    return [json.loads(line) for line in lines]


def serve() -> None:
    """Do one job after the other, with the machine's clock, which all hosts share."""
    with socket.create_server(("", PORT), backlog=512) as server:
        server.settimeout(CONNECT_SECONDS)
        say({})
        for line in sys.stdin:
            job = json.loads(line)
            signal.alarm(LIMIT_SECONDS)
            outgoing = [socket.create_connection((to, PORT), CONNECT_SECONDS) for to in job["to"]]
            incoming = [server.accept()[0] for _ in range(job["from"])]
            for each in outgoing + incoming:
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            say({})
            job |= json.loads(sys.stdin.readline())
            time.sleep(max(0.0, job["at"] - time.monotonic()))
            measure = echo if "times" in job else stream
            say(measure(job, outgoing, incoming))
            for each in outgoing + incoming:
                each.close()
            signal.alarm(0)


def say(answer: dict[str, Any]) -> None:
    """Write one line for `check`."""
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def echo(
    job: dict[str, Any], outgoing: list[socket.socket], incoming: list[socket.socket]
) -> dict[str, Any]:
    """Return the seconds of each round trip of one byte.

    A host that sends to none echoes instead.
    """
    took = []
    for _ in range(job["times"]):
        start = time.monotonic()
        for to in outgoing:
            to.sendall(b"?")
            to.recv(1)
        for of in incoming:
            of.sendall(of.recv(1))
        took.append(time.monotonic() - start)
    return {"round_trips": took if outgoing else []}


def stream(
    job: dict[str, Any], outgoing: list[socket.socket], incoming: list[socket.socket]
) -> dict[str, Any]:
    """Send and receive on all connections at once.

    Return this host's rate and the evenness after half the bytes.

    The rate counts all bytes from the common start to the last of them. From the first read it
    would exceed the link's, because bytes arrive before a host reads.
    """
    # By file descriptor: the sockets, the bytes that are left to send, and those that have come.
    sockets = {one.fileno(): one for one in outgoing + incoming}
    left = {to.fileno(): job["bytes"] for to in outgoing}
    got = {of.fileno(): 0 for of in incoming}
    poll = select.epoll()
    for number, one in sockets.items():
        poll.register(number, select.EPOLLOUT if number in left else select.EPOLLIN)
        one.setblocking(False)
    piece = memoryview(bytes(PIECE))
    into = bytearray(PIECE)
    total = 0
    whole = job["bytes"] * len(got)
    shares: list[int] = []
    end = job["at"]
    while left or total < whole:
        for number, _ in poll.poll(job["limit"]):
            if number in left:
                left[number] -= sockets[number].send(piece[: left[number]])
                if not left[number]:
                    poll.unregister(number)
                    del left[number]
            else:
                received = sockets[number].recv_into(into)
                got[number] += received
                total += received
                end = time.monotonic()
        if not shares and 2 * total >= whole:
            shares = list(got.values())
    rate = whole / (end - job["at"]) if whole else None
    return {"rate": rate, "evenness": _evenness(shares)}


def _evenness(shares: list[int]) -> float | None:
    """Return Jain's index: 1 if all have the same, 1 / n if one of n has everything."""
    if not shares:
        return None
    squares = sum(share**2 for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares)


if __name__ == "__main__":
    serve()

"""Whether a cluster has the speed that was set: round trip, one way, all to one, and all pairs at once."""

import json
import os
import selectors
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from collectives.emulator import Cluster, address, probe
from collectives.processes import end

Row = dict[str, Any]
ROUND_TRIPS = 50
SETTLE_SECONDS = 0.3
LEAST_BYTES = 1 << 20  # of a stream, for more than TCP's slow start
SECONDS = 3.0  # of a stream at the set rate
LIMIT_SECONDS = 120.0
HEADING = f"{'what':<26}{'set':>12}{'measured':>12}{'off by':>9}"


def check(cluster: Cluster, latency: float, report: Callable[[Row], None]) -> list[Row]:
    """Measure a cluster whose links are all alike; rows of the set value, the measured one, and the relative error.

    ``latency`` is in seconds. A rate counts from the common start to the last byte, TCP's slow start included. ``load``
    is the machine's load average: near or above the number of cores the error means little. Raises TimeoutError if a
    measurement takes more than two minutes.
    """
    last, rate = cluster.hosts - 1, cluster.rate
    everyone = list(range(cluster.hosts))
    with ExitStack() as stack:
        probes = [_probe(cluster, host, stack) for host in everyone]
        _answers(probes)
        rows = []

        def row(what: str, wanted: float, measured: float, unit: str) -> None:
            error = abs(measured / wanted - 1)
            rows.append({"what": what, "hosts": cluster.hosts, "set": wanted, "measured": measured, "unit": unit})
            rows[-1] |= {"error": error, "load": os.getloadavg()[0]}
            report(rows[-1])

        trips = _measure(probes, {0: [last]}, times=ROUND_TRIPS)[0]["round_trips"]
        row("round trip", 2 * latency, statistics.median(trips), "s")
        row("one way", rate, _stream(probes, {0: [last]}, rate)[last]["rate"], "B/s")
        incast = _stream(probes, {host: [0] for host in everyone[1:]}, rate)[0]
        row("all to one", rate, incast["rate"], "B/s")
        row("all to one: evenness", 1.0, incast["evenness"], "Jain's index")
        pairs = {host: [to for to in everyone if to != host] for host in everyone}
        rates = [answer["rate"] for answer in _stream(probes, pairs, rate)]
        row("all pairs: median host", rate, statistics.median(rates), "B/s")
        return rows


def line(row: Row) -> str:
    """A row as the terminal shows it."""
    scale, unit = {"s": (1e3, "ms"), "B/s": (1e-6, "MB/s")}.get(row["unit"], (1.0, ""))
    return (
        f"{row['what']:<26}{row['set'] * scale:>7.4g} {unit:<4}{row['measured'] * scale:>7.4g} {unit:<4}"
        f"{row['error']:>9.1%}"
    )


def _probe(cluster: Cluster, host: int, stack: ExitStack) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-S", "-E", probe.__file__]
    process = stack.enter_context(cluster.popen(host, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
    stack.callback(end, [process])
    return process


def _stream(probes: list[subprocess.Popen[bytes]], pairs: dict[int, list[int]], rate: float) -> list[Row]:
    """Send bytes over every pair, enough for three seconds at the busiest receiver."""
    most = max(sum(host in to for to in pairs.values()) for host in range(len(probes)))
    return _measure(probes, pairs, bytes=max(int(SECONDS * rate / most), LEAST_BYTES))


def _measure(probes: list[subprocess.Popen[bytes]], pairs: dict[int, list[int]], **job: Any) -> list[Row]:
    """Connect all pairs, then start all hosts at the same time; returns every host's answer."""
    for host, process in enumerate(probes):
        senders = sum(host in to for to in pairs.values())
        _tell(process, {"to": [address(to) for to in pairs.get(host, [])], "from": senders, "limit": 1.0, **job})
    _answers(probes)
    at = time.monotonic() + SETTLE_SECONDS
    for process in probes:
        _tell(process, {"at": at})
    return _answers(probes)


def _tell(process: subprocess.Popen[bytes], job: Row) -> None:
    if process.stdin is None:
        raise ValueError("a probe takes its jobs from a pipe")
    process.stdin.write(json.dumps(job).encode() + b"\n")
    process.stdin.flush()


def _answers(probes: list[subprocess.Popen[bytes]]) -> list[Row]:
    """One line from every probe."""
    deadline, answers = time.monotonic() + LIMIT_SECONDS, dict[int, Row]()
    with selectors.DefaultSelector() as selector:
        for host, process in enumerate(probes):
            if process.stdout is not None:
                selector.register(process.stdout, selectors.EVENT_READ, host)
        while len(answers) < len(probes):
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError(
                    f"the check timed out after {LIMIT_SECONDS:g} s: {len(answers)} of {len(probes)} answers"
                )
            for key, _ in ready:
                said = probes[key.data].stdout.readline()
                if not said:
                    raise RuntimeError(f"the probe on host {key.data} has ended")
                answers[key.data] = json.loads(said)
                selector.unregister(key.fileobj)
    return [answers[host] for host in range(len(probes))]

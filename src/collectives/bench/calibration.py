"""A machine made from a measurement: latency, overhead and rate, fitted to messages between two real ranks.

The ranks call `run`, and they alone import torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from collectives.bench.results import record
from collectives.bench.settings import Row
from collectives.files import replace
from collectives.launch import launch
from collectives.machine import Link, Machine, text
from collectives.units import format_bytes

if TYPE_CHECKING:
    from collectives.engine.tcp.execute import Tcp

CLOSE = 0.25  # how far a fit may be off at every size before `trust` warns

SIZES = (8, 64, 1 << 10, 8 << 10, 32 << 10, 128 << 10, 512 << 10, 2 << 20)

BURST = 16  # messages


def save(machine: Machine, path: Path) -> None:
    """Write the machine as a file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace(path, lambda partial: partial.write_text(text(machine), encoding="utf8"))


def measured(
    where: str, ranks: int, sizes: Sequence[int], repetitions: int, timeout: float
) -> list[Row]:
    """Return the medians for messages of each size between the first and the last of ``ranks`` ranks (`run`)."""
    settings = {"bytes": list(sizes), "repetitions": repetitions}
    events = launch("collectives.bench.calibration", settings, ranks, where=where, timeout=timeout)
    return list(chain.from_iterable(event.get("rows", []) for event in events))


def link(rows: Sequence[Row]) -> Link:
    """Fit a link to messages; the relative errors of all sizes have the same weight.

    A message alone takes latency + overhead + bytes / rate. In a burst each takes all but the
    latency; the overhead is found from the smaller half of the sizes. Raises ValueError for fewer
    than two sizes.

    >>> rows = [{"bytes": m, "one_way": 7e-6 + m / 1e9, "each": 2e-6 + m / 1e9} for m in (8, 1000, 100_000)]
    >>> fitted = link(rows)
    >>> round(fitted.latency * 1e6, 3), round(fitted.overhead * 1e6, 3), round(fitted.rate / 1e9, 3)
    (5.0, 2.0, 1.0)
    """
    if len({row["bytes"] for row in rows}) < 2:
        raise ValueError(
            f"sizes to fit a link: got {len({row['bytes'] for row in rows})}, expected two sizes of messages or more"
        )
    sizes = np.array([row["bytes"] for row in rows], dtype=float)
    each, one_way = (np.array([row[name] for row in rows]) for name in ("each", "one_way"))
    beta, small = _line(sizes, one_way)[1], slice(1 + len(sizes) // 2)
    alpha, overhead = (
        max(0.0, float(np.median((seconds - beta * sizes)[small]))) for seconds in (one_way, each)
    )
    overhead = min(overhead, alpha)
    return Link(latency=alpha - overhead, overhead=overhead, rate=1 / beta)


def _line(sizes: Any, seconds: Any) -> tuple[float, float]:
    """Return start and slope of the line with the least relative errors.

    A start below zero becomes zero.
    """
    start, slope = np.linalg.lstsq(
        np.stack([1 / seconds, sizes / seconds], axis=1), np.ones_like(sizes), rcond=None
    )[0]
    if start < 0:
        start, slope = 0.0, float(np.sum(sizes / seconds) / np.sum((sizes / seconds) ** 2))
    return float(start), float(max(slope, 1e-15))


def machine_of(rows: Sequence[Row], name: str, where: str) -> Machine:
    """Make a machine of one rank a node, joined by the fitted link.

    Its source says where it was measured.
    """
    here = record()
    on = f"{here['processor']}, {here['usable_cores']} cores, {here['system']}"
    source = f"messages between two ranks ({where}; {on})"
    fitted = link(rows)
    # A tenth of a nanosecond and six digits of the rate are more than any measurement knows.
    latency, overhead, rate = (
        round(fitted.latency, 10),
        round(fitted.overhead, 10),
        float(f"{fitted.rate:.6g}"),
    )
    return Machine(
        name=name, source=source, network=Link(latency=latency, overhead=overhead, rate=rate)
    )


def deviations(rows: Sequence[Row], fitted: Link) -> list[Row]:
    """Return the rows with the seconds one way by the fit, and the share by which the fit is off."""
    fits = [fitted.alpha + fitted.beta * row["bytes"] for row in rows]
    return [
        row | {"fit": fit, "off": fit / row["one_way"] - 1}
        for row, fit in zip(rows, fits, strict=True)
    ]


def trust(rows: Sequence[Row]) -> str:
    """Describe in a sentence or two what the deviations mean for simulations with the fitted machine.

    >>> trust([{"bytes": 8, "each": 2e-6, "off": 0.04}, {"bytes": 1024, "each": 3e-6, "off": -0.12}])
    'The fit is at most 12% off, at 1 KiB: you can trust times simulated with this machine to about that.'
    """
    lost = [format_bytes(row["bytes"]) for row in rows if row["each"] <= 0]
    if lost:
        return (
            f"Do not trust the overhead: for messages of {', '.join(lost)} a burst took no longer than one of them, so "
            "the machine was too busy to tell. Measure again on an idle machine, with more --repetitions."
        )
    worst = max(rows, key=lambda row: abs(row["off"]))
    off, at = f"{abs(worst['off']):.0%}", format_bytes(worst["bytes"])
    if abs(worst["off"]) <= CLOSE:
        return f"The fit is at most {off} off, at {at}: you can trust times simulated with this machine to about that."
    return (
        f"Do not trust the fit near {at}: it says {off} {'less' if worst['off'] < 0 else 'more'} than was measured, "
        "because one latency and one rate do not fit all sizes. Measure again on an idle machine, with more "
        "--repetitions; if that does not help, simulate only sizes whose line above is within "
        f"{CLOSE:.0%}."
    )


def run(settings: Row, report: Callable[[Row], None]) -> None:
    """Measure every size in turn, again and again.

    Rank 0 reports the medians of the first and the last rank.

    ``one_way`` is half the time of a message there and back; ``each`` is by how much longer a burst
    takes for each message more. Seconds. Messages are those that our own back end sends.
    """
    import torch
    from torch import distributed as dist

    from collectives.engine.group import communicator

    torch.set_num_threads(1)
    sizes, repetitions = settings["bytes"], settings["repetitions"]
    joined: Any = communicator(dist.group.WORLD).transport()  # type: ignore[arg-type]
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    there, single, burst = (
        torch.zeros(repetitions, len(sizes), dtype=torch.float64) for _ in range(3)
    )
    for i in range(-2, repetitions):  # two rounds to warm up
        for nth, nbytes in enumerate(sizes):
            dist.barrier()
            if rank in (0, last):
                # There and back; one message, and a burst of them, to the last rank and a byte back
                # when all are in.
                asked = (1, nbytes), (1, 1), (BURST, 1)
                seconds = [_exchange(joined, nbytes, count, answer) for count, answer in asked]
                for times, measured in zip((there, single, burst), seconds, strict=True):
                    times[max(i, 0), nth] = measured
    each = (burst - single) / (BURST - 1)
    one_way = (there.median(dim=0).values / 2).tolist()
    columns = zip(sizes, one_way, each.median(dim=0).values.tolist(), strict=True)
    report(
        {
            "rows": [
                {"bytes": nbytes, "one_way": trip, "each": more} for nbytes, trip, more in columns
            ]
        }
    )


def _exchange(joined: Tcp, nbytes: int, count: int, answer: int) -> float:
    """Return the first rank's seconds from its first message until the answer is in.

    The last rank's are of no use.
    """
    from collectives.engine.probe import Pair

    asks = joined.mesh.rank == 0
    with joined.mesh.begin():
        return Pair(joined, joined.mesh.size - 1 if asks else 0, asks).seconds(
            1, count, nbytes, answer
        )

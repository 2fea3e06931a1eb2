"""A machine made from a measurement: latency, overhead and rate, fitted to messages between two real ranks."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from collectives.bench.environment import record
from collectives.bench.results import replace
from collectives.bench.settings import Row
from collectives.launch import launch
from collectives.machine import Link, Machine, text
from collectives.units import format_bytes

CLOSE = 0.25  # how far a fit may be off at every size before `trust` warns

SIZES = (8, 64, 1 << 10, 8 << 10, 32 << 10, 128 << 10, 512 << 10, 2 << 20)


def save(machine: Machine, path: Path) -> None:
    """Write the machine as a file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace(path, lambda partial: partial.write_text(text(machine), encoding="utf8"))


def measured(where: str, ranks: int, sizes: Sequence[int], repetitions: int, timeout: float) -> list[Row]:
    """Medians for messages of each size between the first and the last of ``ranks`` ranks (`bench.ping_pong`)."""
    settings = {"bytes": list(sizes), "repetitions": repetitions}
    events = launch("collectives.bench.ping_pong", settings, ranks, where=where, timeout=timeout)
    return [row for event in events for row in event.get("rows", [])]


def link(rows: Sequence[Row]) -> Link:
    """The link that fits best, every size's relative error counting alike.

    Alone a message takes latency + overhead + bytes / rate; in a burst each of them takes all but the latency, and the
    smaller half of the sizes say what of it is overhead. Raises ValueError for fewer than two sizes.

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
    alpha, overhead = (max(0.0, float(np.median((seconds - beta * sizes)[small]))) for seconds in (one_way, each))
    overhead = min(overhead, alpha)
    return Link(latency=alpha - overhead, overhead=overhead, rate=1 / beta)


def _line(sizes: Any, seconds: Any) -> tuple[float, float]:
    """Start and slope of the line with the least relative errors; a start below zero is none."""
    start, slope = np.linalg.lstsq(np.stack([1 / seconds, sizes / seconds], axis=1), np.ones_like(sizes), rcond=None)[0]
    if start < 0:
        start, slope = 0.0, float(np.sum(sizes / seconds) / np.sum((sizes / seconds) ** 2))
    return float(start), float(max(slope, 1e-15))


def machine_of(rows: Sequence[Row], name: str, where: str) -> Machine:
    """One rank a node, joined by the fitted link; its source says where it was measured."""
    here = record()
    source = (
        f"messages between two ranks ({where}; {here['processor']}, {here['usable_cores']} cores, {here['system']})"
    )
    return Machine(name=name, source=source, network=_rounded(link(rows)))


def _rounded(fitted: Link) -> Link:
    """To a tenth of a nanosecond, and six digits of the rate: more than any measurement knows."""
    return Link(
        latency=round(fitted.latency, 10), overhead=round(fitted.overhead, 10), rate=float(f"{fitted.rate:.6g}")
    )


def deviations(rows: Sequence[Row], fitted: Link) -> list[Row]:
    """Each size: one way measured and by the fit, and how far the fit is off."""
    fits = [fitted.alpha + fitted.beta * row["bytes"] for row in rows]
    return [row | {"fit": fit, "off": fit / row["one_way"] - 1} for row, fit in zip(rows, fits, strict=True)]


def trust(rows: Sequence[Row]) -> str:
    """What the deviations mean for simulations with the fitted machine, as a sentence or two.

    >>> trust([{"bytes": 8, "each": 2e-6, "off": 0.04}, {"bytes": 1024, "each": 3e-6, "off": -0.12}])
    'The fit is at most 12% off, at 1 KiB: you can trust times simulated with this machine to about that.'
    """
    if lost := [format_bytes(row["bytes"]) for row in rows if row["each"] <= 0]:
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

"""Measure collectives on real ranks: `Settings` say what, and `bench` launches the ranks and returns their rows."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import psutil  # type: ignore[import-untyped]

from collectives import units
from collectives.backends import backend, named, need
from collectives.bench.settings import DTYPES, MEASURED, OPS, OURS, Row, Settings
from collectives.launch import launch
from collectives.units import format_bytes

__all__ = [
    "DTYPES",
    "MEASURED",
    "OPS",
    "OURS",
    "Measurement",
    "Row",
    "Settings",
    "bench",
    "launches",
    "need_all",
    "needed_here",
]


def launches(wanted: Sequence[Settings]) -> list[list[Settings]]:
    """What is measured by the same ranks: the parts of all these settings whose ranks are started alike."""
    together: dict[tuple[Any, ...], list[Settings]] = {}
    for one in (one for settings in wanted for one in settings.launches()):
        restless = backend(named(one.backends[0])[0]).is_restless
        together.setdefault((one.where, restless, one.ranks, frozenset(one.variables().items())), []).append(one)
    return list(together.values())


def need_all(wanted: Sequence[Settings]) -> None:
    """Raise ImportError, with the reason, where a back end is absent of those whose ranks would be on this machine.

    Raises ValueError where this machine's memory cannot hold what these ranks need at the very least.
    """
    for settings in wanted:
        for name in dict(map(named, settings.backends)):
            if needed_here(settings.where, name):
                need(name)
                _need_memory(settings)


def _need_memory(settings: Settings) -> None:
    # A rank's data, what comes out, what must come out, and 64-bit numbers that either is made from.
    buffers = 0 if settings.collective in ("scatter", "gather") else 4 * max(settings.bytes, default=0)
    needed, there = settings.ranks * (units.BYTES_OF_A_RANK + buffers), psutil.virtual_memory().total
    if needed > there:
        raise ValueError(
            f"memory for {settings.ranks} ranks and their buffers on this machine: "
            f"got {format_bytes(there)}, expected {format_bytes(needed)} or more"
        )


def _place(alike: Sequence[Settings]) -> str:
    """Where `launch` has to start the ranks of these: on emulated hosts by mpirun, if one of them needs it."""
    where = alike[0].where
    launchers = {backend(named(typed)[0]).launcher for one in alike for typed in one.backends}
    if not where.startswith("cluster") or where.endswith("mpirun") or "mpirun" not in launchers:
        return where
    return f"{where}{',' if ':' in where else ':'}mpirun"


def needed_here(where: str, name: str) -> bool:
    """Whether this machine must have a back end: not where its ranks may live on others."""
    return where.startswith(("loopback", "cluster")) or backend(name).launcher is not None


class Measurement(NamedTuple):
    """Rows, one per size and configuration, and a record of every rank's environment in every launch."""

    rows: list[Row]
    environment: list[Row]


def bench(wanted: Sequence[Settings], on_event: Callable[[Row], None] = lambda _: None) -> Measurement:
    """Launch ranks, measure, and return the rows. Raises RankError if a rank fails or time is up.

    Whatever is started alike is measured in one launch, and its back ends in turn; the launches come one after the
    other. Raises what `need_all` does before the first one. Events on the way: ``{"rows": […]}`` of
    each size, ``{"environment": […]}`` and ``{"done": rounds, "of": rounds, "where": …, "collective": …}``.
    """
    need_all(wanted)
    measured = Measurement([], [])
    for alike in launches(wanted):
        first = alike[0]
        events = launch(
            "collectives.bench.measure",
            {"measure": [one.model_dump() for one in alike]},
            first.ranks,
            where=_place(alike),
            timeout=sum(one.timeout for one in alike),
            environment=first.variables(),
            on_event=on_event,
        )
        measured.rows.extend(row for event in events for row in event.get("rows", []))
        measured.environment.extend(next(event["environment"] for event in events if "environment" in event))
    return measured

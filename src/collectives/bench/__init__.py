"""Measure collectives on real ranks: `Settings` say what, and `bench` launches the ranks and returns their rows."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import psutil  # type: ignore[import-untyped]

from collectives import units
from collectives.backends import backend, named, need
from collectives.bench.settings import (
    DTYPES,
    OPS,
    OURS,
    Row,
    Settings,
    group_by_launch,
    shares_gpus,
    where_for,
)
from collectives.launch import launch
from collectives.launch.where import parse_where
from collectives.nccl import gpus
from collectives.units import format_bytes

__all__ = [
    "DTYPES",
    "OPS",
    "OURS",
    "Measurement",
    "Row",
    "Settings",
    "bench",
    "check_here",
    "runs_here",
]


def check_here(wanted: Sequence[Settings]) -> None:
    """Raise ImportError, with the reason, if a back end is absent whose ranks would be on this machine.

    Raises ValueError if this machine has too few GPUs, too few cores for ranks that share GPUs, or
    less memory than these ranks need at least.
    """
    for settings in wanted:
        here = [
            name for name in dict(map(named, settings.backends)) if runs_here(settings.where, name)
        ]
        for name in here:
            need(name)
            if shares_gpus(name, settings):
                gpus.need(settings.ranks)
            elif backend(name).on_gpus:
                _need_gpu_each(name, settings.ranks)
        # A rank's data, what comes out, what must come out, and 64-bit numbers that either is made
        # from.
        buffers = (
            0
            if settings.collective in ("scatter", "gather")
            else 4 * max(settings.bytes, default=0)
        )
        needed, memory = (
            settings.ranks * (units.BYTES_OF_A_RANK + buffers),
            psutil.virtual_memory().total,
        )
        if here and needed > memory:
            raise ValueError(
                f"memory for {settings.ranks} ranks and their buffers on this machine: "
                f"got {format_bytes(memory)}, expected {format_bytes(needed)} or more"
            )


def _need_gpu_each(name: str, ranks: int) -> None:
    import torch

    count = torch.cuda.device_count()
    if ranks > count:
        raise ValueError(
            f"GPUs for {name} on {ranks} ranks: got {count}, expected {ranks}, or --share-gpus"
        )


def runs_here(where: str, name: str) -> bool:
    """Return True if this machine must have a back end, because its ranks are all started here."""
    return parse_where(where).is_one_machine or backend(name).launcher is not None


class Measurement(NamedTuple):
    """Hold rows, one per size and configuration, and a record of every rank's environment in every launch."""

    rows: list[Row]
    environment: list[Row]


def bench(
    wanted: Sequence[Settings], on_event: Callable[[Row], None] = lambda _: None
) -> Measurement:
    """Launch ranks, measure, and return the rows. Raises RankError if a rank fails or time is up.

    Settings are measured in the launches of `group_by_launch`, one after the other, and the back
    ends of a launch in turn. Raises what `check_here` does before the first one. Events on the way:
    ``{"rows": […]}`` of each size, ``{"environment": […]}`` and ``{"done": rounds, "of": rounds,
    "where": …, "collective": …}``.
    """
    check_here(wanted)
    measured = Measurement([], [])
    for parts in group_by_launch(wanted):
        first = parts[0]
        events = launch(
            "collectives.bench.measure",
            {"measure": [one.model_dump() for one in parts]},
            first.ranks,
            where=where_for(parts),
            timeout=sum(one.timeout for one in parts),
            environment=first.variables(),
            on_event=on_event,
            share_gpus=shares_gpus(named(first.backends[0])[0], first),
        )
        for event in events:
            measured.rows.extend(event.get("rows", []))
        measured.environment.extend(
            next(event["environment"] for event in events if "environment" in event)
        )
    return measured

"""Launchers: `launch` starts ranks by one of them, and returns the events that rank 0 reported.

    launch("collectives.bench.measure", settings, ranks=4, where="mpirun", timeout=600)
    launch("collectives.bench.measure", settings, ranks=8, where="cluster:5ms,25MB/s", timeout=600)

Each launcher is a function that takes a `collectives.launch.request.Request`. The process of a rank
is the same under all of them (`collectives.launch.rank`).
"""

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from collectives.launch.request import Request
from collectives.processes import Event, RankError

if TYPE_CHECKING:
    from collectives.launch.cluster import ClusterOptions
    from collectives.launch.where import Where

__all__ = ["Event", "RankError", "launch"]


def launch(
    module: str,
    settings: Event,
    ranks: int,
    *,
    where: str = "loopback",
    timeout: float,
    environment: Mapping[str, str] | None = None,
    on_event: Callable[[Event], None] = lambda _: None,
    share_gpus: bool = False,
) -> list[Event]:
    """Run ``module.run(settings, report)`` on ``ranks`` ranks.

    Return every event that rank 0 reported, in order.

    ``where`` names the launcher; on a cluster the links follow a colon. ``environment`` is added to
    that of the ranks before they start; ``on_event`` sees each event as it arrives. Within ``run``
    the ranks are a gloo process group, and LOCAL_RANK is the rank's number on its machine. With
    ``share_gpus`` ranks may be more than this machine has GPUs (`gpus`).

    Raises RankError if a rank fails or after ``timeout`` seconds; all ranks have ended by then.
    Raises ValueError for an unknown ``where``, or one whose ranks cannot share GPUs, and
    ImportError with the reason if the launcher is not installed.
    """
    from collectives.launch.where import LAUNCHERS

    need_where(where, ranks, share_gpus=share_gpus)
    place = _place(where)
    wanted = Request(
        module, settings, ranks, timeout, environment or {}, on_event, place.options, share_gpus
    )
    found, _, function = LAUNCHERS[place.launcher].partition(":")
    events: list[Event] = getattr(importlib.import_module(found), function)(wanted)
    return events


def need_where(where: str, ranks: int, *, share_gpus: bool = False) -> None:
    """Raise ValueError for an unknown launcher, and for ranks that it cannot start, or cannot have share GPUs."""
    place = _place(where)
    if ranks < 1:
        raise ValueError(f"invalid number of ranks: got {ranks}, expected 1 or more")
    if share_gpus and (not place.is_one_machine or place.has_mpirun):
        raise ValueError(f"sharing GPUs: got {where}, expected loopback, or cluster without mpirun")
    if place.is_emulated:
        _cluster_options(place.options, ranks)


def links(where: str, ranks: int) -> str | None:
    """Return the links between emulated hosts of one rank as "LATENCY,RATE".

    None where links differ, or are unknown.

    >>> links("cluster:20ms,6.25MB/s", 4)
    '20ms,6.25MB/s'
    >>> links("cluster:20ms,6.25MB/s,2", 4)
    """
    place = _place(where)
    given = _cluster_options(place.options, ranks) if place.is_emulated else None
    return (
        f"{given.latency},{given.rate}"
        if given and not given.pairs and given.ranks_per_host == 1
        else None
    )


def _place(where: str) -> "Where":
    from collectives.launch.where import parse_where  # a call in a script starts no ranks

    return parse_where(where)


def _cluster_options(text: str, ranks: int) -> "ClusterOptions":
    from collectives.launch.cluster import parse

    return parse(text, ranks)

"""Launchers: `launch` starts ranks by one of them, and returns the events that rank 0 reported.

    launch("collectives.bench.measure", settings, ranks=4, where="mpirun", timeout=600)
    launch("collectives.bench.measure", settings, ranks=8, where="cluster:5ms,25MB/s", timeout=600)

Each launcher is a function that takes a `collectives.launch.request.Request`. The process of a rank is the same under
all of them (`collectives.launch.rank`).
"""

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from collectives.launch.request import Request
from collectives.processes import Event, RankError

if TYPE_CHECKING:
    from collectives.launch.cluster import ClusterOptions

__all__ = ["LAUNCHERS", "Event", "RankError", "launch"]

# The name in ``where``, on the command line and in every row, and the function.
LAUNCHERS = {
    "loopback": "collectives.launch.forks:launch",
    "cluster": "collectives.launch.cluster:launch",
    "horovodrun": "collectives.launch.programs:launch_by_horovodrun",
    "mpirun": "collectives.launch.programs:launch_by_mpirun",
    "torchrun": "collectives.launch.torchrun:launch",
    "slurm": "collectives.launch.programs:launch_by_srun",
}


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
    """Run ``module.run(settings, report)`` on ``ranks`` ranks; return every event that rank 0 reported, in order.

    ``where`` names the launcher; on a cluster the links follow a colon. ``environment`` is added to that of the ranks
    before they start; ``on_event`` sees each event as it arrives. Within ``run`` the ranks are a gloo process group,
    and LOCAL_RANK is the rank's number on its machine. With ``share_gpus`` ranks may be more than this machine has
    GPUs (`gpus`).

    Raises RankError if a rank fails or after ``timeout`` seconds; all ranks have ended by then. Raises ValueError for
    an unknown ``where``, or one whose ranks cannot share GPUs, and ImportError with the reason if the launcher is not
    installed.
    """
    need_where(where, ranks, share_gpus=share_gpus)
    name, _, options = where.partition(":")
    wanted = Request(module, settings, ranks, timeout, environment or {}, on_event, options, share_gpus)
    found, _, function = LAUNCHERS[name].partition(":")
    events: list[Event] = getattr(importlib.import_module(found), function)(wanted)
    return events


def need_where(where: str, ranks: int, *, share_gpus: bool = False) -> None:
    """Raise ValueError for an unknown launcher, and for ranks that it cannot start, or cannot have share GPUs."""
    name, colon, options = where.partition(":")
    if name not in LAUNCHERS or (colon and name != "cluster"):
        raise ValueError(
            f"unknown where {where!r}; known are {', '.join(LAUNCHERS)}, and cluster:LATENCY,RATE or cluster:MACHINE"
        )
    if ranks < 1:
        raise ValueError(f"invalid number of ranks: got {ranks}, expected 1 or more")
    if share_gpus and (name not in ("loopback", "cluster") or where.endswith("mpirun")):
        raise ValueError(f"sharing GPUs: got {where}, expected loopback, or cluster without mpirun")
    if name == "cluster":
        _cluster_options(options, ranks)


def links(where: str, ranks: int) -> str | None:
    """Return the links between emulated hosts of one rank as "LATENCY,RATE"; None where links differ, or are unknown.

    >>> links("cluster:20ms,6.25MB/s", 4)
    '20ms,6.25MB/s'
    >>> links("cluster:20ms,6.25MB/s,2", 4)
    """
    name, _, options = where.partition(":")
    given = _cluster_options(options, ranks) if name == "cluster" else None
    return f"{given.latency},{given.rate}" if given and not given.pairs and given.ranks_per_host == 1 else None


def _cluster_options(text: str, ranks: int) -> "ClusterOptions":
    from collectives.launch.cluster import parse

    return parse(text, ranks)

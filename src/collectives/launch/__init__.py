"""Where ranks live: `launch` starts them, by whatever starts ranks there, and returns what rank 0 reported.

    launch("collectives.bench.measure", settings, ranks=4, where="mpirun", timeout=600)
    launch("collectives.bench.measure", settings, ranks=8, where="cluster:5ms,25MB/s", timeout=600)

Each way of starting ranks is one module with a function ``launch`` of the same signature; what becomes of a rank is the
same everywhere (`collectives.launch.rank`).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping

from collectives.processes.watch import Event, RankError

__all__ = ["WHERE", "Event", "RankError", "launch"]

# Name on the command line and in every row -> the module that starts ranks there.
WHERE = {
    "loopback": "collectives.launch.loopback",
    "cluster": "collectives.launch.cluster",
    "horovodrun": "collectives.launch.horovodrun",
    "mpirun": "collectives.launch.mpirun",
    "torchrun": "collectives.launch.torchrun",
    "slurm": "collectives.launch.slurm",
    "threads": "collectives.launch.threads",
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
) -> list[Event]:
    """Run ``module.run(settings, report)`` on so many ranks; returns every event that rank 0 reported, in order.

    ``environment`` is added to that of the ranks before they start; ``on_event`` sees each event when it comes. Within
    ``run`` there is a process group (gloo), and LOCAL_RANK says which of its machine's ranks this one is. Raises
    RankError when a rank fails or when ``timeout`` seconds are over; all ranks are gone by then. Raises ValueError for
    an unknown ``where``, and ImportError with the reason where what it needs is not installed.
    """
    need_where(where, ranks)
    name, _, options = where.partition(":")
    starter = importlib.import_module(WHERE[name])
    more = {"options": options} if options else {}
    events: list[Event] = starter.launch(
        module, settings, ranks, timeout=timeout, environment=environment or {}, on_event=on_event, **more
    )
    return events


def need_where(where: str, ranks: int) -> None:
    """Raise ValueError where no such place is known, or none that has room for so many ranks."""
    name, colon, options = where.partition(":")
    if name not in WHERE or (colon and name != "cluster"):
        raise ValueError(f"unknown where {where!r}; known are {', '.join(WHERE)}, and cluster:LATENCY,RATE")
    if ranks < 1:
        raise ValueError(f"ranks must be at least 1, not {ranks}")
    if name == "cluster":
        importlib.import_module(WHERE[name]).parse(options, ranks)


def links(where: str, ranks: int) -> str | None:
    """The links between emulated hosts as "LATENCY,RATE"; None elsewhere, where they are not known.

    >>> links("cluster:20ms,6.25MB/s,2", 4)
    '20ms,6.25MB/s'
    """
    name, _, options = where.partition(":")
    return ",".join(importlib.import_module(WHERE[name]).parse(options, ranks)[:2]) if name == "cluster" else None

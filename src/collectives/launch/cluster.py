"""Ranks on a cluster in slow motion, joined by gloo over its links: ``where="cluster:5ms,25MB/s"``.

After the colon come the links' latency and rate, and optionally the ranks of each host; "cluster" alone means 5ms,
25MB/s and one rank on each host. With a last word "mpirun" Open MPI starts the ranks (`cluster_mpirun`), so that MPI
works among them; `bench` adds it if one of the back ends is MPI.
"""

import os
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from typing import NamedTuple

from collectives.emulator import PORT, Cluster, address, cluster, limits
from collectives.launch import cluster_mpirun, mpirun
from collectives.launch.fork_client import FILES
from collectives.launch.fork_server import rank_command
from collectives.launch.host_servers import host_servers
from collectives.launch.loopback import reading
from collectives.launch.request import Request, settings_file
from collectives.processes import ChildProcess, Event, Log, end, supervise

MPIRUN = "mpirun"


class Options(NamedTuple):
    """The text behind the colon."""

    latency: str = "5ms"
    rate: str = "25MB/s"
    ranks_per_host: int = 1
    by_mpirun: bool = False


def parse(text: str, ranks: int) -> Options:
    """The options in the text, for ``ranks`` ranks. Raises ValueError for an invalid text or number of ranks.

    >>> parse("", 4)
    Options(latency='5ms', rate='25MB/s', ranks_per_host=1, by_mpirun=False)
    >>> parse("20ms,6.25MB/s,2,mpirun", 4)
    Options(latency='20ms', rate='6.25MB/s', ranks_per_host=2, by_mpirun=True)
    """
    words = text.split(",") if text else []
    is_by_mpirun = words[-1:] == [MPIRUN]
    words = words[:-1] if is_by_mpirun else words
    if len(words) > 3 or not all(word.isdecimal() for word in words[2:]):
        raise ValueError(
            f"invalid network: got {text!r}, expected LATENCY,RATE[,RANKS_PER_HOST], for example 5ms,25MB/s"
        )
    given = dict(zip(Options._fields, words, strict=False))
    typed = {"ranks_per_host": int(given.get("ranks_per_host", 1)), "by_mpirun": is_by_mpirun}
    options = Options(**given | typed)  # type: ignore[arg-type]
    limits.latency(options.latency), limits.rate(options.rate)
    if options.ranks_per_host < 1 or ranks % options.ranks_per_host:
        raise ValueError(
            f"cannot divide the ranks among hosts: got {ranks}, expected a multiple of {options.ranks_per_host}"
        )
    limits.need_hosts(ranks // options.ranks_per_host, options.ranks_per_host)
    return options


def launch(wanted: Request) -> list[Event]:
    """`collectives.launch.launch` on temporary emulated hosts. Raises ClusterError if none can be made."""
    module, settings, ranks, timeout, environment, on_event, text = wanted
    options = parse(text, ranks)
    if options.by_mpirun:
        mpirun.need()
    start, each = cluster_mpirun.launch_on if options.by_mpirun else launch_on, options.ranks_per_host
    with cluster(ranks // each, options.latency, options.rate) as hosts:
        return start(hosts, module, settings, each, timeout=timeout, environment=environment, on_event=on_event)


def launch_on(
    hosts: Cluster,
    module: str,
    settings: Event,
    ranks_per_host: int = 1,
    *,
    timeout: float,
    environment: Mapping[str, str] | None = None,
    on_event: Callable[[Event], None],
) -> list[Event]:
    """The same on existing hosts; ``on_event`` may change their links.

    Rank 0's report returns after ``on_event`` has, so a change that it asks for is in effect when it continues.
    """
    ranks, since = hosts.hosts * ranks_per_host, time.monotonic()
    with ExitStack() as stack:
        reader, writer = os.pipe()
        events = stack.enter_context(os.fdopen(reader, "rb", buffering=0))
        heard, answer = os.pipe()
        answers = stack.enter_context(os.fdopen(answer, "wb", buffering=0))
        logs: list[Log] = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(ranks)]
        processes: list[ChildProcess] = []
        with os.fdopen(writer, "wb"), os.fdopen(heard, "rb"), settings_file(settings) as file:
            server = stack.enter_context(host_servers(hosts.pids, module, environment or {}, timeout))
            stack.callback(end, processes)
            for rank, log in enumerate(logs):
                job = {"module": module, "settings": file, "timeout": timeout, "host": address(0), "port": PORT}
                job |= {"rank": rank, "ranks": ranks} | ({"events": writer, "answers": heard} if rank == 0 else {})
                processes.append(_start(hosts, server, job, ranks_per_host, log, environment or {}))

        def act(event: Event) -> None:
            on_event(event)
            with suppress(BrokenPipeError):  # rank 0 has failed, as `supervise` will report
                answers.write(b"\n")

        names = [f"rank {rank} of {ranks}" for rank in range(ranks)]
        return supervise(names, processes, logs, reading(events), timeout, act, since)


def _start(
    hosts: Cluster, server: str, job: Event, ranks_per_host: int, log: Log, environment: Mapping[str, str]
) -> ChildProcess:
    """One rank, in a group of its own. It needs no guard, because its host ends with this process."""
    rank = job["rank"]
    variables = {"OMP_NUM_THREADS": "1"} | hosts.variables(rank, ranks_per_host) | dict(environment)
    return hosts.popen(
        rank // ranks_per_host,
        rank_command(server, job),
        environment=variables,
        stdout=log,
        stderr=log,
        pass_fds=[job[name] for name in FILES if name in job],
    )

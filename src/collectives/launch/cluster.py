"""Ranks on a cluster in slow motion, joined by gloo over its links: ``where="cluster:5ms,25MB/s"``.

After the colon come the links' latency and rate, and optionally the ranks of each host; "cluster" alone means 5ms,
25MB/s and one rank on each host. It may be a machine whose ranks have links to each other, and how many times as slow
they are emulated, 1,000 if left out: "cluster:dgx1,10000". With a last word "mpirun" Open MPI starts the ranks, so that
MPI works among them; `bench` adds it if one of the back ends is MPI.

mpirun runs on host 0, within its namespaces, and ends with it. There is no ssh to the other hosts: mpirun's agent
writes the command for a host to the pipe of events, and this process runs it there. Rank 0's `fork_client` is a child
of mpirun. mpirun passes no open file on, so the agent and the clients open their parent's.
"""

import json
import os
import re
import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from typing import NamedTuple

from collectives.emulator import PORT, Cluster, address, cluster, limits, name
from collectives.emulator.hosts import INTERFACE
from collectives.launch.fork_server import host_servers, rank_command
from collectives.launch.loopback import reading
from collectives.launch.programs import need_mpirun
from collectives.launch.request import Request, job_file
from collectives.machine import machine
from collectives.processes import ChildProcess, Event, Log, RankError, end, indented, supervise, text
from collectives.units import format_rate, format_seconds

MPIRUN = "mpirun"

# How many times as slow the links of a machine are emulated: a result in ms reads as us.
SLOWER = "1000"

# mpirun calls it with the name of a host and a command. It splits this text at blanks in spite of quotes: ${IFS} is a
# blank that it does not see.
AGENT = 'sh -c eval${IFS}"$CLUSTER_AGENT"'
SEND = 'printf "%s\\n" "$0 $*" >/proc/$PPID/fd/{}'

MPIRUN_SETTINGS = {
    "PRTE_MCA_plm_ssh_agent": AGENT,
    "PRTE_MCA_plm_ssh_no_tree_spawn": "1",
    "PRTE_MCA_prte_if_include": INTERFACE,
    "PRTE_MCA_prte_tmpdir_base": "/dev/shm",  # a host's own, which ends with it
    "OMPI_MCA_pml": "ob1",
    "OMPI_MCA_btl": "tcp,self",
    "OMPI_MCA_btl_tcp_if_include": INTERFACE,
    # A waiting rank polls. With more ranks than cores it has to sleep in between, for a short time.
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_threads_pthreads_yield_strategy": "nanosleep",
    "OMPI_MCA_threads_pthreads_nanosleep_time": "100000",
    "GLOO_SOCKET_IFNAME": INTERFACE,
    "OMP_NUM_THREADS": "1",
}

# How mpirun reports the first rank that failed, and how it marks a rank's output.
FAILED = re.compile(r"Process name: \[[^]]*,(\d+)\]\s+Exit code: +(\d+)")
KILLED = re.compile(r"process rank (\d+) with PID \d+ on node \S+ exited on\s+signal (\d+)")
MARK = re.compile(r"^\[[^],]*,(\d+)\]<std(?:out|err)>: ?")


class ClusterOptions(NamedTuple):
    """The text behind the colon."""

    latency: str = "5ms"
    rate: str = "25MB/s"
    ranks_per_host: int = 1
    by_mpirun: bool = False
    pairs: tuple[tuple[int, int, float], ...] = ()  # hosts, and the bytes per second of the link that only they use


def parse(text: str, ranks: int) -> ClusterOptions:
    """The options in the text, for ``ranks`` ranks. Raises ValueError for an invalid text or number of ranks.

    >>> parse("", 4)
    ClusterOptions(latency='5ms', rate='25MB/s', ranks_per_host=1, by_mpirun=False, pairs=())
    >>> parse("20ms,6.25MB/s,2,mpirun", 4)[:4]
    ('20ms', '6.25MB/s', 2, True)
    >>> parse("dgx1", 8).pairs[:2]
    ((0, 1, 50000000.0), (0, 2, 25000000.0))
    """
    words = text.split(",") if text else []
    is_by_mpirun = words[-1:] == [MPIRUN]
    words = words[:-1] if is_by_mpirun else words
    if words and not words[0][:1].isdecimal():
        return _linked(words, ranks, is_by_mpirun)
    if len(words) > 3 or not all(word.isdecimal() for word in words[2:]):
        raise ValueError(
            f"invalid network: got {text!r}, expected LATENCY,RATE[,RANKS_PER_HOST], for example 5ms,25MB/s"
        )
    given = dict(zip(ClusterOptions._fields, words, strict=False))
    typed = {"ranks_per_host": int(given.get("ranks_per_host", 1)), "by_mpirun": is_by_mpirun}
    options = ClusterOptions(**given | typed)  # type: ignore[arg-type]
    limits.latency(options.latency), limits.rate(options.rate)
    if options.ranks_per_host < 1 or ranks % options.ranks_per_host:
        raise ValueError(
            f"cannot divide the ranks among hosts: got {ranks}, expected a multiple of {options.ranks_per_host}"
        )
    limits.need_hosts(ranks // options.ranks_per_host, options.ranks_per_host)
    return options


def _linked(words: list[str], ranks: int, by_mpirun: bool) -> ClusterOptions:
    """The links of a machine, slower. A pair without a link gets a tenth of a link's rate, for the store's traffic."""
    on = machine(words[0])
    times = words[1] if len(words) > 1 else SLOWER
    if len(words) > 2 or not times.isdecimal() or int(times) < 1:
        raise ValueError(f"invalid network: got {','.join(words)!r}, expected MACHINE[,TIMES], for example dgx1,10000")
    if on.links is None or on.inside is None or on.links.switches:
        raise ValueError(f"emulated machine: got {on.name}, expected one whose ranks have links to each other, as dgx1")
    if ranks != on.ranks_per_node:
        raise ValueError(f"ranks of {on.name}: got {ranks}, expected {on.ranks_per_node}")
    limits.need_hosts(ranks)
    counted = {(a, b): count for a, b, count in on.links.counted(ranks)}
    if uneven := [ends for ends, count in counted.items() if counted.get(ends[::-1]) != count]:
        raise ValueError(f"emulated links: got {uneven[0]} unlike its reverse, expected the same both ways")
    rate = on.inside.rate / int(times)
    pairs = tuple((a, b, rate * counted.get((a, b), 0.1)) for a in range(ranks) for b in range(a + 1, ranks))
    slow = format_seconds(float(f"{on.inside.alpha * int(times):.9g}")), format_rate(rate)
    return ClusterOptions(*slow, 1, by_mpirun, pairs)


def launch(wanted: Request) -> list[Event]:
    """`collectives.launch.launch` on temporary emulated hosts. Raises ClusterError if none can be made."""
    module, settings, ranks, timeout, environment, on_event, network = wanted
    options = parse(network, ranks)
    if options.by_mpirun:
        need_mpirun()
    start, each = _launch_by_mpirun if options.by_mpirun else launch_on, options.ranks_per_host
    # A host's own port sets no limit where every pair has a link: the pair's latency is added to none.
    latency, rate = ("0s", limits.RATES[1]) if options.pairs else (options.latency, options.rate)
    with cluster(ranks // each, latency, rate) as hosts:
        for host, other, bytes_per_second in options.pairs:
            hosts.set(host, other, rate=format_rate(bytes_per_second), latency=options.latency)
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
        with os.fdopen(writer, "wb"), os.fdopen(heard, "rb"), job_file(_job(module, settings, ranks, timeout)) as job:
            server = stack.enter_context(host_servers(hosts.pids, module, environment or {}, timeout))
            stack.callback(end, processes)
            for rank, log in enumerate(logs):
                files = {"job": job} | ({"events": writer, "answers": heard} if rank == 0 else {})
                variables = {"OMP_NUM_THREADS": "1"} | hosts.variables(rank, ranks_per_host) | dict(environment or {})
                # In a group of its own. It needs no guard, because its host ends with this process.
                process = hosts.popen(
                    rank // ranks_per_host,
                    rank_command(server, "cluster", files),
                    environment=variables,
                    stdout=log,
                    stderr=log,
                    pass_fds=list(files.values()),
                )
                processes.append(process)

        def act(event: Event) -> None:
            on_event(event)
            with suppress(BrokenPipeError):  # rank 0 has failed, as `supervise` will report
                answers.write(b"\n")

        names = [f"rank {rank} of {ranks}" for rank in range(ranks)]
        return supervise(names, processes, logs, reading(events), timeout, act, since)


def _job(module: str, settings: Event, ranks: int, timeout: float) -> Event:
    """What every rank gets; rank 0 listens for the store on its host."""
    return {"module": module, "settings": settings, "ranks": ranks, "timeout": timeout, "store": [address(0), PORT]}


def _launch_by_mpirun(
    hosts: Cluster,
    module: str,
    settings: Event,
    ranks_per_host: int,
    *,
    timeout: float,
    environment: Mapping[str, str],
    on_event: Callable[[Event], None],
) -> list[Event]:
    """`collectives.launch.launch` by mpirun on existing hosts. Raises RankError that names the first rank to fail."""
    since, ranks = time.monotonic(), hosts.hosts * ranks_per_host
    with ExitStack() as stack:
        job = stack.enter_context(job_file(_job(module, settings, ranks, timeout)))
        reader, writer = os.pipe()
        pipe = stack.enter_context(os.fdopen(reader, "rb", buffering=0))
        log: Log = stack.enter_context(tempfile.TemporaryFile())
        everywhere = MPIRUN_SETTINGS | {"CLUSTER_AGENT": SEND.format(writer)} | dict(environment)
        with os.fdopen(writer, "wb"):
            server = stack.enter_context(host_servers(hosts.pids, module, everywhere, timeout))
            command = [
                *_mpirun_command(hosts, ranks_per_host),
                *rank_command(server, MPIRUN, {"job": job, "events": writer}),
            ]
            started = hosts.popen(0, command, environment=everywhere, stdout=log, stderr=log, pass_fds=[writer, job])
        stack.callback(end, processes := [started])

        def run(host: int, command: str) -> None:
            asked = ["sh", "-c", command]
            processes.append(hosts.popen(host, asked, environment=everywhere, stdout=log, stderr=log, pass_fds=[job]))

        try:
            return supervise(["mpirun"], [started], [log], _serving(pipe, run), timeout, on_event, since)
        except RankError as error:
            raise RankError(_failure(log, ranks) or str(error)) from None


def _mpirun_command(hosts: Cluster, ranks_per_host: int) -> list[str]:
    """Mpirun and its options. On a host we are always root, if only of a user namespace."""
    slots = ",".join(f"{name(host)}:{ranks_per_host}" for host in range(hosts.hosts))
    ranks = str(hosts.hosts * ranks_per_host)
    return [need_mpirun(), "--allow-run-as-root", "--bind-to", "none", "--output", "tag", "-H", slots, "-n", ranks]


def _serving(pipe: Log, run: Callable[[int, str], None]) -> Callable[[float], list[Event] | None]:
    """The events in the pipe, for `supervise`; mpirun's commands for other hosts are run on the way."""
    read = reading(pipe, _event)

    def events(seconds: float) -> list[Event] | None:
        arrived = read(seconds)
        for asked in (event for event in arrived or [] if "run" in event):
            run(asked["on"], asked["run"])
        return arrived and [event for event in arrived if "run" not in event]

    return events


def _event(line: bytes) -> Event:
    """A line of the pipe: an event of rank 0, or the name of a host and mpirun's command for it.

    >>> _event(b'{"row": {}}'), _event(b"host3 prted --daemonize")
    ({'row': {}}, {'on': 3, 'run': 'prted --daemonize'})
    """
    if line.startswith(b"{"):
        event: Event = json.loads(line)
        return event
    host, _, command = line.decode().partition(" ")
    return {"on": int(host.removeprefix("host")), "run": command}


def _failure(log: Log, ranks: int) -> str | None:
    """The first rank that failed, how, and its last lines; None if mpirun reports none."""
    said = text(log)
    if found := FAILED.search(said):
        how = f"ended with exit code {found[2]}"
    elif found := KILLED.search(said):
        how = f"was killed by {signal.Signals(int(found[2])).name}"
    else:
        return None
    marked = [(MARK.match(line), line) for line in said.splitlines()]
    lines = [line[mark.end() :] for mark, line in marked if mark and mark[1] == found[1]]
    return f"rank {found[1]} of {ranks} {how}; {indented(lines)}"

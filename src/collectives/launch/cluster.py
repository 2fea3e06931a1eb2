"""Ranks on a cluster in slow motion, joined by gloo over its links: ``where="cluster:5ms,25MB/s"``.

After the colon come the links' latency and rate, and optionally the ranks of each host; "cluster"
alone means 5ms, 25MB/s and one rank on each host. It may be a machine whose ranks have links to
each other, and how many times as slow they are emulated, 1,000 if left out: "cluster:dgx1,10000".
With a last word "mpirun" Open MPI starts the ranks, so that MPI works among them; `bench` adds it
if one of the back ends is MPI.

Ranks that use GPUs share those of this machine (`gpus`). They enter the hosts' networks only,
because MPS serves processes of this machine, and was not tried with clients that have process
numbers and a /dev/shm of their own.

mpirun runs on host 0, within its namespaces, and ends with it. This process listens there. There is
no ssh to the other hosts: mpirun's agent sends the command for a host to this process, which runs
it there. What mpirun starts for a rank is `channel` as a script. It sends its environment, a fork
becomes the rank, and the script ends as the rank does.
"""

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from itertools import combinations
from typing import NamedTuple

from collectives.emulator import (
    RATES,
    Cluster,
    address,
    check_hosts,
    cluster,
    link_latency,
    link_rate,
    name,
)
from collectives.emulator.hosts import INTERFACE
from collectives.launch import channel, secret
from collectives.launch.channel import Channel
from collectives.launch.driver import Driver, Supervised, drive, rank_names, unnamed_logs
from collectives.launch.forks import Forks
from collectives.launch.programs import need_mpirun
from collectives.launch.request import Event, Request
from collectives.launch.where import MPIRUN
from collectives.machine import machine
from collectives.nccl import gpus
from collectives.processes import ChildProcess, end
from collectives.units import format_rate, format_seconds

POLL_SECONDS = 0.05

# How many times as slow the links of a machine are emulated: a result in ms reads as us.
SLOWER = "1000"

# mpirun calls it with the name of a host and a command. It splits this text at blanks in spite of
# quotes: ${IFS} is a blank that it does not see.
AGENT = 'sh -c eval${IFS}"$CLUSTER_AGENT"'

LISTEN = """
import socket, sys
host, file = sys.argv[1:]
with socket.create_server((host, 0), backlog=128) as made, socket.socket(fileno=int(file)) as launcher:
    socket.send_fds(launcher, [b"."], [made.fileno()])
"""

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


class ClusterOptions(NamedTuple):
    """The text after the colon of ``where``."""

    latency: str = "5ms"
    rate: str = "25MB/s"
    ranks_per_host: int = 1
    by_mpirun: bool = False
    # Hosts, and the bytes per second of the link that only they use.
    pairs: tuple[tuple[int, int, float], ...] = ()


def parse(text: str, ranks: int) -> ClusterOptions:
    """Return the options in the text, for ``ranks`` ranks.

    Raises ValueError for an invalid text or number of ranks.

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
    link_latency(options.latency), link_rate(options.rate)
    if options.ranks_per_host < 1 or ranks % options.ranks_per_host:
        raise ValueError(
            f"cannot divide the ranks among hosts: got {ranks}, expected a multiple of {options.ranks_per_host}"
        )
    check_hosts(ranks // options.ranks_per_host, options.ranks_per_host)
    return options


def _linked(words: list[str], ranks: int, by_mpirun: bool) -> ClusterOptions:
    """Return the links of a machine, slower.

    A pair without a link gets a tenth of a link's rate, for the store's traffic.
    """
    on = machine(words[0])
    times = words[1] if len(words) > 1 else SLOWER
    if len(words) > 2 or not times.isdecimal() or int(times) < 1:
        raise ValueError(
            f"invalid network: got {','.join(words)!r}, expected MACHINE[,TIMES], for example dgx1,10000"
        )
    if on.links is None or on.inside is None or on.links.switches:
        raise ValueError(
            f"emulated machine: got {on.name}, expected one whose ranks have links to each other, as dgx1"
        )
    if ranks != on.ranks_per_node:
        raise ValueError(f"ranks of {on.name}: got {ranks}, expected {on.ranks_per_node}")
    check_hosts(ranks)
    counted = {(a, b): count for a, b, count in on.links.counted(ranks)}
    for (a, b), count in counted.items():
        if counted.get((b, a)) != count:
            raise ValueError(
                f"emulated links: got {(a, b)} unlike its reverse, expected the same both ways"
            )
    latency = float(f"{on.inside.alpha * int(times):.9g}")
    rate = on.inside.rate / int(times)
    pairs = tuple((a, b, rate * counted.get((a, b), 0.1)) for a, b in combinations(range(ranks), 2))
    return ClusterOptions(format_seconds(latency), format_rate(rate), 1, by_mpirun, pairs)


def launch(request: Request) -> list[Event]:
    """`collectives.launch.launch` on temporary emulated hosts.

    Raises ClusterError if none can be made.
    """
    options = parse(request.options, request.ranks)
    if options.by_mpirun:
        need_mpirun()
    # A host's own port sets no limit where every pair has a link: the pair's latency is added to
    # none.
    latency, rate = ("0s", RATES[1]) if options.pairs else (options.latency, options.rate)
    count = request.ranks // options.ranks_per_host
    with ExitStack() as stack:
        own = None
        if request.share_gpus:
            names = [name(rank // options.ranks_per_host) for rank in range(request.ranks)]
            link = None if options.pairs else (link_latency(latency), link_rate(rate))
            common, own = stack.enter_context(gpus.shared(names, INTERFACE, link))
            request = request._replace(environment=common | dict(request.environment))
        hosts = stack.enter_context(cluster(count, latency, rate, isolated=not request.share_gpus))
        for host, other, bytes_per_second in options.pairs:
            hosts.set(host, other, rate=format_rate(bytes_per_second), latency=options.latency)
        return _launch(hosts, request, options.by_mpirun, own)


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
    """Launch ranks on existing hosts; ``on_event`` may change their links.

    Rank 0's report returns after ``on_event`` has, so a change that it asks for is in effect when
    it continues.
    """
    ranks = hosts.hosts * ranks_per_host
    return _launch(
        hosts,
        Request(module, settings, ranks, timeout, environment or {}, on_event),
        by_mpirun=False,
    )


def _launch(
    hosts: Cluster, request: Request, by_mpirun: bool, own: list[dict[str, str]] | None = None
) -> list[Event]:
    """Launch ranks on hosts; ``own`` has variables that each rank gets for itself."""
    each = request.ranks // hosts.hosts

    def begin(driver: Driver, stack: ExitStack) -> Supervised:
        logs = unnamed_logs(request.ranks, stack)
        forks = Forks(request, preload=True)
        stack.callback(forks.close)
        for rank, log in enumerate(logs):
            variables = (
                hosts.variables(rank, each) | (own[rank] if own else {}) | dict(request.environment)
            )
            forks.fork(
                rank,
                "cluster",
                log,
                driver.inherited(rank),
                variables,
                hosts.pids[rank // each],
                hosts.namespaces,
            )
        return Supervised(rank_names(request.ranks), forks.ranks, logs)

    if not by_mpirun:
        return drive(Driver(request, address(0)), begin)
    mpirun = _Mpirun(
        hosts, request._replace(environment=MPIRUN_SETTINGS | dict(request.environment))
    )
    return drive(mpirun.driver, mpirun.begin)


class _Mpirun:
    """A launch by mpirun on existing hosts."""

    def __init__(self, hosts: Cluster, request: Request) -> None:
        self.hosts, self.request = hosts, request
        self.driver = Driver(
            request,
            address(0),
            secret.fresh(),
            listening=_listener_on(hosts),
            serve_others=self._serve,
        )

    def begin(self, driver: Driver, stack: ExitStack) -> Supervised:
        """Start mpirun, which asks for the ranks. Sets what `_run` and `_serve` use."""
        ranks = self.request.ranks
        self.logs = unnamed_logs(ranks, stack)
        (self.log,) = unnamed_logs(1, stack)
        self.forks = Forks(self.request, preload=True)
        stack.callback(self.forks.close)
        self.started: list[ChildProcess] = []  # `_run` adds to it
        stack.callback(end, self.started)
        # mpirun starts this for each rank, and its agent for each other host.
        host, port = driver.address
        script = [sys.executable, "-I", "-S", channel.__file__, host, str(port)]
        quoted = " ".join(f"'{word}'" for word in script)
        agent = {"CLUSTER_AGENT": f'exec {quoted} "$0" "$@" '}
        environment = dict(self.request.environment)
        self.variables = environment | agent | secret.variables(driver.secret)
        mpirun = _mpirun_command(self.hosts, ranks // self.hosts.hosts)
        process = self._run(0, mpirun + script)
        names = [*rank_names(ranks), MPIRUN]
        return Supervised(names, [*self.forks.ranks, process], [*self.logs, self.log])

    def _run(self, host: int, command: list[str]) -> ChildProcess:
        process = self.hosts.popen(
            host, command, environment=self.variables, stdout=self.log, stderr=self.log
        )
        self.started.append(process)
        return process

    def _serve(self, asking: Channel, hello: Event) -> None:
        """Run mpirun's command for another host, or fork a rank and wait for its end."""
        if hello["words"]:
            host = _number(hello["words"][0])
            command = " ".join(hello["words"][1:])
            self._run(host, ["sh", "-c", command])
            asking.send({"code": 0})
            return
        host = _number(hello["host"])
        variables = hello["environment"]
        rank = int(variables["OMPI_COMM_WORLD_RANK"])
        pid, names = self.hosts.pids[host], self.hosts.namespaces
        inherited = self.driver.inherited(rank)
        self.forks.fork(rank, MPIRUN, self.logs[rank], inherited, variables, pid, names)
        while (code := self.forks.ranks[rank].poll()) is None:
            time.sleep(POLL_SECONDS)
        asking.send({"code": code if code >= 0 else 128 - code})


def _number(host: str) -> int:
    """Return the number in a host's name."""
    return int(host.removeprefix("host"))


def _listener_on(hosts: Cluster) -> socket.socket:
    """Return a socket that listens on the network of host 0."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [sys.executable, "-I", "-S", "-c", LISTEN, address(0), str(theirs.fileno())]
        with hosts.popen(0, command, pass_fds=[theirs.fileno()], stderr=subprocess.DEVNULL):
            theirs.close()
            _, files, _, _ = socket.recv_fds(ours, 1, 1)
    if not files:
        raise RuntimeError("host0 does not let this process listen there")
    return socket.socket(fileno=files[0])


def _mpirun_command(hosts: Cluster, ranks_per_host: int) -> list[str]:
    """Return mpirun and its options. On a host we are always root, if only of a user namespace."""
    slots = ",".join(f"{name(host)}:{ranks_per_host}" for host in range(hosts.hosts))
    ranks = str(hosts.hosts * ranks_per_host)
    return [need_mpirun(), "--allow-run-as-root", "--bind-to", "none", "-H", slots, "-n", ranks]

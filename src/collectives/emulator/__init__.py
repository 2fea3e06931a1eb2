"""A cluster in slow motion: hosts on this machine, each with its own network, joined by links of any latency and rate.

Time dilation. One machine cannot emulate 32 hosts with links of 5 us and 25 GB/s, because its cores
would be the bottleneck. With links a thousand times slower, 5 ms and 25 MB/s, the cores are idle
most of the time and a measurement shows the network. Latency and bytes over rate have grown by the
same factor, so ratios between algorithms stay, and a result in ms reads as us on the real link.
Computing is not slowed down: it seems a thousand times faster than it is.

    with cluster(hosts=8, latency="5ms", rate="25MB/s") as c:
        c.run(["hostname"])                                   # on every host c.popen(3, ["ping",
        "-c", "1", "host5"])              # on one c.set(3, rate="5MB/s")
        # one host becomes slow; c.cut(3), c.heal(3)

A host is a set of Linux namespaces: its processes see only their own network (eth0, 10.77.0.x),
host name, process numbers and shared memory, but the same files. `network` has the emulated network
as arrays and functions over it, and `fabric` is the process that runs it. `hosts` makes the hosts,
and `check` compares measured speeds with those that were set. `launch.cluster` starts ranks on the
hosts.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import IO, Any

from collectives.emulator.hosts import NAMESPACES, address, name
from collectives.processes import POLL_SECONDS, ChildProcess, end, guarded, open_streams
from collectives.units import parse_rate, parse_seconds

__all__ = ["MAX_HOSTS", "Cluster", "ClusterError", "address", "allowed", "cluster", "name"]

Stream = int | IO[bytes] | None

PORT = 29500  # of the ranks' store: on a fresh host every port is free
MAX_HOSTS = 254  # the addresses of a /24
MAX_RANKS = 1024
OPTIONS = {"mnt": "mount"}  # of nsenter, where they differ from a namespace's name
MAX_LATENCY = "10s"  # TCP opens no connection over a link much slower than that
RATES = "1B/s", "1TB/s"
START_SECONDS = 180.0  # most of it on a busy machine for compiling the network, once
ANSWER_SECONDS = 10.0


class ClusterError(RuntimeError):
    """The system cannot make hosts, or they ended; the message says what to change."""


class Cluster:
    """Hosts that run until the block of `cluster` ends; ``pids`` are their first processes."""

    def __init__(
        self, pids: list[int], control: socket.socket, rate: float, isolated: bool
    ) -> None:
        self.pids, self.hosts, self.rate = pids, len(pids), rate
        self.namespaces = NAMESPACES if isolated else NAMESPACES[:3]
        self._control = control

    def popen(
        self,
        host: int,
        command: list[str],
        *,
        environment: Mapping[str, str] | None = None,
        stdin: Stream = subprocess.DEVNULL,
        stdout: Stream = None,
        stderr: Stream = None,
        pass_fds: Sequence[int] = (),
    ) -> ChildProcess:
        """Start a command on a host, as Popen does.

        To end it, signal the process group of its pid.
        """
        entered = self.enter(host) + command
        return ChildProcess(
            # Only process 1 of a host ends all with it.
            entered if "pid" in self.namespaces else guarded(entered),
            env=os.environ | dict(environment or {}),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=pass_fds,
        )

    def enter(self, host: int) -> list[str]:
        """Return the words before a command that run it on a host, in this directory."""
        self._known(host)
        pid = self.pids[host]
        words = ["nsenter", f"--target={pid}"]
        if _foreign_user(pid):
            words += ["--user", "--preserve-credentials"]
        words += [f"--{OPTIONS.get(name, name)}" for name in self.namespaces[1:]]
        here = os.getcwd()  # noqa: PTH109
        words += ["--", "env", f"--chdir={here}"]
        return words

    def run(
        self,
        command: list[str],
        *,
        ranks_per_host: int = 1,
        timeout: float = 600.0,
        environment: Mapping[str, str] | None = None,
        own: Sequence[Mapping[str, str]] = (),
    ) -> int:
        """Run a command once for each rank, with the variables that torchrun sets.

        All end when one fails.

        ``environment`` is added for all ranks, and ``own``, if given, has variables for each of
        them.

        Returns 0 or the first other exit code: 128 plus the number of the signal if one ended a
        rank, as in a shell. Raises TimeoutError after ``timeout`` seconds. All ranks have ended in
        either case.
        """
        check_hosts(self.hosts, ranks_per_host)
        ranks = range(self.hosts * ranks_per_host)
        deadline = time.monotonic() + timeout
        with ExitStack() as stack:
            started: list[ChildProcess] = []
            stack.callback(end, started)
            for rank in ranks:
                variables = self.variables(rank, ranks_per_host) | dict(own[rank] if own else {})
                variables |= dict(environment or {})
                started.append(self.popen(rank // ranks_per_host, command, environment=variables))
            while True:
                codes = [process.poll() for process in started]
                failed = [code for code in codes if code]
                if failed:
                    return 128 - failed[0] if failed[0] < 0 else failed[0]
                if None not in codes:
                    return 0
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{command[0]} timed out after {timeout:g} s")
                time.sleep(POLL_SECONDS)

    def variables(self, rank: int, ranks_per_host: int = 1) -> dict[str, str]:
        """Return the variables that torchrun sets for a rank, and the interface that leads to the others."""
        return {
            "RANK": str(rank),
            "WORLD_SIZE": str(self.hosts * ranks_per_host),
            "LOCAL_RANK": str(rank % ranks_per_host),
            "LOCAL_WORLD_SIZE": str(ranks_per_host),
            "MASTER_ADDR": address(0),
            "MASTER_PORT": str(PORT),
            "GLOO_SOCKET_IFNAME": "eth0",
        }

    def set(
        self,
        host: int,
        other: int | None = None,
        *,
        rate: str | None = None,
        latency: str | None = None,
    ) -> None:
        """Set the rate or latency of a host's link, in both directions, from now on.

        With ``other``: of a link that only these two hosts use. It begins infinitely fast, and its
        latency is added.
        """
        change = {"rate": link_rate(rate)} if rate is not None else {}
        self._tell(
            host,
            other,
            change | ({"latency": link_latency(latency)} if latency is not None else {}),
        )

    def cut(self, host: int, other: int | None = None) -> None:
        """Drop all packets from and to a host, or between two hosts, without a notice, like an unplugged cable."""
        self._tell(host, other, {"cut": True})

    def heal(self, host: int, other: int | None = None) -> None:
        """Undo `cut`."""
        self._tell(host, other, {"cut": False})

    def _tell(self, host: int, other: int | None, change: dict[str, Any]) -> None:
        self._known(host)
        if other is not None:
            self._known(other)
        if other == host:
            raise ValueError(f"invalid link: got host {host} twice, expected two hosts")
        self._control.sendall(
            json.dumps({"host": host, "other": other, "set": change}).encode() + b"\n"
        )
        _answer(self._control)

    def _known(self, host: int) -> None:
        if not 0 <= host < self.hosts:
            raise ValueError(f"invalid host: got {host}, expected 0 to {self.hosts - 1}")


@contextmanager
def cluster(
    hosts: int,
    latency: str = "5ms",
    rate: str = "25MB/s",
    *,
    racks: int = 1,
    uplink: str | None = None,
    isolated: bool = True,
) -> Iterator[Cluster]:
    """Make hosts joined by links of this latency (one way, host to host) and rate (each way), until the block ends.

    With ``racks`` neighbouring hosts share a rack. Packets that leave a rack share its uplink of
    rate ``uplink``, and take the latency once more. With ``isolated=False`` processes on hosts have
    a network and a name of their own, but see this machine's other processes and memory, as clients
    of CUDA's MPS do. Raises ValueError for invalid numbers, and ClusterError, whose message says
    what to change, if the system does not allow namespaces or devices.
    """
    link = link_rate(rate), link_latency(latency)
    check_hosts(hosts)
    if not 1 <= racks <= hosts:
        raise ValueError(
            f"invalid number of racks: got {racks}, expected 1 to {hosts}, the number of hosts"
        )
    if (racks > 1) != (uplink is not None):
        raise ValueError("racks and the rate of their uplink go together: give both or neither")
    up = [link_rate(uplink), link[1]] if uplink is not None else None
    if not sys.platform.startswith("linux"):
        raise ClusterError("a cluster in slow motion is made of namespaces, which only Linux has")
    if shutil.which("nsenter") is None:
        raise ClusterError("nsenter is not installed: install util-linux")
    open_streams()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        wanted = {"hosts": hosts, "link": link, "racks": racks, "uplink": up}
        command = [
            sys.executable,
            "-m",
            "collectives.emulator.fabric",
            str(os.getpid()),
            str(theirs.fileno()),
        ]
        # A process with threads, which numpy's library starts, may not enter a user namespace.
        single = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        with ChildProcess(
            [*command, json.dumps(wanted)],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env=single,
        ) as fabric:
            theirs.close()
            pids: list[int] = []
            try:
                ours.settimeout(START_SECONDS)
                pids = _answer(ours)["pids"]
                ours.settimeout(ANSWER_SECONDS)
                yield Cluster(pids, ours, link[0], isolated)
            finally:
                ours.close()
                _end(fabric, ANSWER_SECONDS if pids else 0.0)


def allowed() -> str | None:
    """Make a host and return None, or the reason if this system does not let us.

    >>> allowed() is None or "namespaces" in allowed() or "/dev/net/tun" in allowed()
    True
    """
    try:
        with cluster(hosts=1):
            return None
    except ClusterError as error:
        return str(error)


def link_latency(text: str) -> float:
    """Return a link's latency in seconds. Raises ValueError for anything else, and above 10 s.

    >>> link_latency("5ms")
    0.005
    >>> link_latency("1000s")
    Traceback (most recent call last):
        ...
    ValueError: latency out of range: got '1000s', expected at most 10s
    """
    seconds = parse_seconds(text)
    if seconds > parse_seconds(MAX_LATENCY):
        raise ValueError(f"latency out of range: got {text!r}, expected at most {MAX_LATENCY}")
    return seconds


def link_rate(text: str) -> float:
    """Return a link's rate in bytes per second.

    Raises ValueError for anything else, and outside 1 B/s to 1 TB/s.

    >>> link_rate("25MB/s")
    25000000.0
    >>> link_rate("0MB/s")
    Traceback (most recent call last):
        ...
    ValueError: rate out of range: got '0MB/s', expected 1B/s to 1TB/s; `cut` unplugs a link
    """
    least, most = RATES
    given = parse_rate(text)
    if not parse_rate(least) <= given <= parse_rate(most):
        raise ValueError(
            f"rate out of range: got {text!r}, expected {least} to {most}; `cut` unplugs a link"
        )
    return given


def check_hosts(hosts: int, ranks_per_host: int = 1) -> None:
    """Raise ValueError for more than 254 hosts or 1,024 ranks."""
    if not 1 <= hosts <= MAX_HOSTS:
        raise ValueError(f"invalid number of hosts: got {hosts}, expected 1 to {MAX_HOSTS}")
    if ranks_per_host < 1 or hosts * ranks_per_host > MAX_RANKS:
        raise ValueError(
            f"ranks per host out of range: got {ranks_per_host}, expected 1 to {MAX_RANKS // hosts} on {hosts} hosts"
        )


def _answer(control: socket.socket) -> dict[str, Any]:
    """Return the fabric's answer, one line."""
    text = b""
    while not text.endswith(b"\n"):
        try:
            piece = control.recv(1 << 16)
        except TimeoutError:
            raise ClusterError(
                f"the cluster's fabric timed out after {control.gettimeout():g} s"
            ) from None
        if not piece:
            raise ClusterError("the cluster's fabric has ended")
        text += piece
    answer: dict[str, Any] = json.loads(text)
    if "error" in answer:
        raise ClusterError(answer["error"])
    return answer


def _end(fabric: ChildProcess, seconds: float) -> None:
    """Wait for the fabric, which ends with its socket, and every host with it.

    Kill it after ``seconds``.
    """
    with suppress(subprocess.TimeoutExpired):
        fabric.wait(seconds)
    end([fabric])


def _foreign_user(pid: int) -> bool:
    """Return True if a process is in another user namespace than this one."""
    return os.readlink(f"/proc/{pid}/ns/user") != os.readlink("/proc/self/ns/user")  # noqa: PTH115

"""A cluster in slow motion: hosts on this machine, each with its own network, joined by links of any latency and rate.

Time dilation. One machine cannot emulate 32 hosts with links of 5 us and 25 GB/s, because its cores would be the
bottleneck. With links a thousand times slower, 5 ms and 25 MB/s, the cores are idle most of the time and a measurement
shows the network. Latency and bytes over rate have grown by the same factor, so ratios between algorithms stay, and a
result in ms reads as us on the real link. Computing is not slowed down: it seems a thousand times faster than it is.

    with cluster(hosts=8, latency="5ms", rate="25MB/s") as c:
        c.run(["hostname"])                                   # on every host
        c.popen(3, ["ping", "-c", "1", "host5"])              # on one
        c.set(3, rate="5MB/s")                                # one host becomes slow; c.cut(3), c.heal(3)

A host is a set of Linux namespaces: its processes see only their own network (eth0, 10.77.0.x), host name, process
numbers and shared memory, but the same files. `network` has the emulated network as arrays and functions
over it, and `fabric` is the process that runs it. `hosts` makes the hosts, `limits` has their limits, and `check`
compares measured speeds with those that were set. `launch.cluster` starts ranks on the hosts.
"""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import IO, Any

from collectives.emulator import limits
from collectives.emulator.hosts import address, name
from collectives.emulator.limits import MOST_HOSTS, ClusterError
from collectives.processes import POLL_SECONDS, ChildProcess, end, open_streams

__all__ = ["MOST_HOSTS", "Cluster", "ClusterError", "address", "allowed", "cluster", "name"]

Stream = int | IO[bytes] | None

PORT = 29500  # of the ranks' store: on a fresh host every port is free
START_SECONDS = 180.0  # most of it on a busy machine for compiling the network, once
ANSWER_SECONDS = 10.0


class Cluster:
    """Hosts that run until the block of `cluster` ends; ``pids`` are their first processes."""

    def __init__(self, pids: list[int], control: socket.socket, rate: float) -> None:
        self.pids, self.hosts, self.rate = pids, len(pids), rate
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
        """Start a command on a host, as Popen does. To end it, signal the process group of its pid."""
        return ChildProcess(
            [*self.enter(host), *command],
            env=os.environ | dict(environment or {}),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=pass_fds,
        )

    def enter(self, host: int) -> list[str]:
        """The words before a command that run it on a host, in this directory."""
        self._known(host)
        pid = self.pids[host]
        user = ["--user", "--preserve-credentials"] if _foreign_user(pid) else []
        namespaces = ["--net", "--uts", "--mount", "--pid"]
        return ["nsenter", f"--target={pid}", *user, *namespaces, "--", "env", f"--chdir={os.getcwd()}"]  # noqa: PTH109

    def run(
        self,
        command: list[str],
        *,
        ranks_per_host: int = 1,
        timeout: float = 600.0,
        environment: Mapping[str, str] | None = None,
    ) -> int:
        """Run a command once for each rank, with the variables that torchrun sets; all end when one fails.

        Returns 0 or the first other exit code: 128 plus the number of the signal if one ended a rank, as in a shell.
        Raises TimeoutError after ``timeout`` seconds. All ranks have ended in either case.
        """
        limits.need_hosts(self.hosts, ranks_per_host)
        ranks = range(self.hosts * ranks_per_host)
        deadline = time.monotonic() + timeout
        with ExitStack() as stack:
            started: list[ChildProcess] = []
            stack.callback(end, started)
            for rank in ranks:
                variables = self.variables(rank, ranks_per_host) | dict(environment or {})
                started.append(self.popen(rank // ranks_per_host, command, environment=variables))
            while True:
                codes = [process.poll() for process in started]
                if code := next(filter(None, codes), 0):
                    return 128 - code if code < 0 else code
                if None not in codes:
                    return 0
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{command[0]} timed out after {timeout:g} s")
                time.sleep(POLL_SECONDS)

    def variables(self, rank: int, ranks_per_host: int = 1) -> dict[str, str]:
        """The variables that torchrun sets for a rank, and the interface that leads to the others."""
        return {
            "RANK": str(rank),
            "WORLD_SIZE": str(self.hosts * ranks_per_host),
            "LOCAL_RANK": str(rank % ranks_per_host),
            "LOCAL_WORLD_SIZE": str(ranks_per_host),
            "MASTER_ADDR": address(0),
            "MASTER_PORT": str(PORT),
            "GLOO_SOCKET_IFNAME": "eth0",
        }

    def set(self, host: int, other: int | None = None, *, rate: str | None = None, latency: str | None = None) -> None:
        """Set the rate or latency of a host's link, in both directions, from now on.

        With ``other``: of a link that only these two hosts use. It begins infinitely fast, and its latency is added.
        """
        change = {"rate": limits.rate(rate)} if rate is not None else {}
        self._tell(host, other, change | ({"latency": limits.latency(latency)} if latency is not None else {}))

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
        self._control.sendall(json.dumps({"host": host, "other": other, "set": change}).encode() + b"\n")
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
) -> Iterator[Cluster]:
    """Hosts joined by links of this latency (one way, host to host) and rate (in each direction), until the block ends.

    With ``racks`` neighbouring hosts share a rack. Packets that leave a rack share its uplink of rate ``uplink``, and
    take the latency once more. Raises ValueError for invalid numbers, and ClusterError, whose message says what to
    change, if the system does not allow namespaces or devices.
    """
    link = limits.rate(rate), limits.latency(latency)
    limits.need_hosts(hosts)
    limits.need_racks(hosts, racks, uplink)
    limits.need_system()
    up = [limits.rate(uplink), link[1]] if uplink is not None else None
    open_streams()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        wanted = {"hosts": hosts, "link": link, "racks": racks, "uplink": up}
        command = [sys.executable, "-m", "collectives.emulator.fabric", str(os.getpid()), str(theirs.fileno())]
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
                yield Cluster(pids, ours, link[0])
            finally:
                ours.close()
                _end(fabric, ANSWER_SECONDS if pids else 0.0)


def allowed() -> str | None:
    """None if this system lets us make hosts, otherwise the reason. It makes a host to find out.

    >>> allowed() is None or "namespaces" in allowed() or "/dev/net/tun" in allowed()
    True
    """
    try:
        with cluster(hosts=1):
            return None
    except ClusterError as error:
        return str(error)


def _answer(control: socket.socket) -> dict[str, Any]:
    """The fabric's answer, one line."""
    text = b""
    while not text.endswith(b"\n"):
        try:
            piece = control.recv(1 << 16)
        except TimeoutError:
            raise ClusterError(f"the cluster's fabric timed out after {control.gettimeout():g} s") from None
        if not piece:
            raise ClusterError("the cluster's fabric has ended")
        text += piece
    answer: dict[str, Any] = json.loads(text)
    if "error" in answer:
        raise ClusterError(answer["error"])
    return answer


def _end(fabric: ChildProcess, seconds: float) -> None:
    """Wait for the fabric, which ends with its socket, and every host with it; kill it after ``seconds``."""
    with suppress(subprocess.TimeoutExpired):
        fabric.wait(seconds)
    end([fabric])


def _foreign_user(pid: int) -> bool:
    """Whether a process is in another user namespace than this one."""
    return os.readlink(f"/proc/{pid}/ns/user") != os.readlink("/proc/self/ns/user")  # noqa: PTH115

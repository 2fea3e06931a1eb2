"""A cluster in slow motion: hosts on this machine, each with its own network, joined by links as slow as you say.

Time dilation. A real link of 5 us and 25 GB/s is too fast for one machine to play 32 hosts on: its cores would be what
is measured. The same link a thousand times slower, 5 ms and 25 MB/s, leaves the cores idle most of the time, and
what is measured is the network. Both times that a message costs, latency and bytes over rate, have grown by the same
factor, so an algorithm that is twice as fast as another one here is so there, and a result in ms reads as us on the
real link. What is not slowed down is computing: it seems a thousand times faster than it is.

    with cluster(hosts=8, latency="5ms", rate="25MB/s") as c:
        c.run(["hostname"])                                   # on every host
        c.popen(3, ["ping", "-c", "1", "host5"])              # on one
        c.set(3, rate="5MB/s")                                # one host becomes slow; c.cut(3), c.heal(3)

A host is a set of Linux namespaces: its processes see only their own network (eth0, 10.77.0.x), host name, process
numbers and shared memory, but the same files. `network` is the network, `fabric` the process that runs it, `hosts`
makes the hosts, `limits` says which are possible, `check` measures whether they are as fast as they were set. Ranks are
started on them by `launch.cluster`.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import IO, Any

from collectives.emulator import limits
from collectives.emulator.hosts import address, name
from collectives.emulator.limits import MOST_HOSTS, ClusterError
from collectives.processes.supervise import POLL_SECONDS, Process, end, open_streams

__all__ = ["MOST_HOSTS", "Cluster", "ClusterError", "address", "allowed", "cluster", "name"]

Stream = int | IO[bytes] | None

PORT = 29500  # where ranks meet: nobody else is on a fresh host
START_SECONDS = 180.0  # of which a busy machine takes most to compile the network, once
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
    ) -> Process:
        """Start a command on a host, as Popen does. To end it, signal the process group of its pid."""
        return Process(
            [*self.enter(host), *command],
            env=os.environ | dict(environment or {}),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=pass_fds,
            start_new_session=True,
        )

    def enter(self, host: int) -> list[str]:
        """The command that runs another one, given behind it, on a host, in this directory."""
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

        Returns the first exit code that is not 0, or 0; 128 and the signal's number where a signal ended a rank, as
        a shell does. Raises TimeoutError after ``timeout`` seconds. None of the ranks is left in either case.
        """
        limits.need_hosts(self.hosts, ranks_per_host)
        ranks = range(self.hosts * ranks_per_host)
        deadline = time.monotonic() + timeout
        with ExitStack() as stack:
            started: list[Process] = []
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
                    raise TimeoutError(f"{command[0]} is not done on all hosts within {timeout:g} s")
                time.sleep(POLL_SECONDS)

    def variables(self, rank: int, ranks_per_host: int = 1) -> dict[str, str]:
        """What torchrun would set for a rank, and which interface leads to the others."""
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
        """Give a host's link another rate or latency, in both directions, from now on.

        With another host: what only these two use, and that is at first infinitely fast. Its latency comes on top.
        """
        change = {"rate": limits.rate(rate)} if rate is not None else {}
        self._tell(host, other, change | ({"latency": limits.latency(latency)} if latency is not None else {}))

    def cut(self, host: int, other: int | None = None) -> None:
        """Lose all packets from and to a host, or between two, in silence: as an unplugged cable does."""
        self._tell(host, other, {"cut": True})

    def heal(self, host: int, other: int | None = None) -> None:
        """Undo `cut`."""
        self._tell(host, other, {"cut": False})

    def _tell(self, host: int, other: int | None, change: dict[str, Any]) -> None:
        self._known(host)
        if other is not None:
            self._known(other)
        if other == host:
            raise ValueError(f"between host {host} and itself there is no link")
        self._control.sendall(json.dumps({"host": host, "other": other, "set": change}).encode() + b"\n")
        _answer(self._control)

    def _known(self, host: int) -> None:
        if not 0 <= host < self.hosts:
            raise ValueError(f"there is no host {host}; hosts are 0 to {self.hosts - 1}")


@contextmanager
def cluster(
    hosts: int,
    latency: str = "5ms",
    rate: str = "25MB/s",
    *,
    racks: int = 1,
    uplink: str | None = None,
) -> Iterator[Cluster]:
    """So many hosts, joined by links of this latency (one way, host to host) and rate (in each direction).

    With ``racks`` the hosts are divided among them, neighbours together, and whatever leaves a rack shares its uplink,
    whose rate is ``uplink``, and takes the latency once more. Raises ValueError for values that cannot be, and
    ClusterError, which says what to change, where the system lets nobody make namespaces or devices.
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
        with Process(
            [*command, json.dumps(wanted)],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env=single,
            start_new_session=True,  # Ctrl-C is for the launcher alone
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
    """None where this system lets us make hosts, else the reason why it does not. A host is made to find out.

    >>> allowed() is None or "namespaces" in allowed() or "/dev/net/tun" in allowed()
    True
    """
    try:
        with cluster(hosts=1):
            return None
    except ClusterError as error:
        return str(error)


def _answer(control: socket.socket) -> dict[str, Any]:
    """What the fabric says, one line."""
    text = b""
    while not text.endswith(b"\n"):
        try:
            piece = control.recv(1 << 16)
        except TimeoutError:
            raise ClusterError(f"no answer from the cluster's fabric within {control.gettimeout():g} s") from None
        if not piece:
            raise ClusterError("the cluster's fabric has ended")
        text += piece
    answer: dict[str, Any] = json.loads(text)
    if "error" in answer:
        raise ClusterError(answer["error"])
    return answer


def _end(fabric: Process, seconds: float) -> None:
    """The fabric ends with its socket, and every host with it; it is killed if it does not."""
    try:
        fabric.wait(seconds)
    except subprocess.TimeoutExpired:
        fabric.kill()


def _foreign_user(pid: int) -> bool:
    """Whether a process is in another user namespace than this one."""
    return os.readlink(f"/proc/{pid}/ns/user") != os.readlink("/proc/self/ns/user")  # noqa: PTH115

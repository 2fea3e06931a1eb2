"""The limits of a cluster: numbers of hosts and ranks, and the latency and rate of a link."""

import shutil
import sys

from collectives.units import parse_rate, parse_seconds

MOST_HOSTS = 254  # the addresses of a /24
MOST_RANKS = 1024
MOST_LATENCY = "10s"  # TCP opens no connection over a link much slower than that
RATES = "1B/s", "1TB/s"


class ClusterError(RuntimeError):
    """The system cannot make hosts, or they ended; the message says what to change."""


def latency(text: str) -> float:
    """A link's latency in seconds. Raises ValueError for anything else, and above 10 s.

    >>> latency("5ms")
    0.005
    >>> latency("1000s")
    Traceback (most recent call last):
        ...
    ValueError: latency out of range: got '1000s', expected at most 10s
    """
    seconds = parse_seconds(text)
    if seconds > parse_seconds(MOST_LATENCY):
        raise ValueError(f"latency out of range: got {text!r}, expected at most {MOST_LATENCY}")
    return seconds


def rate(text: str) -> float:
    """A link's rate in bytes per second. Raises ValueError for anything else, and outside 1 B/s to 1 TB/s.

    >>> rate("25MB/s")
    25000000.0
    >>> rate("0MB/s")
    Traceback (most recent call last):
        ...
    ValueError: rate out of range: got '0MB/s', expected 1B/s to 1TB/s; `cut` unplugs a link
    """
    least, most = RATES
    given = parse_rate(text)
    if not parse_rate(least) <= given <= parse_rate(most):
        raise ValueError(f"rate out of range: got {text!r}, expected {least} to {most}; `cut` unplugs a link")
    return given


def need_hosts(hosts: int, ranks_per_host: int = 1) -> None:
    """Raise ValueError for more than 254 hosts or 1,024 ranks."""
    if not 1 <= hosts <= MOST_HOSTS:
        raise ValueError(f"invalid number of hosts: got {hosts}, expected 1 to {MOST_HOSTS}")
    if ranks_per_host < 1 or hosts * ranks_per_host > MOST_RANKS:
        raise ValueError(
            f"ranks per host out of range: got {ranks_per_host}, expected 1 to {MOST_RANKS // hosts} on {hosts} hosts"
        )


def need_racks(hosts: int, racks: int, uplink: str | None) -> None:
    """Raise ValueError if the hosts cannot be divided among the racks."""
    if not 1 <= racks <= hosts:
        raise ValueError(f"invalid number of racks: got {racks}, expected 1 to {hosts}, the number of hosts")
    if (racks > 1) != (uplink is not None):
        raise ValueError("racks and the rate of their uplink go together: give both or neither")


def need_system() -> None:
    """Raise ClusterError if the system cannot have hosts, as far as we can tell without making one."""
    if not sys.platform.startswith("linux"):
        raise ClusterError("a cluster in slow motion is made of namespaces, which only Linux has")
    if shutil.which("nsenter") is None:
        raise ClusterError("nsenter is not installed: install util-linux")

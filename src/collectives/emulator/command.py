"""The verb `collectives cluster`: run a command on every host of a cluster in slow motion, or check its speed."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from collectives.emulator import cluster
from collectives.emulator.check import HEADING, check, line
from collectives.emulator.limits import need_hosts
from collectives.units import parse_seconds

EPILOG = """\
COMMAND runs once for each rank, with the variables that torchrun sets (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR ...),
and the others end when one fails. A 5 us, 25 GB/s link is emulated a thousand times slower: a result in ms here is in
us
on the real link. No host is left when the command ends, even if it is killed."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.epilog = EPILOG
    parser.add_argument("--hosts", type=int, default=8, help="1 to 254 (default 8)")
    parser.add_argument("--latency", default="5ms", help="one way, from host to host (default 5ms)")
    parser.add_argument("--rate", default="25MB/s", help="of each host's link, in each direction (default 25MB/s)")
    parser.add_argument("--ranks-per-host", type=int, default=1, help="how often COMMAND runs on a host (default 1)")
    parser.add_argument("--racks", type=int, default=1, help="groups of neighbours that share an uplink (default 1)")
    parser.add_argument("--uplink", help="rate of a rack's uplink, whose packets take the latency once more")
    parser.add_argument("--timeout", type=float, default=3600, help="seconds for COMMAND (default 3600)")
    parser.add_argument("--check", action="store_true", help="measure round trip, rate, all to one and all pairs")
    parser.add_argument("words", nargs="*", metavar="-- COMMAND", help="the command to run on the hosts")


def run(arguments: argparse.Namespace, show: Callable[[dict[str, Any], str], None]) -> int:
    """Run the verb; ``show`` gets each row that a check measures, and its text.

    Returns the exit code. Raises ValueError for invalid options, and ClusterError if hosts cannot be made.
    """
    if arguments.check == bool(arguments.words):
        raise ValueError("cluster expects either --check or -- COMMAND")
    if arguments.check and (arguments.hosts < 2 or arguments.racks > 1):
        raise ValueError("--check expects two hosts or more, in one rack")
    need_hosts(arguments.hosts, arguments.ranks_per_host)
    if not 0 < arguments.timeout < float("inf"):
        raise ValueError(f"invalid --timeout: got {arguments.timeout:g}, expected finite seconds above 0")
    network = arguments.latency, arguments.rate
    with cluster(arguments.hosts, *network, racks=arguments.racks, uplink=arguments.uplink) as hosts:
        if not arguments.check:
            return hosts.run(arguments.words, ranks_per_host=arguments.ranks_per_host, timeout=arguments.timeout)
        if not arguments.json:
            show({}, HEADING)
        check(hosts, parse_seconds(arguments.latency), lambda row: show(row, line(row)))
    return 0

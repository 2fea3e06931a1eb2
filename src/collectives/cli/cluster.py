"""The verb ``cluster``: run a command on every host of a cluster in slow motion, or check its speed."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from collectives.cli.options import UsageError, add_json, wrong_input
from collectives.cli.signals import out, out_row

if TYPE_CHECKING:
    from collectives.emulator import Cluster

EPILOG = """\
COMMAND runs once for each rank, with the variables that torchrun sets (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR ...),
and the others end when one fails. A 5 us, 25 GB/s link is emulated a thousand times slower: a result in ms reads as us
on the real link. The hosts are removed when the command ends, also when it is killed."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be typed."""
    parser.epilog = EPILOG
    parser.add_argument("--hosts", type=int, default=8, help="1 to 254 (default 8)")
    parser.add_argument("--latency", default="5ms", help="one way, from host to host (default 5ms)")
    parser.add_argument("--rate", default="25MB/s", help="of each host's link, in each direction (default 25MB/s)")
    parser.add_argument("--ranks-per-host", type=int, default=1, help="how often COMMAND runs on a host (default 1)")
    parser.add_argument("--racks", type=int, default=1, help="groups of neighbours that share an uplink (default 1)")
    parser.add_argument("--uplink", help="rate of a rack's uplink; a message over it pays the latency once more")
    parser.add_argument("--timeout", type=float, default=3600, help="seconds for COMMAND (default 3600)")
    parser.add_argument("--check", action="store_true", help="measure round trip, rate, all to one and all pairs")
    parser.add_argument("words", nargs="*", metavar="-- COMMAND", help="what runs on the hosts")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """The exit code of the command, or a row for each measurement of a check."""
    from collectives.emulator import cluster
    from collectives.emulator.limits import need_hosts

    with wrong_input():
        _need_sense(arguments)
        need_hosts(arguments.hosts, arguments.ranks_per_host)
        network = arguments.latency, arguments.rate
        with cluster(arguments.hosts, *network, racks=arguments.racks, uplink=arguments.uplink) as hosts:
            if arguments.check:
                _check(hosts, arguments)
                return 0
            return hosts.run(arguments.words, ranks_per_host=arguments.ranks_per_host, timeout=arguments.timeout)


def _need_sense(arguments: argparse.Namespace) -> None:
    if arguments.check == bool(arguments.words):
        raise UsageError("cluster takes either --check or -- COMMAND")
    if arguments.check and (arguments.hosts < 2 or arguments.racks > 1):
        raise UsageError(
            f"--check: got {arguments.hosts} hosts in {arguments.racks} racks, expected two or more in one"
        )
    if not 0 < arguments.timeout < float("inf"):
        raise UsageError(f"--timeout: got {arguments.timeout:g}, expected above 0 and finite")


def _check(hosts: Cluster, arguments: argparse.Namespace) -> None:
    from collectives.emulator.check import HEADING, check, line
    from collectives.units import parse_seconds

    if not arguments.json:
        out(HEADING)
    check(hosts, parse_seconds(arguments.latency), lambda row: out_row(row, line(row), arguments.json))

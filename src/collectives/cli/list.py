"""The verb ``list``: every algorithm, with its cost."""

import argparse
from collections.abc import Iterator

from collectives import units
from collectives.algorithms import ALGORITHMS, build, own
from collectives.cli.options import UsageError, add_json, whole, wrong_input
from collectives.cli.schedules import RANKS, add_timeout, limited
from collectives.cli.signals import out, out_row
from collectives.schedule import Schedule
from collectives.traffic import traffic


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be typed."""
    ranks = whole(units.MOST_RANKS_SHOWN)
    parser.add_argument("-p", "--ranks", type=ranks, default=RANKS, help=f"ranks to count for (default {RANKS})")
    parser.add_argument("own", nargs="*", metavar="FILE.py:FUNCTION", help="schedules of your own")
    add_timeout(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """A row for each algorithm: steps, messages, and what passes through the busiest port."""
    p = arguments.ranks
    if not arguments.json:
        out(
            f"{'collective':<16}{'algorithm':<20}  {'steps':>6}  {'messages':>8}  through the busiest port  ({p} ranks)"
        )
    with limited(arguments, arguments.own):
        for algorithm, schedule in list(_listed(arguments.own, p)):
            counted = traffic(schedule, n := 1000 * schedule.k)
            messages = int(counted.messages_sent.sum())
            busiest = float(max(counted.sent.max(), counted.received.max()) / n)
            row = {"collective": schedule.collective, "algorithm": algorithm, "ranks": p, "steps": schedule.nsteps}
            text = f"{schedule.collective:<14}  {algorithm:<20}  {schedule.nsteps:>6}  {messages:>8}  {busiest:.3g} n"
            out_row(row | {"messages": messages, "busiest_port": busiest}, text, arguments.json)


def _listed(names: list[str], p: int) -> Iterator[tuple[str, Schedule]]:
    for collective, algorithm in ALGORITHMS:
        yield algorithm, build(collective, algorithm, p)
    for name in names:
        with wrong_input():
            made = own(name)(p)
        if made.p != p:
            raise UsageError(f"schedule {name}: got {made.p} ranks, expected {p}")
        yield name, made

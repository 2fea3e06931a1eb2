"""The verb ``verify``: prove one schedule, or all of them."""

import argparse

from collectives import limits
from collectives.cli import proving
from collectives.cli.ending import out_row
from collectives.cli.options import UsageError, add_json, whole, wrong_input
from collectives.cli.schedules import add_schedule, built, limited
from collectives.verify import COUNTED_RANKS, exact, verify


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be typed."""
    add_schedule(parser, limits.MOST_RANKS, nargs="?")
    parser.add_argument("--all", action="store_true", help="every algorithm, all its roots, segments and nodes")
    most = f"with --all: 1 to P ranks (default: {COUNTED_RANKS}, and more)"
    parser.add_argument("--max-ranks", type=whole(COUNTED_RANKS), metavar="P", help=most)
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """A row for each proof; a schedule that is wrong raises ScheduleError."""
    named = arguments.collective is not None and arguments.algorithm is not None
    if named == arguments.all:
        raise UsageError("verify takes either a collective and an algorithm, or --all")
    with limited(arguments, [arguments.algorithm]):
        if arguments.all:
            _verify_all(arguments)
        else:
            _verify_one(arguments)


def _verify_all(arguments: argparse.Namespace) -> None:
    given = [name for name in ("ranks", "root", "segments") if getattr(arguments, name) is not None]
    if given:
        raise UsageError(f"--all takes no --{given[0]}: got {getattr(arguments, given[0])}, expected none")
    for row in proving.rows(arguments.max_ranks):
        out_row(row, proving.line(row), arguments.json)


def _verify_one(arguments: argparse.Namespace) -> None:
    if arguments.max_ranks is not None:
        raise UsageError("--max-ranks goes with --all: got a single algorithm, expected -p")
    schedule = built(arguments)
    with wrong_input():
        limits.need_cells(schedule.p, schedule.k)
    verify(schedule)
    how = "every contribution counted" if exact(schedule) else "by fingerprints"
    row = {"collective": arguments.collective, "algorithm": arguments.algorithm, "ranks": schedule.p, "method": how}
    out_row(row, f"ok  {arguments.collective} {arguments.algorithm} on {schedule.p} ranks, {how}", arguments.json)

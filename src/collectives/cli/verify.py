"""The verb ``verify``: prove one schedule, or all of them, or programs of others."""

import argparse
from typing import TYPE_CHECKING

from collectives import units
from collectives.cli import programs, proving, signals
from collectives.cli.options import TIMEOUT, UsageError, add_json, size, whole, wrong_input
from collectives.cli.schedules import add_schedule, built, limited
from collectives.cli.signals import out_row
from collectives.schedule import ScheduleError
from collectives.verify import COUNTED_RANKS, exact, need_cells, verify

if TYPE_CHECKING:
    from collectives.machine import Machine

SIZE = "1M"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be typed."""
    add_schedule(parser, units.MOST_RANKS, nargs="?")
    parser.add_argument(
        "files", nargs="*", metavar="FILE", help="instead: programs in MSCCL XML, schedules of TE-CCL in JSON"
    )
    parser.add_argument("--all", action="store_true", help="every algorithm, all its roots, segments and nodes")
    most = f"with --all: 1 to P ranks (default: {COUNTED_RANKS}, and more)"
    parser.add_argument("--max-ranks", type=whole(COUNTED_RANKS), metavar="P", help=most)
    parser.add_argument("--machine", help="with FILE.xml: simulated there too; a preset, or your own NAME.yaml")
    parser.add_argument("--bytes", type=size, help=f"with --machine (default {SIZE})")
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """A row for each proof; a schedule that is wrong raises ScheduleError."""
    words = [word for word in (arguments.collective, arguments.algorithm, *arguments.files) if word is not None]
    if words and all(word.endswith((".xml", ".json")) for word in words) and not arguments.all:
        with signals.limit(arguments.timeout or TIMEOUT, "verify"):
            _verify_programs(words, arguments)
        return
    if arguments.machine or arguments.bytes:
        raise UsageError("--machine and --bytes go with FILE.xml: `simulate` has them for other schedules")
    if arguments.files or (len(words) == 2) == arguments.all:
        got = " ".join([*words, *["--all"] * arguments.all])[:80] or "nothing"
        expected = "a collective and an algorithm, or files that end in .xml or .json, or --all"
        raise UsageError(f"verify: got {got}, expected either {expected}")
    with limited(arguments, [arguments.algorithm]):
        if arguments.all:
            _verify_all(arguments)
        else:
            _verify_one(arguments)


def _verify_programs(files: list[str], arguments: argparse.Namespace) -> None:
    given = [name for name in ("ranks", "root", "segments", "max_ranks") if getattr(arguments, name) is not None]
    if given:
        raise UsageError(f"FILE.xml takes no --{given[0].replace('_', '-')}: the file says it")
    verdicts = []
    for row in programs.rows(files, _machine(arguments), arguments.bytes or size(SIZE)):
        out_row(row, programs.line(row), arguments.json)
        verdicts.append(row["verdict"])
    bad = {word: verdicts.count(word) for word in ("wrong", "unreadable") if word in verdicts}
    if bad:
        told = ", ".join(f"{count} of {len(files)} {word}" for word, count in bad.items())
        raise UsageError(told) if "unreadable" in bad else ScheduleError(told)


def _machine(arguments: argparse.Namespace) -> "Machine | None":
    if arguments.machine is None:
        if arguments.bytes:
            raise UsageError("--bytes goes with --machine: got no machine, expected one")
        return None
    from collectives.machine import machine

    with wrong_input():
        return machine(arguments.machine)


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
        need_cells(schedule.p, schedule.k)
    verify(schedule)
    how = "every contribution counted" if exact(schedule) else "by fingerprints"
    row = {"collective": arguments.collective, "algorithm": arguments.algorithm, "ranks": schedule.p, "method": how}
    out_row(row, f"ok  {arguments.collective} {arguments.algorithm} on {schedule.p} ranks, {how}", arguments.json)

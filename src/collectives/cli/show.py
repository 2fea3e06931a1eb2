"""The verb ``show``: one schedule as a table, as pictures, or as what the page's player reads."""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from collectives import units
from collectives.cli.options import UsageError
from collectives.cli.schedules import add_schedule, built, limited
from collectives.cli.signals import out
from collectives.grid import grid
from collectives.schedule import Schedule
from collectives.units import many

if TYPE_CHECKING:
    from collectives.figures.style import Picture


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be typed."""
    add_schedule(parser, units.MOST_RANKS_SHOWN)
    names = "NAME-steps-light.svg, NAME-time-light.svg, and both -dark"
    parser.add_argument("--svg", metavar="NAME", help=f"draw it: {names}")
    parser.add_argument("--json", action="store_true", help="one JSON object on one line: what the page's player reads")


def run(arguments: argparse.Namespace) -> None:
    """Draw the schedule if asked to; else print it."""
    with limited(arguments, [arguments.collective, arguments.algorithm]):
        schedule = built(arguments)
        if arguments.svg:
            _save(arguments.svg, schedule, arguments.algorithm)
        if arguments.json:
            from collectives.figures.player import player_data

            out(json.dumps(player_data(schedule, arguments.algorithm), separators=(",", ":")))
        elif not arguments.svg:
            head = (
                f"{arguments.collective} by {arguments.algorithm} on {many(schedule.p, 'rank')}: "
                f"{many(schedule.nsteps, 'step')}, {many(schedule.k, 'chunk')}. "
                "+2<0 adds chunk 2 from rank 0, =2<0 replaces it."
            )
            out(f"{head}\n\n{grid(schedule)}")


def _save(name: str, schedule: Schedule, algorithm: str) -> None:
    """Both pictures of a schedule as files, and on standard error what they show."""
    from collectives.figures.schedules import space_time, steps

    messages = schedule.p * schedule.nsteps
    if messages > units.MOST_MESSAGES_DRAWN:
        raise UsageError(f"ranks x steps to draw: got {messages:,}, expected at most {units.MOST_MESSAGES_DRAWN:,}")
    for kind, picture in (("steps", steps(schedule, algorithm)), ("time", space_time(schedule))):
        save(picture, Path(f"{name}-{kind}"))


def save(picture: "Picture", stem: Path) -> None:
    """Write both files of a picture, whole or not at all, and on standard error what it shows."""
    try:
        with tempfile.TemporaryDirectory(dir=stem.parent) as partial:
            picture.save(Path(partial) / stem.name)
            for path in Path(partial).iterdir():
                path.replace(stem.with_name(path.name))
    except OSError as error:
        raise UsageError(f"cannot write {stem}-light.svg and -dark.svg: {error.strerror}") from None
    print(f"{stem}-light.svg, {stem}-dark.svg: {picture.alt}", file=sys.stderr)

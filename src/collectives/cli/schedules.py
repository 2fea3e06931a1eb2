"""The verbs about schedules, ``list`` and ``show``, and the arguments that name a schedule."""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from collectives import units
from collectives.algorithms import (
    ALGORITHMS,
    build,
    is_for_links,
    is_own,
    is_plan,
    is_program,
    machine_of,
    names,
    own,
    parse_plan,
    takes,
)
from collectives.cli import TIMEOUT, Verb, add_json, limit, out, out_row, seconds, whole
from collectives.core.grid import grid
from collectives.core.schedule import Schedule
from collectives.core.traffic import traffic
from collectives.files import check_new_or_file, replace
from collectives.renamed import current_name
from collectives.units import many

if TYPE_CHECKING:
    from collectives.figures.style import Picture

# What a schedule is made for if the command line does not say, and the options that algorithms may
# take.
RANKS = 8
OPTIONS = ("root", "segments")
OF_SCHEDULE = ("ranks", *OPTIONS)


def add_schedule(
    parser: argparse.ArgumentParser, most_ranks: int, nargs: str | None = None
) -> None:
    """Add collective, algorithm and their options."""
    parser.add_argument(
        "collective", nargs=nargs, help="such as all_reduce; not before FILE.xml, which has its own"
    )
    text = (
        "such as two_tree (`collectives list`), packed_trees@MACHINE, FILE.xml, "
        "or FILE.py:FUNCTION (runs as you, without a sandbox)"
    )
    parser.add_argument("algorithm", nargs="?", help=text)
    parser.add_argument(
        "-p",
        "--ranks",
        type=whole(most_ranks),
        help=f"ranks (default {RANKS}, or those of FILE.xml or MACHINE)",
    )
    parser.add_argument(
        "--root", type=whole(least=0), help="for a collective that starts from or ends at one rank"
    )
    parser.add_argument(
        "--segments", type=whole(units.MAX_SEGMENTS), help="for a pipelined algorithm"
    )
    add_timeout(parser)


def add_timeout(parser: argparse.ArgumentParser) -> None:
    """Add the option ``--timeout``."""
    parser.add_argument(
        "--timeout", type=seconds, help=f"seconds (default {TIMEOUT:g} for a schedule of your own)"
    )


def limited(
    arguments: argparse.Namespace, algorithms: Sequence[str | None]
) -> AbstractContextManager[None]:
    """Return the verb's time limit.

    A schedule of the user's own always has one, because it may never end.
    """
    files = [name for name in algorithms if name and is_own(name)]
    return limit(
        arguments.timeout or (TIMEOUT if files else None), " ".join([arguments.verb, *files])
    )


def refuse(arguments: argparse.Namespace, options: Sequence[str], what: str) -> None:
    """Raise ValueError for the first of these options that was given, because ``what`` takes none of them."""
    for option in options:
        value = getattr(arguments, option)
        if value is not None:
            raise ValueError(
                f"{what} takes no --{option.replace('_', '-')}: got {value}, expected none"
            )


def complete(arguments: argparse.Namespace) -> None:
    """Fill in what FILE.xml, a plan or packed_trees@MACHINE says.

    Raises ValueError for no algorithm, and its wrong options.
    """
    if arguments.algorithm is None and is_program(arguments.collective):
        arguments.collective, arguments.algorithm = None, arguments.collective
    if arguments.algorithm is None:
        known = ", ".join(names(arguments.collective))
        expected = (
            f"one of {known}" if known else "a collective and an algorithm, as in all_reduce ring"
        )
        raise ValueError(
            f"{arguments.verb} {arguments.collective}: got no algorithm, expected {expected}"
        )
    arguments.algorithm = current_name(arguments.algorithm)
    if is_program(arguments.algorithm):
        program = own(arguments.algorithm)(RANKS)
        arguments.collective = arguments.collective or program.collective
        arguments.ranks = arguments.ranks or program.p
    elif is_plan(arguments.algorithm) and arguments.ranks is None:
        arguments.ranks = parse_plan(arguments.algorithm, arguments.collective).p
    elif is_for_links(arguments.algorithm) and arguments.ranks is None:
        from collectives.machine import machine

        arguments.ranks = machine(machine_of(arguments.algorithm)).ranks_per_node
    named = arguments.collective, arguments.algorithm
    given = [option for option in OPTIONS if getattr(arguments, option) is not None]
    refuse(arguments, [option for option in given if not takes(*named, option)], " ".join(named))


def built(arguments: argparse.Namespace) -> Schedule:
    """Return the schedule that the arguments name."""
    complete(arguments)
    options = {name: getattr(arguments, name) for name in OPTIONS}
    return build(arguments.collective, arguments.algorithm, arguments.ranks or RANKS, **options)


def write(path: Path, text: str) -> None:
    """Write a file, whole or not at all. Raises ValueError for a path that cannot be one."""
    try:
        check_new_or_file(path)
        replace(path, lambda partial: partial.write_text(text))
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror}") from None
    print(f"{path}: {len(text):,} bytes", file=sys.stderr)


def save(picture: "Picture", stem: Path) -> None:
    """Write both files of a picture, whole or not at all, and on standard error what it shows."""
    try:
        with tempfile.TemporaryDirectory(dir=stem.parent) as partial:
            picture.save(Path(partial) / stem.name)
            for path in Path(partial).iterdir():
                path.replace(stem.with_name(path.name))
    except OSError as error:
        raise ValueError(f"cannot write {stem}-light.svg and -dark.svg: {error.strerror}") from None
    print(f"{stem}-light.svg, {stem}-dark.svg: {picture.alt}", file=sys.stderr)


def _list_arguments(parser: argparse.ArgumentParser) -> None:
    ranks = whole(units.MAX_RANKS_SHOWN)
    parser.add_argument(
        "-p", "--ranks", type=ranks, default=RANKS, help=f"ranks to count for (default {RANKS})"
    )
    parser.add_argument("own", nargs="*", metavar="FILE.py:FUNCTION", help="schedules of your own")
    add_timeout(parser)
    add_json(parser)


def _list(arguments: argparse.Namespace) -> None:
    """Print a row for each algorithm: steps, messages, and what passes through the busiest port."""
    p = arguments.ranks
    with limited(arguments, arguments.own):
        schedules = [
            (algorithm, build(collective, algorithm, p)) for collective, algorithm in ALGORITHMS
        ]
        schedules += [(name, own(name)(p)) for name in arguments.own]
        for algorithm, schedule in schedules:
            if schedule.p != p:
                raise ValueError(f"schedule {algorithm}: got {schedule.p} ranks, expected {p}")
        if not arguments.json:
            columns = f"{'collective':<16}{'algorithm':<20}  {'steps':>6}  {'messages':>8}"
            out(f"{columns}  through the busiest port  ({p} ranks)")
        for algorithm, schedule in schedules:
            n = 1000 * schedule.k
            counted = traffic(schedule, n)
            messages = int(counted.messages_sent.sum())
            busiest = float(max(counted.sent.max(), counted.received.max()) / n)
            row = {
                "collective": schedule.collective,
                "algorithm": algorithm,
                "ranks": p,
                "steps": schedule.nsteps,
            }
            text = f"{schedule.collective:<14}  {algorithm:<20}  {schedule.nsteps:>6}  {messages:>8}  {busiest:.3g} n"
            out_row(row | {"messages": messages, "busiest_port": busiest}, text, arguments.json)


def _show_arguments(parser: argparse.ArgumentParser) -> None:
    add_schedule(parser, units.MAX_RANKS_SHOWN)
    files = "NAME-steps-light.svg, NAME-time-light.svg, and both -dark"
    parser.add_argument("--svg", metavar="NAME", help=f"draw it: {files}")
    parser.add_argument(
        "--json",
        action="store_true",
        help="one JSON object on one line: what the page's player reads",
    )


def _show(arguments: argparse.Namespace) -> None:
    """Draw the schedule if asked to.

    Else print it as a table, or as what the page's player reads.
    """
    with limited(arguments, [arguments.collective, arguments.algorithm]):
        schedule = built(arguments)
        if arguments.svg:
            _draw(arguments.svg, schedule, arguments.algorithm)
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


def _draw(name: str, schedule: Schedule, algorithm: str) -> None:
    from collectives.figures.schedules import space_time, steps

    messages = schedule.p * schedule.nsteps
    if messages > units.MAX_MESSAGES_DRAWN:
        raise ValueError(
            f"ranks x steps to draw: got {messages:,}, expected at most {units.MAX_MESSAGES_DRAWN:,}"
        )
    save(steps(schedule, algorithm), Path(f"{name}-steps"))
    save(space_time(schedule), Path(f"{name}-time"))


LIST = Verb(_list_arguments, _list)
SHOW = Verb(_show_arguments, _show)

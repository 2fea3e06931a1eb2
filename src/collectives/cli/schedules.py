"""What the verbs about one schedule share: its arguments, the schedule they ask for, and a time limit."""

import argparse
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from collectives import units
from collectives.algorithms import build, is_for_links, is_own, is_program, machine_of, names, own, takes
from collectives.cli import signals
from collectives.cli.options import TIMEOUT, UsageError, seconds, whole, wrong_input
from collectives.schedule import Schedule
from collectives.wire import current_name

# What a schedule is made for where the command line does not say, and the options that algorithms may take.
RANKS = 8
OPTIONS = ("root", "segments")


def add_schedule(parser: argparse.ArgumentParser, most_ranks: int, nargs: str | None = None) -> None:
    """Collective, algorithm and their options."""
    parser.add_argument("collective", nargs=nargs, help="such as all_reduce; not before FILE.xml, which has its own")
    text = (
        "such as two_tree (`collectives list`), packed_trees@MACHINE, FILE.xml, "
        "or FILE.py:FUNCTION (runs as you, without a sandbox)"
    )
    parser.add_argument("algorithm", nargs="?", help=text)
    parser.add_argument(
        "-p", "--ranks", type=whole(most_ranks), help=f"ranks (default {RANKS}, or those of FILE.xml or MACHINE)"
    )
    parser.add_argument("--root", type=int, help="for a collective that starts from or ends at one rank")
    parser.add_argument("--segments", type=whole(units.MOST_SEGMENTS), help="for a pipelined algorithm")
    add_timeout(parser)


def add_timeout(parser: argparse.ArgumentParser) -> None:
    """The option ``--timeout``."""
    parser.add_argument("--timeout", type=seconds, help=f"seconds (default {TIMEOUT:g} for a schedule of your own)")


def limited(arguments: argparse.Namespace, algorithms: Sequence[str | None]) -> AbstractContextManager[None]:
    """The verb's time limit. A schedule of the user's own always has one, because it may never end."""
    files = [name for name in algorithms if name and is_own(name)]
    limit = arguments.timeout or (TIMEOUT if files else None)
    return signals.limit(limit, " ".join([arguments.verb, *files])) if limit else nullcontext()


def complete(arguments: argparse.Namespace) -> None:
    """Fill in what FILE.xml or packed_trees@MACHINE says itself. Raises UsageError if no algorithm is named."""
    if arguments.algorithm is None and is_program(arguments.collective):
        arguments.collective, arguments.algorithm = None, arguments.collective
    if arguments.algorithm is None:
        known = ", ".join(names(arguments.collective))
        expected = f"one of {known}" if known else "a collective and an algorithm, as in all_reduce ring"
        raise UsageError(f"{arguments.verb} {arguments.collective}: got no algorithm, expected {expected}")
    arguments.algorithm = current_name(arguments.algorithm)
    if is_program(arguments.algorithm):
        with wrong_input():
            program = own(arguments.algorithm)(RANKS)
        arguments.collective = arguments.collective or program.collective
        arguments.ranks = arguments.ranks or program.p
    elif is_for_links(arguments.algorithm) and arguments.ranks is None:
        from collectives.machine import machine

        with wrong_input():
            arguments.ranks = machine(machine_of(arguments.algorithm)).ranks_per_node


def built(arguments: argparse.Namespace) -> Schedule:
    """The schedule that the arguments ask for."""
    complete(arguments)
    need_options(arguments)
    options = {name: getattr(arguments, name) for name in OPTIONS}
    with wrong_input():
        return build(arguments.collective, arguments.algorithm, arguments.ranks or RANKS, **options)


def need_options(arguments: argparse.Namespace) -> None:
    """Raise UsageError for an option that the algorithm does not take."""
    named = arguments.collective, arguments.algorithm
    for option in OPTIONS:
        value = getattr(arguments, option)
        with wrong_input():
            is_taken = value is None or takes(*named, option)
        if not is_taken:
            raise UsageError(f"{' '.join(named)} takes no --{option}: got {value}, expected none")

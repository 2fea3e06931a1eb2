"""The verb ``bench``: measure collectives on real ranks. Its options are the fields of `collectives.bench.Settings`."""

import argparse
import sys
from typing import Any

from pydantic import ValidationError

from collectives.algorithms import is_program, own
from collectives.bench import Measurement, Row, Settings, bench, check_here
from collectives.bench.table import both_places, heading, line, note, progress, tables
from collectives.cli import signals
from collectives.cli.options import UsageError, add_field, size, whole, wrong_input
from collectives.contracts import ROOTED
from collectives.errors import explain

# The fields of Settings, and what `--help` says of them; limits and defaults are the model's.
HELP = {
    "algorithms": "ours, FILE.py:FUNCTION, or FILE.xml (MSCCL), which has its own collective and ranks",
    "backends": "`collectives backends` lists them; mpi:ring, nccl:Tree/Simple take a library's algorithm",
    "ranks": "one launch for each",
    "where": "what starts ranks: loopback, slurm, cluster:5ms,25MB/s …; Horovod and MPI have their own, except on a "
    "cluster",
    "bytes": "sizes, also typed as 64K or 1M",
    "dtype": "of the elements",
    "op": "of a collective that reduces",
    "root": "of a collective that starts from or ends at one rank",
    "in_place": "one buffer for input and output, as nccl-tests means it (default: as torch's functions do)",
    "segments": "for pipelined algorithms (default: from the size)",
    "machine": "what auto goes by, and lower bounds: a preset, FILE.yaml or LATENCY,RATE",
    "repetitions": "timed calls",
    "warmups": "calls before that",
    "timeout": "seconds for one launch",
}
# Options that are called otherwise than their field, that take several values for a field of one, or parse their own.
FLAGS = {"algorithms": "--algorithm", "backends": "--backend", "in_place": "--in-place"}
MORE: dict[str, dict[str, Any]] = {"ranks": {"nargs": "+"}, "bytes": {"type": size}}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be typed."""
    fields = Settings.model_json_schema()["properties"]
    add_field(parser, "--collective", fields["collective"], "one after the other", nargs="+")
    for name, text in HELP.items():
        add_field(parser, FLAGS.get(name, f"--{name}"), fields[name], text, dest=name, **MORE.get(name, {}))
    parser.add_argument("-b", "--minbytes", type=size, help="the first size, instead of --bytes")
    parser.add_argument("-e", "--maxbytes", type=size, help="the last size (default: the first)")
    parser.add_argument("-f", "--stepfactor", type=whole(least=2), help="from a size to the next (default 2)")
    printed = parser.add_mutually_exclusive_group()
    printed.add_argument("--json", action="store_true", help="one JSON object per row, with every sample")
    printed.add_argument("--nccl-tests", action="store_true", help="nccl-tests' table: out of place and in place")
    parser.set_defaults(collective=None, ranks=None, bytes=None)


def run(arguments: argparse.Namespace) -> int:
    """A table for each number of ranks; 1 if elements were wrong."""
    with signals.limit(arguments.timeout, f"bench {' '.join(arguments.algorithms)}"):
        everything = _settings(arguments)
    with wrong_input():
        check_here([settings for wanted in everything for settings in wanted])
    wrong = sum(_measured(wanted, arguments) for wanted in everything)
    if wrong:
        print(f"collectives: {wrong} elements were wrong", file=sys.stderr)
    return int(wrong > 0)


def _settings(arguments: argparse.Namespace) -> list[list[Settings]]:
    """For each number of ranks the settings of its measurements, one for each collective."""
    collectives, ranks = _asked(arguments)
    if arguments.root and not set(collectives) & set(ROOTED):
        raise UsageError(f"{', '.join(collectives)} takes no --root: got {arguments.root}, expected none")
    given = {name: getattr(arguments, name) for name in HELP} | {"bytes": _sizes(arguments)}
    given = {name: value for name, value in given.items() if value is not None}
    try:
        return [[Settings(collective=each, **given | {"ranks": p}) for each in collectives] for p in ranks]
    except ValidationError as error:
        raise UsageError(explain(error)) from None


def _asked(arguments: argparse.Namespace) -> tuple[list[str], list[int]]:
    """Collectives and ranks; where they are not given, those of the first FILE.xml, or else the model's."""
    found = Settings.model_construct().collective, Settings.model_construct().ranks
    if files := [name for name in arguments.algorithms if is_program(name)]:
        with wrong_input():
            program = own(files[0])(found[1])
        found = program.collective, program.p
    return arguments.collective or [found[0]], arguments.ranks or [found[1]]


def _sizes(arguments: argparse.Namespace) -> list[int] | None:
    """The sizes that were typed, or those that -b, -e and -f stand for; None where nothing was."""
    typed: list[int] | None = arguments.bytes
    first, last, factor = arguments.minbytes, arguments.maxbytes, arguments.stepfactor or 2
    if first is None:
        if last is not None or arguments.stepfactor:
            raise UsageError("-e and -f: got no -b, expected the first size, too")
        return typed
    last = first if last is None else last
    if typed or not 0 < first <= last:
        beside = "beside --bytes" if typed else f"to -e {last}"
        raise UsageError(f"-b: got {first} {beside}, expected a size above 0, at most that of -e, and no --bytes")
    return [first * factor**i for i in range(last.bit_length()) if first * factor**i <= last]


def _measured(wanted: list[Settings], arguments: argparse.Namespace) -> int:
    """Measure and print: rows as they come, or nccl-tests' tables at the end; returns how many elements were wrong.

    The tables of what was measured before ranks failed are printed, too.
    """
    if arguments.nccl_tests:
        wanted = [each for one in wanted for each in both_places(one)]
    elif not arguments.json:
        signals.out(heading(wanted))
    if said := note(wanted):
        print(f"collectives: {said}", file=sys.stderr, flush=True)
    measured = Measurement([], [])

    def on_event(event: Row) -> None:
        show_progress(event)
        measured.rows.extend(event.get("rows", []))
        measured.environment.extend(event.get("environment", []))
        for row in () if arguments.nccl_tests else event.get("rows", []):
            signals.out_row(row, line(row), arguments.json)

    with progress(wanted) as show_progress:
        try:
            bench(wanted, on_event)
        finally:
            for text in tables(wanted[0], *measured) if arguments.nccl_tests else ():
                signals.out(text)
    return sum(row["wrong"] for row in measured.rows)

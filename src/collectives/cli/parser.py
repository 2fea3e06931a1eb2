"""The arguments of every verb: what can be typed, and which values are refused at once."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from collectives import limits
from collectives.emulator import command as cluster

TIMEOUT = 600.0


def parser() -> argparse.ArgumentParser:
    """The parser; what it returns has the verb's name as ``verb``."""
    parser = argparse.ArgumentParser("collectives", description="Collective algorithms: proved, shown and measured.")
    verbs = parser.add_subparsers(required=True, metavar="COMMAND", dest="verb")
    listing = verbs.add_parser("list", help="every algorithm, with its cost on p ranks")
    shown = whole(limits.MOST_RANKS_SHOWN)
    listing.add_argument("-p", "--ranks", type=shown, default=8, help="ranks to count the cost for (default 8)")
    listing.add_argument("own", nargs="*", metavar="FILE.py:FUNCTION", help="schedules of your own")
    show = verbs.add_parser("show", help="one schedule as a table of steps and ranks")
    _add_schedule(show, limits.MOST_RANKS_SHOWN)
    show.add_argument(
        "--svg", metavar="NAME", help="draw it: NAME-steps-light.svg, NAME-time-light.svg, and both -dark"
    )
    check = verbs.add_parser("verify", help="prove schedules by counting every contribution")
    _add_verify(check)
    simulate = verbs.add_parser("simulate", help="how long a schedule takes on a machine of any size")
    _add_simulate(simulate)
    speed = verbs.add_parser("bench-simulator", help="how fast `simulate` is, up to a million ranks (minutes)")
    _add_calibrate(verbs.add_parser("calibrate", help="measure a link between two ranks: a machine for `simulate`"))
    backends = verbs.add_parser("backends", help="which back ends are here, and why one is not")
    _add_bench(verbs.add_parser("bench", help="measure collectives on real ranks, in nccl-tests' columns"))
    hosts = verbs.add_parser("cluster", help="a cluster in slow motion: a command on each of its emulated hosts")
    cluster.add_arguments(hosts)
    _add_run(verbs.add_parser("run", help="run experiments (notebooks) with a preset"))
    for verb in (listing, show, check, simulate):
        verb.add_argument("--timeout", type=seconds, help=f"seconds (default {TIMEOUT:g} for a schedule of your own)")
    for verb in (listing, check, simulate, speed, backends, hosts):
        verb.add_argument("--json", action="store_true", help="one JSON object per row on standard output")
    show.add_argument("--json", action="store_true", help="one JSON object on one line: what the page's player reads")
    return parser


def _add_schedule(parser: argparse.ArgumentParser, most_ranks: int, nargs: str | None = None) -> None:
    parser.add_argument("collective", nargs=nargs, help="such as all_reduce")
    parser.add_argument("algorithm", nargs=nargs, help="such as two_tree (`collectives list`), or FILE.py:FUNCTION")
    parser.add_argument("-p", "--ranks", type=whole(most_ranks), help="ranks (default 8)")
    parser.add_argument("--root", type=int, help="for a collective that starts from or ends at one rank")
    parser.add_argument("--segments", type=whole(limits.MOST_SEGMENTS), help="for a pipelined algorithm")


def _add_verify(parser: argparse.ArgumentParser) -> None:
    from collectives.verify import COUNTED_RANKS

    _add_schedule(parser, limits.MOST_RANKS, nargs="?")
    parser.add_argument("--all", action="store_true", help="every algorithm, all its roots, segments and nodes")
    parser.add_argument(
        "--max-ranks",
        type=whole(COUNTED_RANKS),
        metavar="P",
        help=f"with --all: 1 to P ranks (default: {COUNTED_RANKS}, and more)",
    )


def _add_simulate(parser: argparse.ArgumentParser) -> None:
    _add_schedule(parser, limits.MOST_RANKS)
    parser.add_argument("--machine", default="textbook", help="a preset, or your own NAME.yaml (default textbook)")
    _add_bytes(parser, ["8", "64K", "64M"])
    parser.add_argument("--trace", metavar="FILE.json", help="every message, for chrome://tracing or ui.perfetto.dev")


def _add_calibrate(parser: argparse.ArgumentParser) -> None:
    ranks, repetitions = whole(limits.MOST_RANKS_STARTED, 2), whole(limits.MOST_REPETITIONS)
    parser.add_argument("--name", default="calibrated", help="the machine's name (default calibrated)")
    parser.add_argument("--where", default="loopback", help="what starts the ranks (default loopback)")
    parser.add_argument("--ranks", type=ranks, default=2, help="the first and the last are measured (default 2)")
    parser.add_argument("--repetitions", type=repetitions, default=50, help="(default 50)")
    parser.add_argument("--timeout", type=seconds, default=TIMEOUT, help=f"seconds (default {TIMEOUT:g})")


def _add_bench(parser: argparse.ArgumentParser) -> None:
    ranks, repetitions = whole(limits.MOST_RANKS_STARTED), limits.MOST_REPETITIONS
    parser.add_argument("--collective", nargs="+", default=["all_reduce"])
    parser.add_argument("--algorithm", nargs="+", default=["auto"], help="ours, or FILE.py:FUNCTION (default auto)")
    parser.add_argument(
        "--backend",
        nargs="+",
        default=["p2p"],
        help="`collectives backends` lists them; mpi:ring, nccl:Tree/Simple take a library's algorithm (default p2p)",
    )
    parser.add_argument("--ranks", nargs="+", type=ranks, default=[4], help="one launch for each (default 4)")
    parser.add_argument(
        "--where",
        default="loopback",
        help="what starts ranks: loopback, slurm, cluster:5ms,25MB/s … (default loopback); Horovod and MPI have their "
        "own, except on a cluster",
    )
    _add_bytes(parser, ["4", "64K", "1M"])
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--op", default="sum")
    parser.add_argument("--root", type=int, default=0)
    segments = whole(limits.MOST_SEGMENTS_STARTED)
    parser.add_argument("--segments", type=segments, help="for pipelined algorithms (default: from the size)")
    parser.add_argument("--machine", help="what auto goes by, and lower bounds: a preset, FILE.yaml or LATENCY,RATE")
    parser.add_argument("--repetitions", type=whole(repetitions), default=20, help="timed calls (default 20)")
    parser.add_argument("--warmups", type=whole(repetitions, 0), default=3, help="calls before that (default 3)")
    parser.add_argument(
        "--timeout", type=seconds, default=TIMEOUT, help=f"seconds for one launch (default {TIMEOUT:g})"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object per row, with every sample")


def _add_bytes(parser: argparse.ArgumentParser, default: list[str]) -> None:
    from collectives.units import parse_bytes

    sizes = [parse_bytes(size) for size in default]
    parser.add_argument("--bytes", nargs="+", type=size, default=sizes, help=f"sizes such as {' '.join(default)}")


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("notebooks", nargs="+", type=Path)
    parser.add_argument("--preset", default="quick", help="a file in the notebooks' folder presets/ (default quick)")
    parser.add_argument(
        *("-p", "--parameter"),
        action="append",
        default=[],
        type=_assignment,
        metavar="NAME=VALUE",
        help="a value in place of the preset's, as in YAML: -p ranks=8 -p 'sizes=[4, 64K]'",
    )
    parser.add_argument(
        "--output", metavar="NAME", help="results go to results/NAME (default: the preset's name, and a number with -p)"
    )
    parser.add_argument(
        "--replace", action="store_true", help="overwrite what other parameters or other code left there"
    )


def _assignment(text: str) -> tuple[str, Any]:
    from collectives.plain_yaml import parse

    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form name=value")
    try:
        return name.strip(), parse(value, f"the value of {name.strip()}")
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def whole(most: int, least: int = 1) -> Callable[[str], int]:
    """What parses a whole number within limits.

    >>> whole(100)("12")
    12
    """

    def parse(text: str) -> int:
        if not text.isdecimal() or len(text) > 40 or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"got {text[:40]!r}, expected a whole number from {least} to {most:,}")
        return int(text)

    return parse


def seconds(text: str) -> float:
    """A time limit.

    >>> seconds("1.5")
    1.5
    """
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number <= limits.MOST_SECONDS:
        raise argparse.ArgumentTypeError(f"got {text[:40]!r}, expected seconds: above 0, at most {limits.MOST_SECONDS}")
    return number


def size(text: str) -> int:
    """The size of a buffer, as it is typed.

    >>> size("64K")
    65536
    """
    from collectives.units import format_bytes, parse_bytes

    try:
        number = parse_bytes(text[:40])
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if number > limits.MOST_BYTES:
        raise argparse.ArgumentTypeError(f"got {text[:40]!r}, expected at most {format_bytes(limits.MOST_BYTES)}")
    return number

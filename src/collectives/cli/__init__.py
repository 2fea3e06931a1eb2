"""The command line: see ``collectives --help``.

Data go to standard output, all else to standard error.

A verb is an object with two functions, imported when it is asked for: ``add_arguments`` adds its
options to a parser, ``run`` takes the parsed arguments and returns the exit code, None for 0. A
ValueError is about what was typed. Other packages add verbs: an entry point of the group
``collectives.verbs`` names a module, or ``module:attribute`` for one of several in it. The first
line of its docstring is the help, without "The verb ``NAME``: " in front.
"""

import argparse
import csv
import io
import json
import math
import os
import signal
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import EntryPoint, distributions, entry_points
from itertools import chain
from types import FrameType
from typing import Any, NamedTuple, NoReturn

from collectives import units
from collectives.errors import short, unknown

GROUP, DISTRIBUTION = "collectives.verbs", "collective-communication"
OWN = {
    "list": ("schedules:LIST", "every algorithm, with its cost on p ranks"),
    "show": ("schedules:SHOW", "one schedule as a table of steps and ranks"),
    "verify": ("proofs:VERIFY", "prove schedules by counting every contribution"),
    "simulate": ("machines:SIMULATE", "how long a schedule takes on a machine of any size"),
    "expect": (
        "expect:EXPECT",
        "what a collective should take: NCCL's choice by its own formulas, the fastest schedule, the bound",
    ),
    "bound": (
        "machines:BOUND",
        "the least time of a collective on a machine's links, and the cut that sets it",
    ),
    "error": ("measure:ERROR", "how far its sums of floats are from the exact ones"),
    "calibrate": (
        "machines:CALIBRATE",
        "measure a link between two ranks: a machine for `simulate`",
    ),
    "backends": ("machines:BACKENDS", "which back ends are here, and why one is not"),
    "bench": ("measure:BENCH", "measure collectives on real ranks, also in nccl-tests' table"),
    "compare": (
        "measure:COMPARE",
        "two or more measured runs beside each other: ratios of their times",
    ),
    "cluster": (
        "machines:CLUSTER",
        "a cluster in slow motion: a command on each of its emulated hosts",
    ),
}

# The extra that brings what a verb needs, if it is not [simulate]; and of packages that any verb
# may need.
EXTRAS = {"cluster": "cluster", "synthesize": "synthesis", "run": "experiments"}
EXTRAS |= dict.fromkeys(("error", "backends", "bench", "calibrate", "compare"), "run")
EXTRAS |= dict.fromkeys(("handout", "grade", "grade-all", "leaderboard"), "course")
OF_PACKAGES = {"matplotlib": "pages", "pandas": "experiments", "pyarrow": "experiments"}

# Seconds that a schedule of the user's own may take, which may never end, and ranks may.
TIMEOUT = 600.0

ENDINGS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "hung up"}


class Verb(NamedTuple):
    """Two functions: one adds the command's options to a parser, the other runs it."""

    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int | None]


class Ended(KeyboardInterrupt):
    """The command has to end now, with this exit code.

    A KeyboardInterrupt, because libraries let that pass.
    """

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def main(argv: list[str] | None = None) -> int:
    """Run one command.

    Returns the exit code: 0, 1 when something failed, 2 for wrong input or a missing package.

    130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP. Raises SystemExit(141) if the reader of
    our output has gone.
    """
    typed = sys.argv[1:] if argv is None else argv
    try:
        with ending_by_signals():
            try:
                arguments = _parse(typed)
                return _load(arguments.verb).run(arguments) or 0
            finally:
                out("", end="")  # what argparse printed
    except ModuleNotFoundError as error:
        return _fail(_describe_missing(typed[0], str(error.name)), 2)
    except ValueError as error:
        return _fail(error, 2)
    except MemoryError as error:
        return _fail(f"memory is used up: {error}", 1)
    except OverflowError as error:
        return _fail(f"a number is too large: {error}", 1)
    except (RuntimeError, ImportError, OSError) as error:
        if isinstance(error, FileNotFoundError) and error.filename is None and not _has_folder():
            return _fail(
                "the working folder was removed: got none, expected a command in a folder that exists",
                1,
            )
        return _fail(error, 1)
    except KeyboardInterrupt as ended:
        return _fail(ended, getattr(ended, "code", 130))


def _has_folder() -> bool:
    try:
        os.getcwd()  # noqa: PTH109
    except FileNotFoundError:
        return False
    return True


def _fail(error: BaseException | str, code: int) -> int:
    """Print in one line why the command failed; returns its exit code."""
    text = "; ".join([str(error) or "interrupted", *getattr(error, "__notes__", ())])
    with suppress(OSError):
        print(f"collectives: {text}", file=sys.stderr, flush=True)
    return code


@contextmanager
def ending_by_signals() -> Iterator[None]:
    """Raise `Ended` in the block on Ctrl-C, SIGTERM and SIGHUP, so that ranks are ended and files removed.

    Further ones are ignored, because ``timeout`` sends two. SIGQUIT (Ctrl-backslash) ends the
    command immediately.
    """
    main = os.getpid()

    def end(number: int, _: FrameType | None) -> NoReturn:
        if os.getpid() != main:  # a forked child has nothing to clean up
            os._exit(128 + number)
        for each in before:
            signal.signal(each, signal.SIG_IGN)
        raise Ended(ENDINGS[signal.Signals(number)], 128 + number)

    # What a shell puts in the background ignores Ctrl-C, and what nohup starts ignores SIGHUP.
    before = {
        each: signal.getsignal(each) for each in ENDINGS if signal.getsignal(each) != signal.SIG_IGN
    }
    for each in before:
        signal.signal(each, end)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@contextmanager
def limit(seconds: float | None, what: str) -> Iterator[None]:
    """Raise `Ended` in the block after this many seconds, if any; ``what`` was not done."""

    def end(*_: object) -> NoReturn:
        raise Ended(f"{what}: not done within {seconds:g} s (--timeout)", 1)

    handler = signal.signal(signal.SIGALRM, end)
    timer = signal.setitimer(signal.ITIMER_REAL, seconds or 0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler)


def verbs() -> dict[str, str]:
    """Return the help of every verb: those of this package, then those that other packages add."""
    return {verb: _help(verb) for verb in (*OWN, *_added())}


@cache
def _added() -> dict[str, EntryPoint]:
    return {each.name: each for each in sorted(entry_points(group=GROUP))}


def _load(verb: str) -> Any:
    own = EntryPoint(verb, f"{__name__}.{OWN[verb][0]}", GROUP) if verb in OWN else None
    return (own or _added()[verb]).load()


def _help(verb: str) -> str:
    if verb in OWN:
        return OWN[verb][1]
    text = str(_load(verb).__doc__).splitlines()[0].rpartition("``: ")[2].rstrip(".")
    return text[:1].lower() + text[1:]


def _describe_missing(verb: str, module: str) -> str:
    """Return the message for a module that is not installed, with the extra that brings it."""
    of_package = None if verb == "run" else OF_PACKAGES.get(module.partition(".")[0])
    extra = of_package or EXTRAS.get(verb, "simulate")
    return f"{verb} needs {module}, which is not installed: pip install '{DISTRIBUTION}[{extra}]'"


def parser(needed: Collection[str]) -> argparse.ArgumentParser:
    """Return the parser of these verbs.

    Without any, as for ``--help``, all verbs without their arguments.
    """
    top = argparse.ArgumentParser(
        "collectives", description="Collective algorithms: proved, shown and measured."
    )
    release = next(
        (ours.version for ours in distributions(name=DISTRIBUTION)), "as a folder, not installed"
    )
    top.add_argument("--version", action="version", version=f"{DISTRIBUTION} {release}")
    commands = top.add_subparsers(required=True, metavar="COMMAND", dest="verb")
    for verb in needed or verbs():
        text = _help(verb)
        of_verb = commands.add_parser(verb, help=text, description=f"{text[0].upper()}{text[1:]}.")
        if verb in needed:
            _load(verb).add_arguments(of_verb)
    return top


def _parse(typed: list[str]) -> argparse.Namespace:
    """Parse a command.

    Raises ValueError for an unknown verb or option, with the nearest known one.
    """
    needed = [] if not typed or typed[0].startswith("-") else typed[:1]
    if needed and typed[0] not in OWN and typed[0] not in _added():
        raise ValueError(unknown("command", typed[0], verbs()))
    arguments, rest = parser(needed).parse_known_args(typed)
    options = [name for name in rest if name.startswith("-")]
    if options:
        of_verb = argparse.ArgumentParser()
        _load(arguments.verb).add_arguments(of_verb)
        known = [name for name in of_verb._option_string_actions if name.startswith("--")]
        raise ValueError(unknown(f"option of {arguments.verb}", options[0], known))
    if rest:
        raise ValueError(
            f"too many arguments for {arguments.verb}: got {' '.join(map(short, rest))}, expected none"
        )
    return arguments


def out(text: str, end: str = "\n") -> None:
    """Print data on standard output.

    Raises RuntimeError on a full disk, SystemExit(141) if the reader has gone.
    """
    try:
        print(text, end=end, flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python writes the rest again at exit
        if isinstance(error, BrokenPipeError):
            raise SystemExit(128 + signal.SIGPIPE) from None
        raise RuntimeError(f"cannot write to standard output: {error.strerror}") from None


def out_row(row: dict[str, Any], text: str, as_json: bool) -> None:
    """Print a row: as one JSON object on one line, or as text."""
    out(json.dumps(row) if as_json else text)


def add_json(parser: argparse._ActionsContainer) -> None:
    """Add the option ``--json``."""
    parser.add_argument(
        "--json", action="store_true", help="one JSON object per row on standard output"
    )


def csv_text(rows: Sequence[dict[str, Any]]) -> str:
    """Return rows as CSV with a heading; a value that a row lacks is empty.

    >>> print(csv_text([{"bytes": 8}, {"bytes": 64, "wrong": 0}]), end="")
    bytes,wrong
    8,
    64,0
    """
    text = io.StringIO()
    columns = dict.fromkeys(chain.from_iterable(rows))
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def whole(most: int | None = None, least: int = 1) -> Callable[[str], int]:
    """Return the type of an option that is a whole number within limits.

    >>> whole(100)("12")
    12
    """
    upper = "" if most is None else f" to {most:,}"

    def parse(text: str) -> int:
        if not text.isdecimal() or len(text) > 40 or not least <= int(text) <= (most or math.inf):
            raise argparse.ArgumentTypeError(
                f"got {text[:40]!r}, expected a whole number from {least}{upper}"
            )
        return int(text)

    return parse


def seconds(text: str) -> float:
    """Parse a time limit in seconds, which has no unit.

    >>> seconds("1.5")
    1.5
    """
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number <= units.MAX_SECONDS:
        raise argparse.ArgumentTypeError(
            f"got {text[:40]!r}, expected seconds: above 0, at most {units.MAX_SECONDS}"
        )
    return number


def size(text: str) -> int:
    """Parse the size of a buffer into bytes.

    >>> size("64K")
    65536
    """
    try:
        number = units.parse_bytes(text[:40])
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if number > units.MAX_BYTES:
        most = units.format_bytes(units.MAX_BYTES)
        raise argparse.ArgumentTypeError(f"got {text[:40]!r}, expected at most {most}")
    return number

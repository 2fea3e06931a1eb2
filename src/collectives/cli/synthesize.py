"""The verb ``synthesize``: find a schedule with few steps for a topology, or prove that none exists."""

import argparse
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from collectives import units
from collectives.cli.options import UsageError, add_json, whole, wrong_input
from collectives.cli.signals import out, out_row
from collectives.grid import grid
from collectives.schedule import Ints, Schedule, Step
from collectives.units import many

if TYPE_CHECKING:
    from collectives.synthesis.few_steps import Answer

# How often the elapsed time is shown, in seconds: on a terminal, where it is one line, and in a file.
ON_TERMINAL, IN_FILE = 1.0, 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be typed."""
    parser.add_argument("collective", choices=("all_gather", "reduce_scatter", "all_reduce"))
    parser.add_argument("--machine", required=True, help="dgx1, mesh:3x3, or your own NAME.yaml with links")
    steps, chunks = whole(units.MOST_SEGMENTS), whole(units.MOST_SEGMENTS)
    parser.add_argument("--steps", type=steps, required=True, help="of the schedule; an all_reduce has an even number")
    parser.add_argument("--chunks", type=chunks, default=1, help="of each rank (default 1)")
    rounds = "in all; a link carries a chunk a round (default: as few as there is a schedule for)"
    parser.add_argument("--rounds", type=whole(units.MOST_SEGMENTS), help=rounds)
    parser.add_argument("--limit", type=_limit, default=60.0, help="time for all (default 60s)")
    parser.add_argument("--output", metavar="FILE.py", help="the schedule as FILE.py:schedule, for the other verbs")
    add_json(parser)


def _limit(text: str) -> float:
    try:
        seconds = units.parse_seconds(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not 0 < seconds <= units.MOST_SECONDS:
        raise argparse.ArgumentTypeError(f"got {text[:40]}, expected above 0s, at most {units.MOST_SECONDS}s")
    return seconds


def run(arguments: argparse.Namespace) -> None:
    """A row for each answer, and the schedule. Raises RuntimeError if none was found."""
    from collectives.machine import machine
    from collectives.topology.graph import graph, rank_links

    if arguments.output and not arguments.output.endswith(".py"):
        raise UsageError(f"--output: got {arguments.output}, expected a name that ends in .py")
    with wrong_input():
        links = rank_links(graph(machine(arguments.machine)))
        what = links, arguments.collective, arguments.steps
    with wrong_input(), _elapsed():
        for answer in _answers(what, arguments):
            row = _row(answer, arguments, len(links))
            out_row(row, line(row), arguments.json)
    if answer.verdict == "limit":
        raise RuntimeError(f"synthesize: not done within {arguments.limit:g} s (--limit)")
    if answer.schedule is None:
        raise RuntimeError(f"no schedule: {answer.why}")
    if arguments.output:
        _save(Path(arguments.output), answer.schedule, arguments)
    if not arguments.json:
        out(f"+2<0 adds chunk 2 from rank 0, =2<0 replaces it.\n\n{grid(answer.schedule)}")


def _answers(what: tuple[Ints, str, int], arguments: argparse.Namespace) -> "Iterator[Answer]":
    from collectives.synthesis.few_steps import search, synthesize

    if arguments.rounds is None:
        yield from search(*what, arguments.chunks, arguments.limit)
    else:
        yield synthesize(*what, arguments.rounds, arguments.chunks, arguments.limit)


def _row(answer: "Answer", arguments: argparse.Namespace, ranks: int) -> dict[str, object]:
    asked = {name: getattr(arguments, name) for name in ("collective", "machine", "chunks")}
    told = {"ranks": ranks, "steps": answer.steps, "rounds": answer.rounds, "verdict": answer.verdict}
    return asked | told | {"why": answer.why, "solver_seconds": round(answer.seconds, 3)}


def line(row: dict[str, object]) -> str:
    """A row as the terminal shows it."""
    size = ", ".join(many(int(str(row[name])), name.rstrip("s")) for name in ("steps", "rounds"))
    why = f": {row['why']}" if row["why"] else ""
    return (
        f"{row['verdict']}  {row['collective']} on {row['machine']}: {size}, "
        f"{many(int(str(row['chunks'])), 'chunk')} a rank, {row['solver_seconds']} s{why}"
    )


def _save(path: Path, schedule: Schedule, arguments: argparse.Namespace) -> None:
    from collectives.cli.export import write

    write(path, text(schedule, f"{arguments.collective} on {arguments.machine}, by `collectives synthesize`"))
    print(f"collectives show {arguments.collective} {path}:schedule -p {schedule.p}", file=sys.stderr)


def text(schedule: Schedule, title: str) -> str:
    """A Python file whose function ``schedule`` returns this schedule.

    >>> from collectives.schedule import Step
    >>> swap = Schedule("all_reduce", p=2, k=1, nsteps=1, make=lambda t: Step([0, 1], [1, 0], 0, add=True))
    >>> made = {}
    >>> exec(text(swap, "a swap"), made)
    >>> list(made["schedule"](2).steps())
    [Step(0->1:+0, 1->0:+0)]
    """
    steps = [", ".join(str(getattr(step, name).tolist()) for name in Step.__slots__) for step in schedule.steps()]
    p, size = schedule.p, f'"{schedule.collective}", {schedule.p}, {schedule.k}, {schedule.nsteps}'
    return "\n".join(
        [
            f'"""{title}."""',
            "",
            "from collectives import Schedule, Step",
            "",
            f"STEPS = [  # {', '.join(Step.__slots__)}",
            *(f"    Step({each})," for each in steps),
            "]",
            "",
            "",
            "def schedule(p):",
            f"    if p != {p}:",
            f'        raise ValueError(f"ranks: got {{p}}, expected {p}")',
            f"    return Schedule({size}, STEPS.__getitem__, one_port={schedule.one_port})",
            "",
        ]
    )


@contextmanager
def _elapsed() -> Iterator[None]:
    """Show on standard error how many seconds have passed: on a terminal in one line, which vanishes at the end."""
    begin, done, is_terminal = time.monotonic(), threading.Event(), sys.stderr.isatty()
    head, end = ("\r", "") if is_terminal else ("", "\n")

    def show() -> None:
        while not done.wait(ON_TERMINAL if is_terminal else IN_FILE):
            print(f"{head}solving for {time.monotonic() - begin:.0f} s", end=end, file=sys.stderr, flush=True)
        if is_terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    shown = threading.Thread(target=show, daemon=True)
    shown.start()
    try:
        yield
    finally:
        done.set()
        shown.join()

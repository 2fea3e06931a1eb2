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
from collectives.cli import add_json, out, out_row, whole
from collectives.cli.schedules import write
from collectives.core.grid import grid
from collectives.core.schedule import Schedule, Step
from collectives.units import many

if TYPE_CHECKING:
    from collectives.core.schedule import Ints
    from collectives_interop.synthesis.few_steps import Answer

# How often the elapsed time is shown, in seconds: on a terminal, where it is one line, and in a
# file.
ON_TERMINAL, IN_FILE = 1.0, 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("collective", choices=("all_gather", "reduce_scatter", "all_reduce"))
    parser.add_argument(
        "--machine", required=True, help="dgx1, mesh:3x3, or your own NAME.yaml with links"
    )
    number = whole(units.MAX_SEGMENTS)
    steps = "of the schedule; an all_reduce has an even number"
    parser.add_argument("--steps", type=number, required=True, help=steps)
    parser.add_argument("--chunks", type=number, default=1, help="of each rank (default 1)")
    rounds = "in all; a link carries a chunk a round (default: as few as there is a schedule for)"
    parser.add_argument("--rounds", type=number, help=rounds)
    parser.add_argument(
        "--limit", type=_seconds_with_unit, default=60.0, help="time for all (default 60s)"
    )
    parser.add_argument(
        "--output", metavar="FILE.py", help="the schedule as FILE.py:schedule, for the other verbs"
    )
    add_json(parser)


def _seconds_with_unit(text: str) -> float:
    try:
        number = units.parse_seconds(text[:40])
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not 0 < number <= units.MAX_SECONDS:
        raise argparse.ArgumentTypeError(
            f"got {text[:40]}, expected above 0s, at most {units.MAX_SECONDS}s"
        )
    return number


def run(arguments: argparse.Namespace) -> None:
    """Print a row for each answer, and the schedule. Raises RuntimeError if none was found."""
    from collectives.machine import machine
    from collectives.topology.graph import graph, rank_links

    if arguments.output and not arguments.output.endswith(".py"):
        raise ValueError(f"--output: got {arguments.output}, expected a name that ends in .py")
    links = rank_links(graph(machine(arguments.machine)))
    with _elapsed():
        for answer in _answers(links, arguments):
            _print_answer(answer, arguments, len(links))
    if answer.verdict == "limit":
        raise RuntimeError(f"synthesize: not done within {arguments.limit:g} s (--limit)")
    if answer.schedule is None:
        raise RuntimeError(f"no schedule: {answer.why}")
    if arguments.output:
        title = f"{arguments.collective} on {arguments.machine}, by `collectives synthesize`"
        write(Path(arguments.output), program_text(answer.schedule, title))
        shown = f"{arguments.collective} {arguments.output}:schedule -p {answer.schedule.p}"
        print(f"collectives show {shown}", file=sys.stderr)
    if not arguments.json:
        out(f"+2<0 adds chunk 2 from rank 0, =2<0 replaces it.\n\n{grid(answer.schedule)}")


def _answers(links: "Ints", arguments: argparse.Namespace) -> "Iterator[Answer]":
    from collectives_interop.synthesis.few_steps import search, synthesize

    collective, steps = arguments.collective, arguments.steps
    chunks, limit = arguments.chunks, arguments.limit
    if arguments.rounds is None:
        yield from search(links, collective, steps, chunks, limit)
    else:
        yield synthesize(links, collective, steps, arguments.rounds, chunks, limit)


def _print_answer(answer: "Answer", arguments: argparse.Namespace, ranks: int) -> None:
    solver_seconds = round(answer.seconds, 3)
    row = {
        "collective": arguments.collective,
        "machine": arguments.machine,
        "chunks": arguments.chunks,
        "ranks": ranks,
        "steps": answer.steps,
        "rounds": answer.rounds,
        "verdict": answer.verdict,
        "why": answer.why,
        "solver_seconds": solver_seconds,
    }
    why = f": {answer.why}" if answer.why else ""
    text = (
        f"{answer.verdict}  {arguments.collective} on {arguments.machine}: "
        f"{many(answer.steps, 'step')}, {many(answer.rounds, 'round')}, "
        f"{many(arguments.chunks, 'chunk')} a rank, {solver_seconds} s{why}"
    )
    out_row(row, text, arguments.json)


def program_text(schedule: Schedule, title: str) -> str:
    """Return a Python file whose function ``schedule`` returns this schedule.

    >>> from collectives.core.schedule import Step
    >>> swap = Schedule("all_reduce", p=2, k=1, nsteps=1, make=lambda t: Step([0, 1], [1, 0], 0, add=True))
    >>> made = {}
    >>> exec(program_text(swap, "a swap"), made)
    >>> list(made["schedule"](2).steps())
    [Step(0->1:+0, 1->0:+0)]
    """
    names = Step.__slots__
    lines = []
    for step in schedule.steps():
        columns = [str(getattr(step, name).tolist()) for name in names]
        lines.append(f"    Step({', '.join(columns)}),")
    steps = "\n".join(lines)
    p = schedule.p
    size = f'"{schedule.collective}", {p}, {schedule.k}, {schedule.nsteps}'
    return f'''"""{title}."""

from collectives import Schedule, Step

STEPS = [  # {", ".join(names)}
{steps}
]


def schedule(p):
    if p != {p}:
        raise ValueError(f"ranks: got {{p}}, expected {p}")
    return Schedule({size}, STEPS.__getitem__, one_port={schedule.one_port})
'''


@contextmanager
def _elapsed() -> Iterator[None]:
    """Show on standard error how many seconds have passed: on a terminal in one line, which vanishes at the end."""
    begin = time.monotonic()
    done = threading.Event()
    is_terminal = sys.stderr.isatty()
    pause = ON_TERMINAL if is_terminal else IN_FILE
    head, end = ("\r", "") if is_terminal else ("", "\n")

    def show() -> None:
        while not done.wait(pause):
            text = f"{head}solving for {time.monotonic() - begin:.0f} s"
            print(text, end=end, file=sys.stderr, flush=True)
        if is_terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    shown = threading.Thread(target=show, daemon=True)
    shown.start()
    try:
        yield
    finally:
        done.set()
        shown.join()

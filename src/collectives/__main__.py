"""The command line: see ``collectives --help``. Data go to standard output, all else to standard error."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from collectives.algorithms import ALGORITHMS, build, is_own, own, takes
from collectives.cli import UsageError, ending, proving
from collectives.cli.ending import out
from collectives.cli.parser import TIMEOUT, parser
from collectives.emulator import command as cluster
from collectives.grid import grid
from collectives.limits import MOST_MESSAGES_DRAWN, need_cells
from collectives.schedule import Schedule, ScheduleError
from collectives.traffic import traffic
from collectives.verify import exact, verify

# What a schedule is made for where the command line does not say, and what algorithms may take besides.
RANKS = 8
OPTIONS = ("root", "segments")


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit code: 0, 1 when something failed, 2 when the input was wrong.

    130 after Ctrl-C, 143 after SIGTERM, 141 when the reader of our output has gone.
    """
    ending.open_standard_streams()
    with ending.signals():
        try:
            arguments = parser().parse_args(argv)
            return _within_limit(arguments)
        except UsageError as error:
            return ending.failed(error, 2)
        except (ScheduleError, RuntimeError, ImportError) as error:
            return ending.failed(error, 1)
        except MemoryError as error:
            return ending.failed(f"memory is used up: {error}", 1)
        except OverflowError as error:
            return ending.failed(f"a number is too large: {error}", 1)
        except KeyboardInterrupt as ended:
            return ending.failed(ended, getattr(ended, "code", 130))
        except BrokenPipeError:
            if ending.reader_has_gone():
                return 141
            raise
        finally:
            ending.flush()


def _within_limit(arguments: argparse.Namespace) -> int:
    """Run the verb; one that plays a schedule of your own has a limit, because that may never end."""
    if arguments.verb not in ("list", "show", "verify", "simulate"):
        return VERBS[arguments.verb](arguments)
    mine = arguments.own if arguments.verb == "list" else [name for name in [arguments.algorithm or ""] if is_own(name)]
    seconds = arguments.timeout or (TIMEOUT if mine else None)
    what = f"{arguments.verb} {' '.join(mine)}".strip()
    with ending.limit(seconds, what) if seconds else nullcontext():
        return VERBS[arguments.verb](arguments)


def _built(arguments: argparse.Namespace) -> Schedule:
    _need_options(arguments)
    names, options = (arguments.collective, arguments.algorithm), {name: getattr(arguments, name) for name in OPTIONS}
    try:
        return build(*names, arguments.ranks or RANKS, **options)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _need_options(arguments: argparse.Namespace) -> None:
    """Refuse an option that the algorithm would not look at."""
    names = arguments.collective, arguments.algorithm
    for option in OPTIONS:
        value = getattr(arguments, option)
        try:
            is_taken = value is None or takes(*names, option)
        except ValueError as error:
            raise UsageError(str(error)) from None
        if not is_taken:
            raise UsageError(f"{' '.join(names)} takes no --{option}: got {value}, expected none")


def _print(row: dict[str, Any], text: str, as_json: bool) -> None:
    out(json.dumps(row) if as_json else text)


def _list(arguments: argparse.Namespace) -> int:
    p = arguments.ranks
    if not arguments.json:
        out(f"{'collective':<16}{'algorithm':<20}{'steps':>6}{'messages':>10}  through the busiest port   ({p} ranks)")
    listed = [(algorithm, build(collective, algorithm, p)) for collective, algorithm in ALGORITHMS]
    for algorithm, schedule in listed + [(name, _own(name, p)) for name in arguments.own]:
        n = 1000 * schedule.k
        counted = traffic(schedule, n)
        messages, busiest = int(counted.messages_sent.sum()), float(max(counted.sent.max(), counted.received.max()) / n)
        row = {"collective": schedule.collective, "algorithm": algorithm, "ranks": p, "steps": schedule.nsteps}
        row |= {"messages": messages, "busiest_port": busiest}
        text = f"{schedule.collective:<16}{algorithm:<20}{schedule.nsteps:>6}{messages:>10}  {busiest:.3g} n"
        _print(row, text, arguments.json)
    return 0


def _own(name: str, p: int) -> Schedule:
    try:
        made = own(name)(p)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if made.p != p:
        raise UsageError(f"schedule {name}: got {made.p} ranks, expected {p}")
    return made


def _show(arguments: argparse.Namespace) -> int:
    schedule = _built(arguments)
    if arguments.svg:
        _save(arguments.svg, schedule, arguments.algorithm)
    if arguments.json:
        from collectives.figures.player import player_data

        out(json.dumps(player_data(schedule, arguments.algorithm), separators=(",", ":")))
    elif not arguments.svg:
        head = (
            f"{arguments.collective} by {arguments.algorithm} on {schedule.p} ranks: "
            f"{schedule.nsteps} steps, {schedule.k} chunks. +2<0 adds chunk 2 from rank 0, =2<0 replaces it."
        )
        out(f"{head}\n\n{grid(schedule)}")
    return 0


def _save(name: str, schedule: Schedule, algorithm: str) -> None:
    """Both pictures of a schedule as files, and on standard error what they show."""
    try:
        from collectives.figures.schedules import space_time, steps
    except ImportError as error:
        raise UsageError(f"--svg needs {error.name}, which is not installed") from None
    messages = schedule.p * schedule.nsteps
    if messages > MOST_MESSAGES_DRAWN:
        raise UsageError(f"ranks x steps to draw: got {messages:,}, expected at most {MOST_MESSAGES_DRAWN:,}")
    for kind, picture in (("steps", steps(schedule, algorithm)), ("time", space_time(schedule))):
        stem = Path(f"{name}-{kind}")
        try:
            with tempfile.TemporaryDirectory(dir=stem.parent) as partial:
                picture.save(Path(partial) / stem.name)
                for path in Path(partial).iterdir():
                    path.replace(stem.with_name(path.name))
        except OSError as error:
            raise UsageError(f"cannot write {stem}-light.svg and -dark.svg: {error.strerror}") from None
        print(f"{stem}-light.svg, {stem}-dark.svg: {picture.alt}", file=sys.stderr)


def _verify(arguments: argparse.Namespace) -> int:
    named = arguments.collective is not None and arguments.algorithm is not None
    if named == arguments.all:
        raise UsageError("verify takes either a collective and an algorithm, or --all")
    if arguments.all:
        given = [name for name in ("ranks", "root", "segments") if getattr(arguments, name) is not None]
        if given:
            raise UsageError(f"--all takes no --{given[0]}: got {getattr(arguments, given[0])}, expected none")
        for row in proving.rows(arguments.max_ranks):
            _print(row, proving.line(row), arguments.json)
        return 0
    if arguments.max_ranks is not None:
        raise UsageError("--max-ranks goes with --all: got a single algorithm, expected -p")
    schedule = _built(arguments)
    try:
        need_cells(schedule.p, schedule.k)
    except ValueError as error:
        raise UsageError(str(error)) from None
    verify(schedule)
    how = "every contribution counted" if exact(schedule) else "by fingerprints"
    row = {"collective": arguments.collective, "algorithm": arguments.algorithm, "ranks": schedule.p, "method": how}
    _print(row, f"ok  {arguments.collective} {arguments.algorithm} on {schedule.p} ranks, {how}", arguments.json)
    return 0


def _simulate(arguments: argparse.Namespace) -> int:
    try:
        from collectives.machine import machine
        from collectives.simulator.scaling import Case, line, row, schedule
        from collectives.simulator.trace import need_new_or_file, trace
    except ImportError as error:
        raise UsageError(f"simulate needs {error.name}, which is not installed") from None
    _need_options(arguments)
    names, p = (arguments.collective, arguments.algorithm), arguments.ranks or RANKS
    try:
        on = machine(arguments.machine)
        if arguments.trace:
            need_new_or_file(arguments.trace)
            if len(arguments.bytes) > 1:
                raise ValueError("a trace shows one size: give one with --bytes")
        for nbytes in arguments.bytes:
            case = Case(*names, p, nbytes, on, arguments.segments, arguments.root)
            made = row(case)
            _print(made, line(made), arguments.json)
            if arguments.trace:
                trace(arguments.trace, schedule(case._replace(segments=made["segments"])), on, nbytes, names[1])
                print(f"{arguments.trace}: open it in ui.perfetto.dev or chrome://tracing", file=sys.stderr)
    except ValueError as error:
        raise UsageError(str(error)) from None
    except BrokenPipeError:
        raise
    except OSError as error:
        verb = "write" if error.filename == arguments.trace else "read"
        raise UsageError(f"cannot {verb} {error.filename}: {error.strerror}") from None
    return 0


def _calibrate(arguments: argparse.Namespace) -> int:
    from collectives.bench.calibration import SIZES, deviations, machine_of, measured
    from collectives.machine import text
    from collectives.units import duration, format_bytes

    try:
        rows = measured(arguments.where, arguments.ranks, SIZES, arguments.repetitions, arguments.timeout)
    except ValueError as error:
        raise UsageError(str(error)) from None
    made = machine_of(rows, arguments.name, arguments.where)
    for row in deviations(rows, made.network):
        one_way = (
            f"{format_bytes(row['bytes']):>8} {duration(row['one_way']):>8} one way, {duration(row['each']):>8} each"
        )
        print(f"{one_way} in a burst; the fit: {duration(row['fit']):>8} ({row['off']:+.0%})", file=sys.stderr)
    out(text(made).rstrip("\n"))
    return 0


def _bench_simulator(arguments: argparse.Namespace) -> int:
    from collectives.simulator.speed import HEADING, benchmark, lines

    if not arguments.json:
        out(HEADING)
    benchmark(lambda row: _print(row, lines(row), arguments.json))
    return 0


def _backends(arguments: argparse.Namespace) -> int:
    from collectives.backends import BACKENDS
    from collectives.backends.presence import presence

    for found in map(presence, BACKENDS):
        here = f"{found.version} on {found.devices}" if found.absent is None else f"absent: {found.absent}"
        _print(found._asdict(), f"{found.backend:<10}{here}", arguments.json)
    return 0


def _cluster(arguments: argparse.Namespace) -> int:
    try:
        return cluster.run(arguments, lambda row, text: _print(row, text, arguments.json))
    except ValueError as error:
        raise UsageError(str(error)) from None
    except OSError as error:
        raise RuntimeError(str(error)) from None


def _bench(arguments: argparse.Namespace) -> int:
    from collectives.bench import Row, bench, need_all
    from collectives.bench.table import heading, line, note, progress

    wrong = 0
    with ending.limit(arguments.timeout, f"bench {' '.join(arguments.algorithm)}"):
        everything = [_settings(arguments, ranks) for ranks in arguments.ranks]
    try:
        need_all([settings for wanted in everything for settings in wanted])
    except ValueError as error:
        raise UsageError(str(error)) from None
    for wanted in everything:
        if not arguments.json:
            out(heading(wanted))
        if said := note(wanted):
            print(f"collectives: {said}", file=sys.stderr, flush=True)
        with progress(wanted) as show_progress:

            def on_event(event: Row, show_progress: Any = show_progress) -> None:
                show_progress(event)
                if "row" in event:
                    _print(event["row"], line(event["row"]), arguments.json)

            measured = bench(wanted, on_event)
        wrong += sum(row["wrong"] for row in measured.rows)
    if wrong:
        print(f"collectives: {wrong} elements were wrong", file=sys.stderr)
    return 1 if wrong else 0


def _settings(arguments: argparse.Namespace, ranks: int) -> list[Any]:
    """What to measure on so many ranks: one for each collective."""
    from pydantic import ValidationError

    from collectives.bench import Settings
    from collectives.contracts import ROOTED
    from collectives.errors import explain

    if arguments.root and not set(arguments.collective) & set(ROOTED):
        raise UsageError(f"{', '.join(arguments.collective)} takes no --root: got {arguments.root}, expected none")
    same = ("where", "bytes", "dtype", "op", "root", "segments", "machine", "repetitions", "warmups", "timeout")
    try:
        return [
            Settings(
                collective=collective,
                ranks=ranks,
                algorithms=arguments.algorithm,
                backends=arguments.backend,
                **{name: getattr(arguments, name) for name in same},
            )
            for collective in arguments.collective
        ]
    except ValidationError as error:
        raise UsageError(explain(error)) from None
    except ValueError as error:
        raise UsageError(str(error)) from None


def _run(arguments: argparse.Namespace) -> int:
    from collectives.experiments import ExperimentError
    from collectives.experiments.execute import run

    overrides = dict(arguments.parameter)
    try:
        with ending.killing_children():
            failed = run(arguments.notebooks, arguments.preset, overrides, arguments.output, replace=arguments.replace)
    except ExperimentError as error:
        raise UsageError(str(error)) from None
    if failed:
        print(f"collectives: {failed} rows failed; the same command measures them again", file=sys.stderr)
    return 1 if failed else 0


VERBS = {
    "list": _list,
    "show": _show,
    "verify": _verify,
    "simulate": _simulate,
    "bench-simulator": _bench_simulator,
    "calibrate": _calibrate,
    "backends": _backends,
    "bench": _bench,
    "cluster": _cluster,
    "run": _run,
}


if __name__ == "__main__":
    sys.exit(main())

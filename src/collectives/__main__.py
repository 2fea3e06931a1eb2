"""The command line: see ``collectives --help``. Data go to standard output, all else to standard error."""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NoReturn

from collectives.algorithms import ALGORITHMS, build, own, variants
from collectives.grid import grid
from collectives.launch.cluster import command as cluster
from collectives.schedule import Schedule, ScheduleError
from collectives.traffic import traffic
from collectives.verify import exact, verify


class UsageError(Exception):
    """Something the user typed; the message says what was wrong and what is allowed."""


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit code: 0, 1 when something failed, 2 when the input was wrong."""
    signal.signal(signal.SIGTERM, _terminated)
    arguments = _parser().parse_args(argv)
    try:
        code: int = arguments.command(arguments)
    except UsageError as error:
        print(f"collectives: {error}", file=sys.stderr)
        return 2
    except (ScheduleError, RuntimeError, ImportError) as error:
        print(f"collectives: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("collectives: interrupted", file=sys.stderr)
        return 130
    return code


def _terminated(*_: object) -> NoReturn:
    """A SIGTERM becomes an exception, so that ranks are ended on the way out."""
    raise SystemExit(128 + signal.SIGTERM)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("collectives", description="Collective algorithms: proved, shown and measured.")
    verbs = parser.add_subparsers(required=True, metavar="COMMAND")
    listing = verbs.add_parser("list", help="every algorithm, with its cost on p ranks")
    listing.add_argument("-p", "--ranks", type=_positive, default=8, help="ranks to count the cost for (default 8)")
    listing.add_argument("own", nargs="*", metavar="FILE.py:FUNCTION", help="schedules of your own")
    listing.set_defaults(command=_list)
    show = verbs.add_parser("show", help="one schedule as a table of steps and ranks")
    _add_schedule(show, nargs=None)
    show.add_argument(
        "--svg", metavar="NAME", help="draw it: NAME-steps-light.svg, NAME-time-light.svg, and both -dark"
    )
    show.set_defaults(command=_show)
    check = verbs.add_parser("verify", help="prove schedules by counting every contribution")
    _add_schedule(check, nargs="?")
    check.add_argument("--all", action="store_true", help="every algorithm, all its roots, segments and nodes")
    check.add_argument(
        "--max-ranks", type=_positive, metavar="P", help="with --all: 1 to P ranks (default: 128, and more)"
    )
    check.set_defaults(command=_verify)
    _add_simulate(verbs.add_parser("simulate", help="how long a schedule takes on a machine of any size"))
    speed = verbs.add_parser("bench-simulator", help="how fast `simulate` is, up to a million ranks (minutes)")
    speed.set_defaults(command=_bench_simulator)
    _add_calibrate(verbs.add_parser("calibrate", help="measure a link between two ranks: a machine for `simulate`"))
    backends = verbs.add_parser("backends", help="which back ends are here, and why one is not")
    backends.set_defaults(command=_backends)
    _add_bench(verbs.add_parser("bench", help="measure collectives on real ranks, in nccl-tests' columns"))
    hosts = verbs.add_parser("cluster", help="a cluster in slow motion: a command on each of its emulated hosts")
    cluster.add_arguments(hosts)
    hosts.set_defaults(command=_cluster)
    _add_run(verbs.add_parser("run", help="run experiments (notebooks) with a preset"))
    for verb in (listing, check, speed, backends, hosts):
        verb.add_argument("--json", action="store_true", help="one JSON object per row on standard output")
    show.add_argument("--json", action="store_true", help="one JSON object on one line: what the page's player reads")
    return parser


def _add_schedule(parser: argparse.ArgumentParser, nargs: str | None) -> None:
    parser.add_argument("collective", nargs=nargs, help="such as all_reduce")
    parser.add_argument("algorithm", nargs=nargs, help="such as two_tree (`collectives list`), or FILE.py:FUNCTION")
    parser.add_argument("-p", "--ranks", type=_positive, default=8, help="ranks (default 8)")
    parser.add_argument("--root", type=int, help="for a broadcast or a reduce")
    parser.add_argument("--segments", type=_positive, help="for a pipelined algorithm")


def _add_simulate(parser: argparse.ArgumentParser) -> None:
    _add_schedule(parser, nargs=None)
    parser.add_argument("--machine", default="textbook", help="a preset, or your own NAME.yaml (default textbook)")
    parser.add_argument("--bytes", nargs="+", default=["8", "64K", "64M"], help="sizes such as 8 64K 64M")
    parser.add_argument("--trace", metavar="FILE.json", help="every message, for chrome://tracing or ui.perfetto.dev")
    parser.add_argument("--json", action="store_true", help="one JSON object per row on standard output")
    parser.set_defaults(command=_simulate)


def _add_calibrate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", default="calibrated", help="the machine's name (default calibrated)")
    parser.add_argument("--where", default="loopback", help="what starts the ranks (default loopback)")
    parser.add_argument("--ranks", type=_positive, default=2, help="the first and the last are measured (default 2)")
    parser.add_argument("--repetitions", type=_positive, default=50, help="(default 50)")
    parser.add_argument("--timeout", type=float, default=600, help="seconds (default 600)")
    parser.set_defaults(command=_calibrate)


def _add_bench(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--collective", nargs="+", default=["all_reduce"])
    parser.add_argument("--algorithm", nargs="+", default=["auto"], help="ours, or FILE.py:FUNCTION (default auto)")
    parser.add_argument(
        "--backend",
        nargs="+",
        default=["p2p"],
        help="`collectives backends` lists them; mpi:ring, nccl:Tree/Simple take a library's algorithm (default p2p)",
    )
    parser.add_argument("--ranks", nargs="+", type=_positive, default=[4], help="one launch for each (default 4)")
    parser.add_argument(
        "--where",
        default="loopback",
        help="what starts ranks: loopback, slurm, cluster:5ms,25MB/s … (default loopback); Horovod and MPI have their "
        "own, except on a cluster",
    )
    parser.add_argument("--bytes", nargs="+", default=["4", "64K", "1M"], help="sizes such as 4 64K 1M")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--op", default="sum")
    parser.add_argument("--root", type=int, default=0)
    parser.add_argument("--segments", type=_positive, help="for pipelined algorithms (default: from the size)")
    parser.add_argument("--machine", help="what auto goes by, and lower bounds: a preset, FILE.yaml or LATENCY,RATE")
    parser.add_argument("--repetitions", type=int, default=20, help="timed calls (default 20)")
    parser.add_argument("--warmups", type=int, default=3, help="calls before that (default 3)")
    parser.add_argument("--timeout", type=float, default=600, help="seconds for one launch (default 600)")
    parser.add_argument("--json", action="store_true", help="one JSON object per row, with every sample")
    parser.set_defaults(command=_bench)


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
    parser.set_defaults(command=_run)


def _assignment(text: str) -> tuple[str, Any]:
    from collectives.plain_yaml import parse

    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form name=value")
    try:
        return name.strip(), parse(value, f"the value of {name.strip()}")
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)


def _built(arguments: argparse.Namespace) -> Schedule:
    root = arguments.root
    try:
        return build(arguments.collective, arguments.algorithm, arguments.ranks, root=root, segments=arguments.segments)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _print(row: dict[str, Any], text: str, as_json: bool) -> None:
    print(json.dumps(row) if as_json else text, flush=True)


def _list(arguments: argparse.Namespace) -> int:
    p = arguments.ranks
    if not arguments.json:
        print(
            f"{'collective':<16}{'algorithm':<20}{'steps':>6}{'messages':>10}  through the busiest port   ({p} ranks)"
        )
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
        return own(name)(p)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _show(arguments: argparse.Namespace) -> int:
    schedule = _built(arguments)
    if arguments.svg:
        _save(arguments.svg, schedule, arguments.algorithm)
    if arguments.json:
        from collectives.player import player_data

        print(json.dumps(player_data(schedule, arguments.algorithm), separators=(",", ":")))
    elif not arguments.svg:
        head = (
            f"{arguments.collective} by {arguments.algorithm} on {schedule.p} ranks: "
            f"{schedule.nsteps} steps, {schedule.k} chunks. +2<0 adds chunk 2 from rank 0, =2<0 replaces it."
        )
        print(f"{head}\n\n{grid(schedule)}")
    return 0


def _save(name: str, schedule: Schedule, algorithm: str) -> None:
    """Both pictures of a schedule as files, and on standard error what they show."""
    try:
        from collectives.draw import space_time, steps
    except ImportError as error:
        raise UsageError(f"--svg needs {error.name}, which is not installed") from None
    for kind, picture in (("steps", steps(schedule, algorithm)), ("time", space_time(schedule))):
        try:
            picture.save(f"{name}-{kind}")
        except OSError as error:
            raise UsageError(f"cannot write {error.filename}: {error.strerror}") from None
        print(f"{name}-{kind}-light.svg, {name}-{kind}-dark.svg: {picture.alt}", file=sys.stderr)


def _verify(arguments: argparse.Namespace) -> int:
    named = arguments.collective is not None and arguments.algorithm is not None
    if named == arguments.all:
        raise UsageError("verify takes either a collective and an algorithm, or --all")
    if named:
        schedule = _built(arguments)
        verify(schedule)
        how = "every contribution counted" if exact(schedule) else "by fingerprints"
        row = {"collective": arguments.collective, "algorithm": arguments.algorithm, "ranks": schedule.p, "method": how}
        text = f"ok  {arguments.collective} {arguments.algorithm} on {schedule.p} ranks, {how}"
        _print(row, text, arguments.json)
        return 0
    with ProcessPoolExecutor() as workers:
        # The last ones in the table take longest: begun first, they do not keep a single core busy at the end.
        jobs = [workers.submit(_proved, *names, arguments.max_ranks) for names in reversed(ALGORITHMS)]
        try:
            for job in as_completed(jobs):
                _print(job.result(), _verified_line(job.result()), arguments.json)
        finally:
            workers.shutdown(cancel_futures=True)  # after a fault or Ctrl-C nobody waits for what has not begun
    return 0


# What `verify --all` proves without --max-ranks: every contribution counted for these numbers of ranks, and by
# fingerprints for one large number more, by how many chunks there are for p ranks.
COUNTED_FOR = (*range(1, 65), 96, 100, 127, 128)
LARGE = {"p * p": 256, "p": 1024, "few": 4096}


def _proved(collective: str, algorithm: str, max_ranks: int | None) -> dict[str, Any]:
    """Verify all variants of one algorithm; returns the row that says so."""
    k = build(collective, algorithm, 16).k
    large = LARGE["p * p" if k == 256 else "p" if k >= 16 else "few"]
    counted = COUNTED_FOR if max_ranks is None else range(1, max_ranks + 1)
    schedules = 0
    for schedule in (schedule for p in counted for schedule in variants(collective, algorithm, p)):
        verify(schedule)
        schedules += 1
    if max_ranks is None:
        verify(build(collective, algorithm, large))
    row = {"collective": collective, "algorithm": algorithm, "max_ranks": max(counted), "schedules": schedules}
    return row | {"fingerprints_at": large if max_ranks is None else None}


def _verified_line(row: dict[str, Any]) -> str:
    large = f", fingerprints at {row['fingerprints_at']}" if row["fingerprints_at"] else ""
    return (
        f"ok  {row['collective']:<16}{row['algorithm']:<20}{row['schedules']:>6} schedules on up to "
        f"{row['max_ranks']} ranks counted{large}"
    )


def _simulate(arguments: argparse.Namespace) -> int:
    try:
        from collectives.machine import machine
        from collectives.scaling import Case, line, row, schedule
        from collectives.trace import trace
        from collectives.units import parse_bytes
    except ImportError as error:
        raise UsageError(f"simulate needs {error.name}, which is not installed") from None
    try:
        on, sizes = machine(arguments.machine), [parse_bytes(size) for size in arguments.bytes]
        if arguments.trace and len(sizes) > 1:
            raise ValueError("a trace shows one size: give one with --bytes")
        for nbytes in sizes:
            names = arguments.collective, arguments.algorithm
            case = Case(*names, arguments.ranks, nbytes, on, arguments.segments, arguments.root)
            made = row(case)
            _print(made, line(made), arguments.json)
            if arguments.trace:
                trace(arguments.trace, schedule(case._replace(segments=made["segments"])), on, nbytes, names[1])
                print(f"{arguments.trace}: open it in ui.perfetto.dev or chrome://tracing", file=sys.stderr)
    except ValueError as error:
        raise UsageError(str(error)) from None
    except OSError as error:
        raise UsageError(f"cannot write {error.filename}: {error.strerror}") from None
    return 0


def _calibrate(arguments: argparse.Namespace) -> int:
    from collectives.calibration import SIZES, deviations, machine_of, measured
    from collectives.machine import text
    from collectives.units import duration, format_bytes

    if arguments.ranks < 2:
        raise UsageError("a link needs two ranks, not 1")
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
    print(text(made), end="")
    return 0


def _bench_simulator(arguments: argparse.Namespace) -> int:
    from collectives.simulator_benchmark import HEADING, benchmark, lines

    if not arguments.json:
        print(HEADING, flush=True)
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
    everything = [_settings(arguments, ranks) for ranks in arguments.ranks]
    need_all([settings for wanted in everything for settings in wanted])
    for wanted in everything:
        if not arguments.json:
            print(heading(wanted), flush=True)
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
    from collectives.errors import explain
    from collectives.units import parse_bytes

    same = ("where", "dtype", "op", "root", "segments", "machine", "repetitions", "warmups", "timeout")
    try:
        return [
            Settings(
                collective=collective,
                ranks=ranks,
                algorithms=arguments.algorithm,
                backends=arguments.backend,
                bytes=[parse_bytes(size) for size in arguments.bytes],
                **{name: getattr(arguments, name) for name in same},
            )
            for collective in arguments.collective
        ]
    except ValidationError as error:
        raise UsageError(explain(error)) from None
    except ValueError as error:
        raise UsageError(str(error)) from None


def _run(arguments: argparse.Namespace) -> int:
    from collectives.execute import run
    from collectives.experiments import ExperimentError

    if arguments.output is not None and not re.fullmatch(r"\w[\w.=,-]*", arguments.output):
        raise UsageError(f"--output {arguments.output!r}: a name of letters, digits and . _ - = , for results/NAME")
    overrides = dict(arguments.parameter)
    try:
        failed = run(arguments.notebooks, arguments.preset, overrides, arguments.output, replace=arguments.replace)
    except ExperimentError as error:
        raise UsageError(str(error)) from None
    if failed:
        print(f"collectives: {failed} rows failed; the same command measures them again", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

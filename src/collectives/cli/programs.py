"""The verbs about programs and proofs: ``verify``, and ``export`` for the tools of others."""

import argparse
import sys
import time
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collectives import units
from collectives.algorithms import ALGORITHMS, build, variants
from collectives.cli import TIMEOUT, Verb, add_json, limit, out, out_row, size, whole
from collectives.cli.schedules import add_schedule, built, limited, refuse, write
from collectives.core.schedule import Schedule, ScheduleError
from collectives.core.verify import COUNTED_RANKS, check_cells, exact, verify
from collectives.formats import msccl
from collectives.formats.others import ANY, COLLECTIVES, Time, goal, known, loggp, nvls, tuner
from collectives.formats.program import SLOTS
from collectives.formats.prove import Report, prove
from collectives.processes import workers
from collectives.units import duration, format_bytes, many, runs

if TYPE_CHECKING:
    from concurrent.futures import Future, ProcessPoolExecutor

    from collectives.machine import Machine

Row = dict[str, Any]

SIZE = "1M"

# Without --max-ranks: every contribution is counted for these numbers of ranks, and fingerprints
# are compared for one larger number, which depends on how many chunks p ranks have.
COUNTED_FOR = (*range(1, 65), 96, 100, 127, 128)
LARGE = {"p * p": 256, "p": 1024, "few": 4096}
PROGRESS_SECONDS = 10.0

# What each format takes, beyond collective, algorithm and -p.
TAKES = {
    "msccl": ("dialect", "protocol"),
    "goal": ("machine", "bytes"),
    "nccl-tuner": ("machine", "nodes", "bytes", "rows"),
}
OF_SCHEDULE = ("ranks", "root", "segments")
DIALECTS = ("rccl", "msccl-tools")

# What NCCL has, the faster one for few bytes first. Sizes are four times as large each.
TUNED = ("hierarchical_tree", "ring")
SIZES = [4**i for i in range(4, 16)]
NODES = [2, 4, 8, 16]
# What is read of measured rows.
MEASURED = ["collective", "backend", "algorithm", "ranks", "bytes", "median_us"]


@contextmanager
def _proof() -> Iterator[None]:
    """Raise RuntimeError in the block for a schedule that is wrong, because that is a failure, not wrong input."""
    try:
        yield
    except ScheduleError as error:
        raise RuntimeError(str(error)) from error


def _verify_arguments(parser: argparse.ArgumentParser) -> None:
    add_schedule(parser, units.MAX_RANKS, nargs="?")
    parser.add_argument(
        "files",
        nargs="*",
        metavar="FILE",
        help="instead: programs in MSCCL XML, schedules of TE-CCL in JSON",
    )
    parser.add_argument(
        "--all", action="store_true", help="every algorithm, all its roots, segments and nodes"
    )
    most = f"with --all: 1 to P ranks (default: {COUNTED_RANKS}, and more)"
    parser.add_argument("--max-ranks", type=whole(COUNTED_RANKS), metavar="P", help=most)
    parser.add_argument(
        "--machine", help="with FILE.xml: simulated there too; a preset, or your own NAME.yaml"
    )
    parser.add_argument("--bytes", type=size, help=f"with --machine (default {SIZE})")
    add_json(parser)


def _verify(arguments: argparse.Namespace) -> None:
    """Print a row for each proof. Raises RuntimeError for a schedule that is wrong."""
    given = [arguments.collective, arguments.algorithm, *arguments.files]
    words = [word for word in given if word is not None]
    are_programs = bool(words) and all(word.endswith((".xml", ".json")) for word in words)
    if are_programs and not arguments.all:
        with limit(arguments.timeout or TIMEOUT, "verify"):
            _verify_programs(words, arguments)
        return
    if arguments.machine or arguments.bytes:
        raise ValueError(
            "--machine and --bytes go with FILE.xml: `simulate` has them for other schedules"
        )
    # --all stands alone, and without it there are two words.
    is_fitting = not words if arguments.all else len(words) == 2
    if not is_fitting:
        if arguments.all:
            words.append("--all")
        got = " ".join(words)[:80] or "nothing"
        expected = "a collective and an algorithm, or files that end in .xml or .json, or --all"
        raise ValueError(f"verify: got {got}, expected either {expected}")
    with limited(arguments, [arguments.algorithm]):
        if not arguments.all:
            _verify_one(arguments)
            return
        refuse(arguments, OF_SCHEDULE, "--all")
        with _proof():
            for row in proofs(arguments.max_ranks):
                out_row(row, _proof_line(row), arguments.json)


def _verify_programs(files: list[str], arguments: argparse.Namespace) -> None:
    refuse(arguments, (*OF_SCHEDULE, "max_ranks"), "FILE.xml")
    if arguments.bytes and arguments.machine is None:
        raise ValueError("--bytes goes with --machine: got no machine, expected one")
    on = None
    if arguments.machine is not None:
        from collectives.machine import machine

        on = machine(arguments.machine)
    verdicts = []
    for row in judged(files, on, arguments.bytes or size(SIZE)):
        out_row(row, _program_line(row), arguments.json)
        verdicts.append(row["verdict"])
    bad = {word: verdicts.count(word) for word in ("wrong", "unreadable") if word in verdicts}
    message = ", ".join(f"{count} of {len(files)} {word}" for word, count in bad.items())
    if "unreadable" in bad:
        raise ValueError(message)
    if bad:
        raise RuntimeError(message)


def _verify_one(arguments: argparse.Namespace) -> None:
    if arguments.max_ranks is not None:
        raise ValueError("--max-ranks goes with --all: got a single algorithm, expected -p")
    schedule = _proved(arguments)
    how = "every contribution counted" if exact(schedule) else "by fingerprints"
    row = {
        "collective": arguments.collective,
        "algorithm": arguments.algorithm,
        "ranks": schedule.p,
        "method": how,
    }
    out_row(
        row,
        f"ok  {arguments.collective} {arguments.algorithm} on {schedule.p} ranks, {how}",
        arguments.json,
    )


def _proved(arguments: argparse.Namespace) -> Schedule:
    """Return the schedule that the arguments name. Raises RuntimeError if it is wrong."""
    schedule = built(arguments)
    check_cells(schedule.p, schedule.k)
    with _proof():
        verify(schedule)
    return schedule


def proofs(max_ranks: int | None) -> Iterator[Row]:
    """Yield a row for each algorithm when it is proved on 1 to ``max_ranks`` ranks.

    Raises ScheduleError if not.

    A job is one algorithm on one number of ranks, so that all cores work until the end. The longest
    come first: the proofs by fingerprints, then the last algorithms of the table, on many ranks. Of
    several wrong schedules of an algorithm the one on the fewest ranks is shown.
    """
    counted = COUNTED_FOR if max_ranks is None else range(1, max_ranks + 1)
    with workers() as pool:
        large = (
            {}
            if max_ranks is not None
            else {n: pool.submit(_prove_large, *n) for n in reversed(ALGORITHMS)}
        )
        jobs = {names: _submit_counted(pool, names, counted) for names in reversed(ALGORITHMS)}
        of_job = {job: names for names, each in jobs.items() for job in each}
        of_job |= {job: names for names, job in large.items()}
        open_jobs = Counter(of_job.values())
        for job in _with_progress(as_completed(of_job), len(of_job)):
            names = of_job[job]
            open_jobs[names] -= 1
            if not open_jobs[names]:
                schedules = sum(job.result() for job in jobs[names])
                yield _proof_row(names, max(counted), schedules, large.get(names))


def _submit_counted(
    pool: "ProcessPoolExecutor", names: tuple[str, str], counted: Sequence[int]
) -> list["Future[int]"]:
    """Submit one algorithm's proofs on these numbers of ranks, the largest first.

    Return them in ascending order.
    """
    descending = [pool.submit(_prove_counted, *names, p) for p in sorted(counted, reverse=True)]
    return descending[::-1]


def _with_progress(jobs: Iterable["Future[int]"], count: int) -> Iterator["Future[int]"]:
    """Yield the jobs, and say on standard error how many have ended, some seconds after it was said last."""
    said = time.monotonic()
    for ended, job in enumerate(jobs, 1):
        if time.monotonic() > said + PROGRESS_SECONDS:
            said = time.monotonic()
            print(f"collectives: {ended} of {count} proofs", file=sys.stderr, flush=True)
        yield job


def _prove_counted(collective: str, algorithm: str, p: int) -> int:
    """Verify all variants of one algorithm on p ranks, and return their number."""
    number = 0
    for schedule in variants(collective, algorithm, p):
        verify(schedule)
        number += 1
    return number


def _prove_large(collective: str, algorithm: str) -> int:
    """Verify one algorithm by fingerprints, and return its number of ranks."""
    k = build(collective, algorithm, 16).k
    large = LARGE["p * p" if k == 256 else "p" if k >= 16 else "few"]
    verify(build(collective, algorithm, large))
    return large


def _proof_row(
    names: tuple[str, str], most: int, schedules: int, large: "Future[int] | None"
) -> Row:
    row = {"collective": names[0], "algorithm": names[1], "max_ranks": most, "schedules": schedules}
    return row | {"fingerprints_at": None if large is None else large.result()}


def _proof_line(row: Row) -> str:
    large = f", fingerprints at {row['fingerprints_at']}" if row["fingerprints_at"] else ""
    return (
        f"ok  {row['collective']:<16}{row['algorithm']:<20}{row['schedules']:>6} schedules on up to "
        f"{row['max_ranks']} ranks counted{large}"
    )


def judged(
    files: Sequence[str], machine: "Machine | None" = None, nbytes: int = 0
) -> Iterator[Row]:
    """Yield a row for each file: verdict "right", "wrong", or "unreadable" if it is no program.

    A file's contents say whether it is XML or JSON. With a machine, a program that is right is
    simulated there. A schedule of TE-CCL is not, because it is made for its own links.
    """
    for file in files:
        begin = time.perf_counter()
        row = {"file": file} | _judged(Path(file))
        if machine and row["verdict"] == "right":
            row |= _simulate(row, machine, nbytes)
        yield row | {"seconds": round(time.perf_counter() - begin, 3)}


def _judged(path: Path) -> Row:
    row: Row = {}
    try:
        data = msccl.contents(path)
        judge = _flows if _is_json(path, data) else _program
        return row | {"verdict": "right"} | judge(data, row)
    except ScheduleError as error:
        return row | {"verdict": "wrong", "why": str(error)}
    except ValueError as error:
        return {"verdict": "unreadable", "why": str(error)}


def _is_json(path: Path, data: bytes) -> bool:
    first = data.removeprefix(BOM_UTF8).lstrip()[:1]
    return first in (b"{", b"[") or (path.suffix == ".json" and first != b"<")


def _program(data: bytes, row: Row) -> Row:
    """Prove a program; ``row`` gets its collective and ranks even if it is wrong."""
    program = msccl.read(data)
    row |= {"collective": program.collective, "ranks": program.p, "in_place": list(program.modes)}
    report = prove(program)
    return row | report._asdict()


def _flows(data: bytes, row: Row) -> Row:
    """Prove a schedule of TE-CCL; ``row`` gets its collective and ranks even if it is wrong."""
    from collectives.formats import teccl

    flows = teccl.read(data)
    row |= {"collective": flows.collective, "ranks": len(flows.gpus), "gpus": runs(flows.gpus)}
    row |= {"switches": list(flows.switches), "epochs": flows.epochs, "flows": len(flows.hops)}
    teccl.check_complete(flows)
    made = teccl.schedule(flows)
    check_cells(made.p, made.k)
    verify(made)
    return row


def _simulate(row: Row, machine: "Machine", nbytes: int) -> Row:
    from collectives.simulator.scaling import Case
    from collectives.simulator.scaling import row as simulated

    where = {"machine": machine.name, "bytes": nbytes}
    if "flows" in row:
        return where | {"not_simulated": "a schedule of TE-CCL has links of its own"}
    try:
        case = Case(row["collective"], row["file"], row["ranks"], nbytes, machine)
        return where | {"simulated_seconds": simulated(case)["seconds"]}
    except ValueError as error:
        return where | {"not_simulated": str(error).partition("\n")[0]}


def _program_line(row: Row) -> str:
    if row["verdict"] != "right":
        return f"{row['verdict']}  {row['file']}: {row['why']}"
    if "flows" in row:
        return f"ok  {row['file']}: {_describe_flows(row)}{_describe_time(row)}"
    report = Report(*(row[name] for name in Report._fields))
    place = " and ".join("in place" if mode else "out of place" for mode in row["in_place"])
    needless = "an unknown number" if report.needless is None else len(report.needless)
    return (
        f"ok  {row['file']}: {row['collective']} on {row['ranks']} GPUs, {place}: {report.instructions} steps, "
        f"{report.messages} messages ({report.depth} in a row), slots needed: {report.slots}, "
        f"{needless} of {report.dependencies} dependencies not needed; "
        f"busiest GPU: {row['busiest_sent']:.3g} n sent, {row['busiest_received']:.3g} n received, at least "
        f"{row['least']:.3g} n; busiest link: {row['busiest_link']:.3g} n{_describe_time(row)}"
    )


def _describe_flows(row: Row) -> str:
    switches = many(len(row["switches"]), "switch")
    numbers = f" ({', '.join(map(str, row['switches']))})" if row["switches"] else ""
    return (
        f"{row['collective']} on {row['ranks']} GPUs ({row['gpus']}) and {switches}{numbers}: "
        f"{row['flows']:,} flows, the last in epoch {row['epochs'] - 1}; every chunk arrives"
    )


def _describe_time(row: Row) -> str:
    if "machine" not in row:
        return ""
    found = row.get("not_simulated") or f"{duration(row['simulated_seconds'])} simulated"
    return f"; {row['machine']}, {format_bytes(row['bytes'])}: {found}"


def _export_arguments(parser: argparse.ArgumentParser) -> None:
    add_schedule(parser, units.MAX_RANKS_SHOWN, nargs="?")
    formats = "MSCCL XML, proved before it is written; GOAL, for LogGOPSim; the file of NCCL's example tuner"
    parser.add_argument("--to", choices=tuple(TAKES), required=True, help=formats)
    parser.add_argument("--dialect", choices=DIALECTS, help="msccl: what reads it (default rccl)")
    parser.add_argument(
        "--protocol", choices=tuple(SLOTS), help="msccl: NCCL's protocol (default Simple)"
    )
    nodes, shown = whole(units.MAX_RANKS), " ".join(map(str, NODES))
    parser.add_argument(
        "--machine", help="goal, nccl-tuner: whose network it is (default textbook)"
    )
    parser.add_argument(
        "--nodes", nargs="+", type=nodes, help=f"nccl-tuner: of the machine (default {shown})"
    )
    parser.add_argument(
        "--bytes", nargs="+", type=size, help="goal: one size; nccl-tuner: default 256 B to 1 GiB"
    )
    parser.add_argument(
        "--rows", metavar="FILE.parquet", help="nccl-tuner: instead of a machine, rows of `bench`"
    )
    parser.add_argument("--output", metavar="FILE", help="left out: standard output")


def _export(arguments: argparse.Namespace) -> None:
    """Write the schedule into a file, or on standard output."""
    _refuse_others(arguments)
    with limit(arguments.timeout or TIMEOUT, "export"):
        text = _tuner(arguments) if arguments.to == "nccl-tuner" else _program_text(arguments)
    if arguments.output is None:
        out(text.rstrip("\n"))
    else:
        write(Path(arguments.output), text)


def _refuse_others(arguments: argparse.Namespace) -> None:
    """Raise ValueError for an option of another format, or of another source of times."""
    is_tuner, taken = arguments.to == "nccl-tuner", TAKES[arguments.to]
    if is_tuner and arguments.algorithm is not None:
        raise ValueError(
            f"--to nccl-tuner takes no algorithm: got {arguments.algorithm}, expected none"
        )
    if is_tuner and arguments.rows is not None:
        taken = ("rows",)
    others = {each for options in TAKES.values() for each in options} - {*taken}
    refuse(arguments, sorted(others) + [*OF_SCHEDULE] * is_tuner, f"--to {arguments.to}")
    if arguments.collective is None or (not is_tuner and arguments.algorithm is None):
        raise ValueError("export: got no algorithm, expected one, such as all_reduce two_tree")


def _program_text(arguments: argparse.Namespace) -> str:
    schedule = _proved(arguments)
    if arguments.to == "goal":
        return _goal(schedule, arguments)
    name = f"{arguments.collective}_{arguments.algorithm}"
    return msccl.text(schedule, name, arguments.dialect or "rccl", arguments.protocol or "Simple")


def _goal(schedule: Schedule, arguments: argparse.Namespace) -> str:
    """Return the program.

    Print LogGOPSim's parameters for the machine's network on standard error.
    """
    from collectives.machine import machine

    if arguments.bytes is None or len(arguments.bytes) != 1:
        raise ValueError(f"--bytes: got {arguments.bytes}, expected one size")
    on = machine(arguments.machine or "textbook")
    options = " ".join(f"-{name} {value}" for name, value in loggp(on.network)._asdict().items())
    text = goal(schedule, arguments.bytes[0])
    print(f"LogGOPSim {options} -S {2**31 - 1}: times in picoseconds on {on.name}", file=sys.stderr)
    return text


def _tuner(arguments: argparse.Namespace) -> str:
    """Return the file for NCCL's example tuner."""
    if arguments.rows is not None:
        path = Path(arguments.rows)
        return tuner(_measured(path, arguments.collective), f"measured: {path.name}")
    return tuner(
        _simulated(arguments), f"simulated by `collectives` on {arguments.machine or 'textbook'}"
    )


def _simulated(arguments: argparse.Namespace) -> list[Time]:
    from collectives.machine import machine
    from collectives.simulator.scaling import regimes

    if arguments.collective != "all_reduce":
        raise ValueError(
            f"--to nccl-tuner: got {arguments.collective}, expected all_reduce, or --rows of another"
        )
    on = machine(arguments.machine or "textbook")
    rows = regimes([on], arguments.nodes or NODES, arguments.bytes or SIZES, TUNED)
    switched = [
        nvls(*_where(row, on), on.inside.rate, on.ports * on.network.rate)
        for row in rows
        if on.inside
    ]
    return [_time(row, on) for row in rows] + switched


def _where(row: dict[str, Any], on: Any) -> tuple[int, int, int]:
    """Return the nodes, ranks and bytes of a row."""
    return row["ranks"] // on.ranks_per_node, row["ranks"], row["bytes"]


def _time(row: dict[str, Any], on: Any) -> Time:
    names = known(row["algorithm"], _protocol(row, on))
    if names is None:
        raise RuntimeError(f"NCCL has no {row['algorithm']}")
    return Time(row["collective"], *names, *_where(row, on), row["seconds"])


def _protocol(row: dict[str, Any], on: Any) -> str:
    """Return the protocol of the machine that the largest message has, which is one chunk for ring and tree."""
    from collectives.simulator.scaling import Case, schedule
    from collectives.simulator.simulation import simulate

    made = schedule(
        Case(row["collective"], row["algorithm"], row["ranks"], row["bytes"], on, row["segments"])
    )
    return simulate(made, on, row["bytes"], row["algorithm"]).protocol


def _measured(path: Path, collective: str) -> list[Time]:
    """Read the times of algorithms that NCCL has, and of its own choice, of one back end: NCCL if it has rows."""
    from collectives.bench.results import table

    if collective not in COLLECTIVES:
        raise ValueError(
            f"--to nccl-tuner: got {collective}, expected one of {', '.join(COLLECTIVES)}"
        )
    try:
        rows = table(path, MEASURED).to_pandas().to_dict("records")
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot read {path}: {' '.join(str(error).split())[:200]}") from None
    found = [
        (
            str(row.get("backend")),
            Time(
                collective,
                *names,
                ANY,
                int(row["ranks"]),
                int(row["bytes"]),
                row["median_us"] / 1e6,
            ),
        )
        for row in rows
        if row.get("collective") == collective and row.get("median_us", 0) > 0
        for names in [known(str(row.get("algorithm")))]
        if names is not None
    ]
    backends = sorted({backend for backend, time in found if time.algorithm})
    if len(backends) > 1 and "nccl" not in backends:
        raise ValueError(
            f"back ends of {path}: got {', '.join(backends)}, expected nccl or one alone"
        )
    return [
        time
        for backend, time in found
        if backend == ("nccl" if "nccl" in backends else backends[0])
    ]


VERIFY = Verb(_verify_arguments, _verify)
EXPORT = Verb(_export_arguments, _export)

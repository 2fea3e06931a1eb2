"""The verb ``verify``: prove one schedule, or all of them, or programs of others."""

import argparse
import time
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from concurrent.futures import as_completed
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collectives import units
from collectives.algorithms import ALGORITHMS, build, variants
from collectives.cli import signals
from collectives.cli.options import TIMEOUT, UsageError, add_json, size, whole, wrong_input
from collectives.cli.schedules import add_schedule, built, limited
from collectives.cli.signals import out_row
from collectives.formats import msccl, teccl
from collectives.formats.order import Order
from collectives.formats.prove import Report, loads, prove
from collectives.processes import workers
from collectives.schedule import ScheduleError
from collectives.units import duration, format_bytes, many, runs
from collectives.verify import COUNTED_RANKS, exact, need_cells, verify

if TYPE_CHECKING:
    from collectives.machine import Machine

Row = dict[str, Any]

SIZE = "1M"

# Without --max-ranks: every contribution is counted for these numbers of ranks, and fingerprints are compared for one
# larger number, which depends on how many chunks p ranks have.
COUNTED_FOR = (*range(1, 65), 96, 100, 127, 128)
LARGE = {"p * p": 256, "p": 1024, "few": 4096}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be typed."""
    add_schedule(parser, units.MOST_RANKS, nargs="?")
    parser.add_argument(
        "files", nargs="*", metavar="FILE", help="instead: programs in MSCCL XML, schedules of TE-CCL in JSON"
    )
    parser.add_argument("--all", action="store_true", help="every algorithm, all its roots, segments and nodes")
    most = f"with --all: 1 to P ranks (default: {COUNTED_RANKS}, and more)"
    parser.add_argument("--max-ranks", type=whole(COUNTED_RANKS), metavar="P", help=most)
    parser.add_argument("--machine", help="with FILE.xml: simulated there too; a preset, or your own NAME.yaml")
    parser.add_argument("--bytes", type=size, help=f"with --machine (default {SIZE})")
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """A row for each proof; a schedule that is wrong raises ScheduleError."""
    words = [word for word in (arguments.collective, arguments.algorithm, *arguments.files) if word is not None]
    if words and all(word.endswith((".xml", ".json")) for word in words) and not arguments.all:
        with signals.limit(arguments.timeout or TIMEOUT, "verify"):
            _verify_programs(words, arguments)
        return
    if arguments.machine or arguments.bytes:
        raise UsageError("--machine and --bytes go with FILE.xml: `simulate` has them for other schedules")
    if arguments.files or (len(words) == 2) == arguments.all:
        got = " ".join([*words, *["--all"] * arguments.all])[:80] or "nothing"
        expected = "a collective and an algorithm, or files that end in .xml or .json, or --all"
        raise UsageError(f"verify: got {got}, expected either {expected}")
    with limited(arguments, [arguments.algorithm]):
        if arguments.all:
            _verify_all(arguments)
        else:
            _verify_one(arguments)


def _verify_programs(files: list[str], arguments: argparse.Namespace) -> None:
    given = [name for name in ("ranks", "root", "segments", "max_ranks") if getattr(arguments, name) is not None]
    if given:
        raise UsageError(f"FILE.xml takes no --{given[0].replace('_', '-')}: the file says it")
    verdicts = []
    for row in programs(files, _machine(arguments), arguments.bytes or size(SIZE)):
        out_row(row, program_line(row), arguments.json)
        verdicts.append(row["verdict"])
    bad = {word: verdicts.count(word) for word in ("wrong", "unreadable") if word in verdicts}
    if bad:
        told = ", ".join(f"{count} of {len(files)} {word}" for word, count in bad.items())
        raise UsageError(told) if "unreadable" in bad else ScheduleError(told)


def _machine(arguments: argparse.Namespace) -> "Machine | None":
    if arguments.machine is None:
        if arguments.bytes:
            raise UsageError("--bytes goes with --machine: got no machine, expected one")
        return None
    from collectives.machine import machine

    with wrong_input():
        return machine(arguments.machine)


def _verify_all(arguments: argparse.Namespace) -> None:
    given = [name for name in ("ranks", "root", "segments") if getattr(arguments, name) is not None]
    if given:
        raise UsageError(f"--all takes no --{given[0]}: got {getattr(arguments, given[0])}, expected none")
    for row in proofs(arguments.max_ranks):
        out_row(row, proof_line(row), arguments.json)


def _verify_one(arguments: argparse.Namespace) -> None:
    if arguments.max_ranks is not None:
        raise UsageError("--max-ranks goes with --all: got a single algorithm, expected -p")
    schedule = built(arguments)
    with wrong_input():
        need_cells(schedule.p, schedule.k)
    verify(schedule)
    how = "every contribution counted" if exact(schedule) else "by fingerprints"
    row = {"collective": arguments.collective, "algorithm": arguments.algorithm, "ranks": schedule.p, "method": how}
    out_row(row, f"ok  {arguments.collective} {arguments.algorithm} on {schedule.p} ranks, {how}", arguments.json)


def proofs(max_ranks: int | None) -> Iterator[Row]:
    """A row for each algorithm as soon as it is proved, on 1 to ``max_ranks`` ranks; ScheduleError for a fault."""
    with workers() as pool:
        # The last algorithms of the table take longest, so they start first and all cores end together.
        jobs = [pool.submit(_proved, *names, max_ranks) for names in reversed(ALGORITHMS)]
        for job in as_completed(jobs):
            yield job.result()


def _proved(collective: str, algorithm: str, max_ranks: int | None) -> Row:
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


def proof_line(row: Row) -> str:
    """A row as the terminal shows it."""
    large = f", fingerprints at {row['fingerprints_at']}" if row["fingerprints_at"] else ""
    return (
        f"ok  {row['collective']:<16}{row['algorithm']:<20}{row['schedules']:>6} schedules on up to "
        f"{row['max_ranks']} ranks counted{large}"
    )


def programs(files: Sequence[str], machine: "Machine | None" = None, nbytes: int = 0) -> Iterator[Row]:
    """A row for each file as soon as it is judged: verdict "right", "wrong", or "unreadable" if it is no program.

    What a file is, its contents say: XML or JSON. With a machine, a program that is right is simulated there. A
    schedule of TE-CCL is not, because it is made for links of its own.
    """
    for file in files:
        begin = time.perf_counter()
        row = {"file": file} | _judged(Path(file))
        if machine and row["verdict"] == "right":
            row |= _simulated(row, machine, nbytes)
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
    """Prove a program; ``row`` learns what it is even if it is wrong."""
    program = msccl.program(data)
    row |= {"collective": program.collective, "ranks": program.p, "in_place": list(program.modes)}
    report = prove(program)
    return row | report._asdict() | loads(program, Order(program))._asdict()


def _flows(data: bytes, row: Row) -> Row:
    """Prove a schedule of TE-CCL; ``row`` learns what it is even if it is wrong."""
    flows = teccl.read(data)
    row |= {"collective": flows.collective, "ranks": len(flows.gpus), "gpus": runs(flows.gpus)}
    row |= {"switches": list(flows.switches), "epochs": flows.epochs, "flows": len(flows.hops)}
    teccl.check_complete(flows)
    made = teccl.schedule(flows)
    need_cells(made.p, made.k)
    verify(made)
    return row


def _simulated(row: Row, machine: "Machine", nbytes: int) -> Row:
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


def program_line(row: Row) -> str:
    """A row as the terminal shows it."""
    if row["verdict"] != "right":
        return f"{row['verdict']}  {row['file']}: {row['why']}"
    if "flows" in row:
        return f"ok  {row['file']}: {_told(row)}{_time(row)}"
    report = Report(*(row[name] for name in Report._fields))
    place = " and ".join("in place" if mode else "out of place" for mode in row["in_place"])
    needless = f"{len(report.needless)} of {report.dependencies} dependencies not needed"
    return (
        f"ok  {row['file']}: {row['collective']} on {row['ranks']} GPUs, {place}: {report.instructions} steps, "
        f"{report.messages} messages ({report.depth} in a row), slots needed: {report.slots}, {needless}; "
        f"busiest GPU: {row['busiest_sent']:.3g} n sent, {row['busiest_received']:.3g} n received, at least "
        f"{row['least']:.3g} n; busiest link: {row['busiest_link']:.3g} n{_time(row)}"
    )


def _told(row: Row) -> str:
    switches = many(len(row["switches"]), "switch")
    numbers = f" ({', '.join(map(str, row['switches']))})" if row["switches"] else ""
    return (
        f"{row['collective']} on {row['ranks']} GPUs ({row['gpus']}) and {switches}{numbers}: "
        f"{row['flows']:,} flows, the last in epoch {row['epochs'] - 1}; every chunk arrives"
    )


def _time(row: Row) -> str:
    if "machine" not in row:
        return ""
    found = row.get("not_simulated") or f"{duration(row['simulated_seconds'])} simulated"
    return f"; {row['machine']}, {format_bytes(row['bytes'])}: {found}"

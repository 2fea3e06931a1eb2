"""``verify FILE.xml``: programs of others, read from MSCCL XML and proved, one row each."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collectives.formats import msccl
from collectives.formats.order import Order
from collectives.formats.prove import Report, loads, prove
from collectives.schedule import ScheduleError
from collectives.units import duration, format_bytes

if TYPE_CHECKING:
    from collectives.machine import Machine

Row = dict[str, Any]


def rows(files: Sequence[str], machine: "Machine | None" = None, nbytes: int = 0) -> Iterator[Row]:
    """A row for each file as soon as it is judged: verdict "right", "wrong", or "unreadable" if it is no program.

    With a machine, a program that is right is simulated there.
    """
    for file in files:
        begin = time.perf_counter()
        row = {"file": file} | _judged(Path(file))
        if machine and row["verdict"] == "right":
            row |= _simulated(row, machine, nbytes)
        yield row | {"seconds": round(time.perf_counter() - begin, 3)}


def _judged(path: Path) -> Row:
    try:
        program = msccl.program(path)
        row = {"collective": program.collective, "ranks": program.p, "in_place": list(program.modes)}
        report = prove(program)
    except ScheduleError as error:
        return row | {"verdict": "wrong", "why": str(error)}
    except ValueError as error:
        return {"verdict": "unreadable", "why": str(error)}
    return row | {"verdict": "right"} | report._asdict() | loads(program, Order(program))._asdict()


def _simulated(row: Row, machine: "Machine", nbytes: int) -> Row:
    from collectives.simulator.scaling import Case
    from collectives.simulator.scaling import row as simulated

    where = {"machine": machine.name, "bytes": nbytes}
    try:
        case = Case(row["collective"], row["file"], row["ranks"], nbytes, machine)
        return where | {"simulated_seconds": simulated(case)["seconds"]}
    except ValueError as error:
        return where | {"not_simulated": str(error).partition("\n")[0]}


def line(row: Row) -> str:
    """A row as the terminal shows it."""
    if row["verdict"] != "right":
        return f"{row['verdict']}  {row['file']}: {row['why']}"
    report = Report(*(row[name] for name in Report._fields))
    place = " and ".join("in place" if mode else "out of place" for mode in row["in_place"])
    needless = f"{len(report.needless)} of {report.dependencies} dependencies not needed"
    return (
        f"ok  {row['file']}: {row['collective']} on {row['ranks']} GPUs, {place}: {report.instructions} steps, "
        f"{report.messages} messages ({report.depth} in a row), slots needed: {report.slots}, {needless}; "
        f"busiest GPU: {row['busiest_sent']:.3g} n sent, {row['busiest_received']:.3g} n received, at least "
        f"{row['least']:.3g} n; busiest link: {row['busiest_link']:.3g} n{_time(row)}"
    )


def _time(row: Row) -> str:
    if "machine" not in row:
        return ""
    found = row.get("not_simulated") or f"{duration(row['simulated_seconds'])} simulated"
    return f"; {row['machine']}, {format_bytes(row['bytes'])}: {found}"

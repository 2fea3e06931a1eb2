"""``verify FILE``: programs of others in MSCCL XML, and schedules of TE-CCL in JSON, read and proved, one row each."""

import time
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collectives.formats import msccl, teccl, teccl_flows
from collectives.formats.order import Order
from collectives.formats.prove import Report, loads, prove
from collectives.schedule import ScheduleError
from collectives.units import duration, format_bytes, many, runs
from collectives.verify import need_cells, verify

if TYPE_CHECKING:
    from collectives.machine import Machine

Row = dict[str, Any]


def rows(files: Sequence[str], machine: "Machine | None" = None, nbytes: int = 0) -> Iterator[Row]:
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
    teccl_flows.need_complete(flows)
    made = teccl_flows.schedule(flows)
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


def line(row: Row) -> str:
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

"""Judge files of others: whether each is a program or a schedule, and whether it is right."""

import time
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collectives.core.schedule import ScheduleError
from collectives.core.verify import check_cells, verify
from collectives.units import runs
from collectives_interop import msccl, teccl
from collectives_interop.prove import prove

if TYPE_CHECKING:
    from collectives.machine import Machine

Row = dict[str, Any]


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
            row |= _simulated(row, machine, nbytes)
        seconds = time.perf_counter() - begin
        yield row | {"seconds": round(seconds, 3)}


def _judged(path: Path) -> Row:
    known: Row = {}  # filled before anything is proved, so that a wrong file has it, too
    try:
        data = msccl.contents(path)
        judge = _judge_flows if _is_json(path, data) else _judge_program
        report = judge(data, known)
    except ScheduleError as error:
        return known | {"verdict": "wrong", "why": str(error)}
    except ValueError as error:
        return {"verdict": "unreadable", "why": str(error)}
    return {"verdict": "right"} | known | report


def _is_json(path: Path, data: bytes) -> bool:
    first = data.removeprefix(BOM_UTF8).lstrip()[:1]
    if path.suffix == ".json":
        return first != b"<"
    return first in (b"{", b"[")


def _judge_program(data: bytes, known: Row) -> Row:
    program = msccl.read(data)
    known["collective"] = program.collective
    known["ranks"] = program.p
    known["in_place"] = list(program.modes)
    return prove(program)._asdict()


def _judge_flows(data: bytes, known: Row) -> Row:
    flows = teccl.read(data)
    known["collective"] = flows.collective
    known["ranks"] = len(flows.gpus)
    known["gpus"] = runs(flows.gpus)
    known["switches"] = list(flows.switches)
    known["epochs"] = flows.epochs
    known["flows"] = len(flows.flows)
    schedule = teccl.schedule(flows)
    check_cells(schedule.p, schedule.k)
    try:
        verify(schedule)
    except ScheduleError as error:
        raise ScheduleError(f"{error}\nranks are the GPUs {known['gpus']}, then switches") from None
    return {}


def _simulated(row: Row, machine: "Machine", nbytes: int) -> Row:
    """Return the columns of a simulation, or why there is none."""
    from collectives.simulator.scaling import Case
    from collectives.simulator.scaling import row as simulated

    place = {"machine": machine.name, "bytes": nbytes}
    if "flows" in row:
        return place | {"not_simulated": "a schedule of TE-CCL has links of its own"}
    try:
        case = Case(row["collective"], row["file"], row["ranks"], nbytes, machine)
        return place | {"simulated_seconds": simulated(case)["seconds"]}
    except ValueError as error:
        first_line = str(error).partition("\n")[0]
        return place | {"not_simulated": first_line}

"""A report of NCCL's RAS as JSON (`ncclras -f json`, NCCL 2.28.7 on): every rank's numbers of launched operations."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from collectives.logs.finding import Place
from collectives.logs.json_stream import Object, array_in, plain
from collectives.logs.ras.report import MOST_BLOCKS, Block, Group, Report, Value
from collectives.units import MOST_RANKS

COMMUNICATORS = re.compile(r'"communicators"\s*:\s*\[')
VERSION = re.compile(r'"nccl_version"\s*:')

# What ncclResult_t has beside success (0) and in progress (7).
ERRORS = {
    1: "Unhandled CUDA error",
    2: "System error",
    3: "Internal error",
    4: "Invalid argument",
    5: "Invalid usage",
    6: "Remote process error",
}


def begins(start: bytes) -> bool:
    """Whether a file that begins so is RAS's JSON."""
    text = plain(start).decode("utf8", "replace")
    return VERSION.search(text) is not None and COMMUNICATORS.search(text) is not None


def read(path: Path) -> Report:
    """The report, as if it were text that names all ranks. Raises OSError."""
    head, communicators = array_in(path, COMMUNICATORS)
    at, hosts, gpus = Place(str(path)), set[str](), set[tuple[str, Any, Any]]()
    report = Report(str(head.get("nccl_version", ""))[:60], at=at)
    for number, of in enumerate(communicators):
        if of is None or number >= MOST_BLOCKS:
            report.warnings.append(("has a communicator that cannot be read", at))
            continue
        members = [*_ranks(of, "ranks"), *_ranks(of, "missing_ranks")]
        hosts |= {str(rank.get("host")) for rank in members}
        gpus |= {(str(rank.get("host")), str(rank.get("pid")), str(rank.get("nvml_dev"))) for rank in members}
        _communicator(report, number, of, at)
    report.nodes, report.gpus = len(hosts), len(gpus)
    return report


def _communicator(report: Report, number: int, of: Object, at: Place) -> None:
    """Its row of the table, and the blocks of what is wrong."""
    name = f"#{number}-0 ({str(of.get('hash'))[:40]})"
    answered, missing = _ranks(of, "ranks"), _ranks(of, "missing_ranks")
    where = {rank["rank"]: _where(rank) for rank in (*answered, *missing)}
    blocks: list[Block] = []
    if missing:
        numbers = [rank["rank"] for rank in missing]
        blocks.append(Block(name, "INCOMPLETE", at, {}, len(missing), [where[each] for each in numbers], numbers))
    status = {rank["rank"]: _object(rank, "status") for rank in answered}
    errors = {rank: _error(of) for rank, of in status.items()}
    if any(errors.values()):
        bad = {rank: f"reported {error}" for rank, error in errors.items() if error}
        blocks.append(Block(name, "ERROR", at, {"ERROR": _values(bad, where, at)}))
    states = {rank: _state(of) for rank, of in status.items()}
    differing = {"status": _values({rank: f"status {state}" for rank, state in states.items()}, where, at)}
    counts = {rank["rank"]: _object(rank, "collective_counts") for rank in answered}
    for what in {name: None for each in counts.values() for name in each}:
        told = {rank: f"launched up to operation {_count(each.get(what))}" for rank, each in counts.items()}
        differing[str(what)[:60]] = _values(told, where, at)
    if several := {what: values for what, values in differing.items() if len(values) > 1}:
        blocks.append(Block(name, "MISMATCH", at, several))
    report.blocks += blocks
    state = Counter(states.values()).most_common(1)[0][0] if states else "NOCOMM"
    size = min(_count(of.get("size")), MOST_RANKS)
    report.groups[number] = Group(number, 1, size, state, ",".join(block.kind for block in blocks) or "OK", at)


def _values(by_rank: Mapping[int, str], where: Mapping[int, str], at: Place) -> list[Value]:
    """Ranks by what they have, the most frequent first."""
    found: dict[str, Value] = {}
    for rank, told in by_rank.items():
        value = found.setdefault(told, Value(told, 0, at))
        value.count += 1
        value.members[rank] = where[rank]
    return sorted(found.values(), key=lambda value: -value.count)


def _state(status: Object) -> str:
    """The status that the text has for a rank."""
    if status.get("abort_flag"):
        return "ABORT"
    if status.get("finalize_called") or status.get("destroy_flag"):
        return "FINALIZE"
    return "RUNNING" if status.get("init_state") == 0 else "INIT"


def _error(status: Object) -> str:
    codes = (_count(status.get(name)) for name in ("init_state", "async_error"))
    return next((ERRORS.get(code, "Unexpected error") for code in codes if code not in (0, 7)), "")


def _where(rank: Object) -> str:
    dead = " considered dead" if _object(rank, "status").get("considered_dead") else ""
    pid, host, gpu = (str(rank.get(name))[:255] for name in ("pid", "host", "cuda_dev"))
    return f"process {pid} on {host} (GPU {gpu}){dead}"


def _ranks(of: Object, name: str) -> list[Object]:
    """The ranks of a list; a second one with the same number is left out."""
    given = of.get(name)
    ranks = [each for each in given if isinstance(each, dict)] if isinstance(given, list) else []
    found = {each["rank"]: each for each in reversed(ranks) if _is_rank(each.get("rank"))}
    return [*reversed(found.values())]


def _is_rank(value: Any) -> bool:
    return isinstance(value, int) and 0 <= value < MOST_RANKS


def _object(of: Object, name: str) -> Object:
    value = of.get(name)
    return value if isinstance(value, dict) else {}


def _count(value: Any) -> int:
    return value if isinstance(value, int) and 0 <= value < 1 << 60 else 0

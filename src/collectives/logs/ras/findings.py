"""What a report of NCCL's RAS says: processes that do not answer, ranks that are behind, and what to try next."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from collectives.logs.finding import MOST_NAMED, Finding, lines_of, named, ranks
from collectives.logs.ras.report import Block, Group, Report, Value, read
from collectives.units import many

# What a status in the table says, if it is not RUNNING.
STATUS = {
    "INIT": (
        "a rank has not finished ncclCommInitRank, and the others wait for it",
        "look at the last lines of each rank",
    ),
    "FINALIZE": ("ranks have begun to give it up", "repeat the query: it is a fault only if it stays so"),
    "ABORT": ("a rank has aborted it", "find the first error in the ranks' logs"),
    "NOCOMM": ("no process that answers is a member of it", "repeat the query: it is a fault only if it stays so"),
    "UNKNOWN": ("no process that answers is a member of it", "repeat the query: it is a fault only if it stays so"),
}


def findings_of(paths: Sequence[Path]) -> Iterator[Finding]:
    """The findings in the last report of each file. Raises OSError."""
    for path in paths:
        yield from findings(read(lines_of([path])))


def findings(reports: Sequence[Report]) -> Iterator[Finding]:
    """The job, its communicators, and what is wrong with each; the report before says what has moved since."""
    of = reports[-1]
    job = f"NCCL {of.version or 'of an unknown version'}: {many(of.nodes, 'node')}, {many(of.gpus, 'GPU')}"
    yield Finding("job", job.replace("0 nodes, 0 GPUs", "no summary of the job"), at=(of.at,) if of.at else ())
    for group in of.groups.values():
        yield from _group(group)
    before = {(b.name, b.kind, what): v for r in reports[:-1] for b in r.blocks for what, v in b.values.items()}
    for block in of.blocks:
        yield from _block(block, of)
        for what, values in block.values.items():
            yield from _values(block, what, values, of, before.get((block.name, block.kind, what)))
    for text, at in of.warnings[:MOST_NAMED]:
        yield Finding("warning", f"RAS {text}", at=(at,))
    if of.groups and not of.blocks and {group.errors for group in of.groups.values()} == {"OK"}:
        yield Finding(
            "agree",
            "all ranks answer, and have launched the same numbers of collectives",
            "",
            "if the job hangs nevertheless, a launched collective does not end: read a flight recorder's dump, and the "
            "network's counters",
        )


def _group(group: Group) -> Iterator[Finding]:
    each = f"{many(group.communicators, 'communicator')} of {many(group.size, 'rank')}"
    follows, advice = STATUS.get(group.status, ("", ""))
    if not group.size:
        follows, advice = "RAS knows none of its ranks, which may be a fault of RAS itself (nccl#1762)", ""
    yield Finding("communicator", f"{each}: {group.status}, {group.errors}", follows, advice, (group.at,))


def _block(block: Block, of: Report) -> Iterator[Finding]:
    """Processes and ranks that do not answer."""
    count, who = block.count or len(block.members), named([each for each in block.members if each])
    processes = f"{count:,} process{'' if count == 1 else 'es'}"
    if block.kind in ("DEAD", "INCOMPLETE") and not block.name:
        state = f"RAS considers {processes} dead" if block.kind == "DEAD" else f"RAS has no answer from {processes}"
        yield Finding(
            block.kind.lower(),
            f"{state}{f': {who}' if who else ''}",
            "a process that has ended or is stopped: collectives with its ranks cannot end",
            "see on its node whether it runs, how its log ends, and dmesg (Xid, out of memory)",
            (block.at,),
        )
    elif block.kind == "INCOMPLETE":
        told = f": {ranks(block.ranks)}" if block.ranks else ""
        yield Finding(
            "incomplete",
            f"{block.name} lacks {many(count or len(block.ranks), 'rank')}{told}{f' ({who})' if who else ''}",
            "the other ranks wait for them in the next collective" if _size(block, of) or not of.groups else "",
            "" if any(not each.name for each in of.blocks) else "repeat the query: it is a fault only if it stays so",
            (block.at,),
        )


def _values(block: Block, what: str, values: list[Value], of: Report, before: list[Value] | None) -> Iterator[Finding]:
    """Ranks whose status, error or number of launched operations is another one than the others'."""
    told = "; ".join(f"{_who(value)} {'reported ' if block.kind == 'ERROR' else ''}{_say(value)}" for value in values)
    if block.kind == "ERROR":
        advice = "find the first NCCL WARN in the logs of these ranks"
        yield Finding("error", f"{block.name}: {told}", "the communicator cannot be used further", advice, (block.at,))
    elif what == "status":
        follows = "ranks are in different phases: some have not begun, or have given up, what others have"
        advice = "repeat the query: it is a fault only if it stays so"
        yield Finding("status differs", f"{block.name}: {told}", follows, advice, (block.at,))
    elif block.kind == "MISMATCH":
        yield from _behind(block, what, values, of, before)


def _behind(block: Block, what: str, values: list[Value], of: Report, before: list[Value] | None) -> Iterator[Finding]:
    """The report names the fewer ranks, even if they are ahead: those behind may be all others."""
    most = max(_operation(value) for value in values)
    late = [value for value in values if _operation(value) < most]
    numbers = _numbers(late, values, _size(block, of))
    places = [where for value in late for where in value.members.values() if where]
    told = "; ".join(f"{_who(value)} up to {_operation(value):,}" for value in sorted(values, key=_operation))
    follows = (
        f"behind: {ranks(numbers)}" if numbers else f"behind: {many(sum(v.count for v in late), 'rank')}, not named"
    )
    follows += f" ({named(places)})" if places else ""
    least = min(map(_operation, values))
    stuck = before is not None and min(map(_operation, before)) == least
    since = (
        "they have launched nothing since the report before: " if stuck else "repeat the query: if they stay there, "
    )
    yield Finding(
        "stuck" if stuck else "behind",
        f"{block.name} launched {what} operations: {told}",
        f"{follows}; the others may wait for them",
        f"{since}see what {places[0] if places else 'such a process'} does (py-spy dump --pid)",
        (block.at, *(value.at for value in late))[:MOST_NAMED],
    )


def _numbers(late: list[Value], values: list[Value], size: int) -> list[int]:
    """The ranks that are behind, as named or as all others; [] if the report does not tell."""
    if all(len(value.members) == value.count for value in late):
        return [rank for value in late for rank in value.members]
    others = {rank for value in values if value not in late for rank in value.members}
    is_told = all(len(value.members) == value.count for value in values if value not in late)
    return [*sorted(set(range(size)) - others)] if is_told and size == sum(value.count for value in values) else []


def _size(block: Block, of: Report) -> int:
    number = int(re.findall(r"\d+", block.name)[0]) if block.name else -1
    return of.groups[number].size if number in of.groups else 0


def _operation(value: Value) -> int:
    found = re.search(r"operation (\d{1,18})", value.told)
    return int(found[1]) if found else 0


def _who(value: Value) -> str:
    return ranks(value.members) if len(value.members) == value.count else many(value.count, "rank")


def _say(value: Value) -> str:
    return value.told.removeprefix("status ").removeprefix("reported ")

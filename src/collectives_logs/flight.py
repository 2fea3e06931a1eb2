"""Findings in the dumps of a job that hangs: the culprits first, what follows, what to try next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from collectives.units import duration, many
from collectives_logs.calls import waiting_findings
from collectives_logs.finding import MAX_NAMED, Finding, finding, named, places, ranks
from collectives_logs.flight_calls import (
    CallNumber,
    Odd,
    ProcessGroup,
    WaitingCall,
    WaitsFor,
    cycles,
    disagreement,
    elements,
    groups_of,
    message_waits,
    pairs,
    waiting_ranks,
    waits_of,
)
from collectives_logs.flight_dump import MAX_ENTRIES, Dump, Entry, PickledParts, read
from collectives_logs.sources import LogError, Place

# Ranks whose entries are read in full; of more, the last ones of each.
FEWEST = 100
# The part of a timeout after which a call is late: clocks of hosts differ, and timers start after
# the call.
ALMOST = 0.95
# A link is slow if its messages take so many times as long as the median of the others, with so
# many on each.
SLOW_LINK, MIN_MESSAGES = 2.0, 3


def findings_of(paths: Sequence[Path]) -> Iterator[Finding]:
    """Yield the findings in these dumps, a file for each rank.

    Raises LogError if none of them can be read.
    """
    dumps: dict[int, Dump] = {}
    broken: list[LogError] = []
    left = PickledParts()
    for path in paths:
        try:
            dump = read(path, max(FEWEST, MAX_ENTRIES // len(paths)), left)
        except LogError as error:
            broken.append(error)
            continue
        if dump.rank in dumps:
            broken.append(
                LogError(
                    f"{path}: got another dump of rank {dump.rank}, beside {dumps[dump.rank].path}"
                )
            )
        dumps.setdefault(dump.rank, dump)
    if broken and not dumps:
        raise broken[0]
    yield from findings([dumps[rank] for rank in sorted(dumps)], broken)


def findings(dumps: Sequence[Dump], broken: Sequence[LogError] = ()) -> Iterator[Finding]:
    """Yield what the dumps are, then the causes of a hang before its effects."""
    groups, by_rank = groups_of(dumps), {dump.rank: dump for dump in dumps}
    yield _job(dumps, groups)
    for error in broken[:MAX_NAMED]:
        yield Finding("unreadable", str(error))
    for dump in [dump for dump in dumps if dump.left_out][:MAX_NAMED]:
        calls = many(dump.left_out, "recorded call")
        yield finding("flight.unreadable", Place(dump.path), calls=calls, rank=dump.rank)
    yield from _versions(dumps)
    odd = [(of, *found) for of in groups if (found := _first_odd(of))]
    for of, key, differs in odd:
        yield _differs(of, key, differs, by_rank)
    waits = [wait for of in groups for wait in (*waits_of(of, set(by_rank)), *message_waits(of))]
    for circle in islice(cycles(waits), MAX_NAMED):
        yield _crossed(circle, by_rank)
    shown = {(id(of), key) for of, key, _ in odd}
    yield from _waits(
        [wait for wait in waits if wait.absent or (id(wait.group), wait.key) not in shown], by_rank
    )
    files = {dump.rank: Place(dump.path) for dump in dumps}
    for of in groups:
        yield from _messages(of, by_rank)
    for of in groups if not waits and not odd else ():
        yield from _slow_links(of, files)
        yield from _stragglers(of, files)


def _job(dumps: Sequence[Dump], groups: Sequence[ProcessGroup]) -> Finding:
    versions = sorted({dump.version or "?" for dump in dumps})
    count = sum(len(dump.entries) for dump in dumps)
    found = f"{many(len(dumps), 'rank')}, {many(len(groups), 'process group')}, {many(count, 'recorded call')}"
    expected = {rank for of in groups for rank in of.ranks}
    lacking = expected - {dump.rank for dump in dumps}
    more = f"; without a dump: {ranks(lacking)}" if lacking else ""
    return Finding("dumps", f"{found}, version {named(versions)}{more}", at=(Place(dumps[0].path),))


def _versions(dumps: Sequence[Dump]) -> Iterator[Finding]:
    """Yield versions of the library that differ: those of few ranks first."""
    by_version: dict[str, list[int]] = {}
    for dump in dumps:
        by_version.setdefault(dump.library or "an unknown version", []).append(dump.rank)
    if len(by_version) > 1:
        few = sorted(by_version.items(), key=lambda item: len(item[1]))
        at = places(dump.path for dump in dumps if dump.rank in few[0][1])
        yield finding(
            "flight.versions",
            *at,
            found=named([f"{ranks(those)}: {version}" for version, those in few]),
        )


def _first_odd(of: ProcessGroup) -> tuple[CallNumber, Odd] | None:
    """Return the first call of a group in which its ranks differ."""
    keys = {key for calls in of.calls.values() for key in calls}
    for key in sorted(keys):
        calls = {rank: made[key] for rank, made in of.calls.items() if key in made}
        lacking = [
            rank
            for rank, (first, last) in of.spans.items()
            if first < key < last and rank not in calls
        ]
        if lacking:
            return key, Odd(
                "operation", tuple(lacking), f"{ranks(lacking)}: no such call; {ranks(calls)}: one"
            )
        if len(calls) > 1 and (odd := disagreement(calls, len(of.ranks))):
            return key, odd
    return None


def _differs(of: ProcessGroup, key: CallNumber, odd: Odd, dumps: Mapping[int, Dump]) -> Finding:
    calls = {rank: made[key] for rank, made in of.calls.items() if key in made}
    others = [rank for rank in calls if rank not in odd.culprits]
    shown = [odd.culprits[0], *others[:1]] if others else [*odd.culprits[:2]]
    return finding(
        f"flight.other {odd.kind}",
        *_places(dumps, shown),
        ranks=ranks(odd.culprits) if others else "all ranks",
        number=_number(key),
        group=of,
        differ=odd.text,
        calls="; ".join(
            f"rank {rank}: {_describe(calls[rank])}" for rank in shown if rank in calls
        ),
        shifted=_shifted(of, key, odd, others),
    )


def _shifted(of: ProcessGroup, key: CallNumber, odd: Odd, others: Sequence[int]) -> str:
    """Return that the culprit is a call ahead or behind, if so: one that it left out, or made twice."""
    if odd.kind != "operation" or not others:
        return ""
    mine, theirs = of.calls[odd.culprits[0]], of.calls[others[0]]
    after = (key[0] + 1, 0)
    if key in mine and after in theirs and _signature(mine[key]) == _signature(theirs[after]):
        return f"; its call {_number(key)} is the others' next one: it left one out"
    if key in theirs and after in mine and _signature(mine[after]) == _signature(theirs[key]):
        return f"; its next call is the others' call {_number(key)}: it made one more"
    return ""


def _signature(entry: Entry) -> tuple[str, int, int]:
    return entry.operation, elements(entry.inputs), elements(entry.outputs)


def _crossed(circle: Sequence[WaitsFor], dumps: Mapping[int, Dump]) -> Finding:
    steps = [
        f"rank {link.rank} waits in {_call(link.wait, link.wait.waiting[link.rank])} for rank {link.other}"
        for link in circle[:MAX_NAMED]
    ]
    members = f"{ranks(link.rank for link in circle)} wait for each other in a circle"
    alone = [link.rank for link in circle if len(link.wait.waiting) == 1]
    if len(alone) == 1 < len(circle) and any(len(link.wait.waiting) > 1 for link in circle):
        members = f"rank {alone[0]} calls in another order than the others, and {members}"
    at = _places(dumps, [link.rank for link in circle])
    return finding("flight.crossed order", *at, found=f"{members}: {'; '.join(steps)}")


def _waits(waits: Sequence[WaitingCall], dumps: Mapping[int, Dump]) -> Iterator[Finding]:
    """Yield those whose culprits do not wait themselves, each culprit once.

    Of the others, how many there are.
    """
    stuck = waiting_ranks(waits)
    shown: list[tuple[int, ...]] = []
    effects = []
    for wait in waits:
        culprits = tuple(rank for rank in wait.absent if rank not in stuck)
        if (wait.absent and not culprits and not wait.is_called) or (
            culprits and culprits in shown
        ):
            effects.append(wait)
        elif len(shown) < MAX_NAMED:
            shown.append(culprits)
            yield _unfinished(wait, dumps) if wait.is_called else _never(wait, culprits, dumps)
    if effects:
        first = effects[0]
        such = f"{_those(first)} in {_call(first)} for {ranks(first.absent)}"
        yield Finding(
            "effects", f"{many(len(effects), 'more call')} in which ranks wait, such as: {such}"
        )


def _never(wait: WaitingCall, culprits: Sequence[int], dumps: Mapping[int, Dump]) -> Finding:
    at = _places(dumps, [*culprits, *wait.waiting])
    gone = [rank for rank in culprits if rank not in dumps]
    here = [rank for rank in culprits if rank in dumps]
    waiting = {"waiting": _those(wait), "call": _call(wait)}
    if not here:
        return finding("flight.no dump", *at, ranks=ranks(gone), rank=gone[0], **waiting)
    entry = next(iter(wait.waiting.values()))
    if entry.ends:
        last = f"rank {here[0]} made no {'receive' if entry.operation == 'send' else 'send'} for it"
    else:
        last = "; ".join(_last(wait.group, rank) for rank in here[:MAX_NAMED])
    more = f"; {ranks(gone)} left no dump" if gone else ""
    calls = dumps[here[0]].entries
    after = f"after {_describe(calls[-1])} in group {calls[-1].group}, " if calls else ""
    return finding(
        "flight.never arrived", *at, last=last, more=more, after=after, rank=here[0], **waiting
    )


def _last(of: ProcessGroup, rank: int) -> str:
    """Return what a rank that is behind called last."""
    key = of.last(rank)
    if rank in of.spans:
        return (
            f"rank {rank} made call {_number(key)} of {of} last ({_describe(of.calls[rank][key])})"
        )
    if rank not in of.knowing:
        return f"rank {rank} does not know {of}: it did not make it, or lazily"
    return f"rank {rank} made no call of {of}" + (
        "" if rank in of.whole else " among its last ones"
    )


def _unfinished(wait: WaitingCall, dumps: Mapping[int, Dump]) -> Finding:
    """Return what a call that all have called waits for."""
    at, call = _places(dumps, [*wait.absent, *wait.waiting]), _call(wait)
    if late := _late(wait):
        at = _places(dumps, [*late, *wait.waiting])
        seconds = max(late.values())
        return finding(
            "flight.late", *at, ranks=ranks(late), rank=next(iter(late)), seconds=seconds, call=call
        )
    if wait.absent:
        absent = {"ranks": ranks(wait.absent), "rank": wait.absent[0]}
        return finding("flight.not started", *at, **absent, call=call, waiting=_those(wait))
    some = {
        "ranks": ranks(wait.waiting),
        "rank": min(wait.waiting),
        "call": call,
        "group": wait.group,
    }
    is_part = len(wait.waiting) < len(wait.group.ranks)
    return finding(
        "flight.not completed by some" if is_part else "flight.not completed", *at, **some
    )


def _late(wait: WaitingCall) -> dict[int, float]:
    """Return seconds after the first for each rank that called when the first one's timeout was over."""
    calls = {rank: made[wait.key] for rank, made in wait.group.calls.items() if wait.key in made}
    if not all(entry.created and entry.timeout for entry in calls.values()):
        return {}
    first = min(entry.created for entry in calls.values())
    over = {rank: (entry.created - first) / 1e9 for rank, entry in calls.items()}
    return {
        rank: seconds
        for rank, seconds in over.items()
        if seconds * 1000 >= ALMOST * calls[rank].timeout
    }


def _messages(of: ProcessGroup, dumps: Mapping[int, Dump]) -> Iterator[Finding]:
    """Yield sends whose receive is for another size or dtype, where one of both is not completed."""
    for (sender, receiver), (sends, receives) in pairs(of).items():
        for i, (send, recv) in enumerate(zip(sends, receives, strict=False)):
            fits = (
                elements(send.inputs) == elements(recv.outputs)
                and send.input_types == recv.output_types
            )
            if not fits and not "completed" == send.state == recv.state:
                calls = f"{_describe(send)}; {_describe(recv)}"
                ends = {"sender": sender, "receiver": receiver, "number": i, "group": of}
                yield finding(
                    "flight.other message", *_places(dumps, [sender, receiver]), **ends, calls=calls
                )
                break


def _stragglers(of: ProcessGroup, places: Mapping[int, Place]) -> Iterator[Finding]:
    """Yield for each kind of collective the rank that begins last: there it takes the least time."""
    made = {rank: calls for rank, calls in of.calls.items() if calls}
    if len(made) < len(of.ranks) or len(made) < 2:
        return
    common = set.intersection(*(set(calls) for calls in made.values()))
    kinds: dict[tuple[str, int], list[list[int]]] = {}
    for key in sorted(common):
        calls = [made[rank][key] for rank in of.ranks]
        if all(call.lasted for call in calls):
            kind = calls[0].operation, elements(calls[0].inputs)
            kinds.setdefault(kind, []).append([call.lasted for call in calls])
    members = [(f"rank {rank}", places[rank]) for rank in of.ranks]
    for (operation, _), lasted in kinds.items():
        yield from waiting_findings(operation, members, np.array(lasted, dtype=float).T / 1e3)


def _slow_links(of: ProcessGroup, places: Mapping[int, Place]) -> Iterator[Finding]:
    """Yield links whose messages took much longer than messages of their size on the median link."""
    sizes: dict[int, dict[tuple[int, int], float]] = {}
    for ends, (_, receives) in pairs(of).items():
        times: dict[int, list[int]] = {}
        for entry in receives:
            if entry.lasted:
                times.setdefault(elements(entry.outputs), []).append(entry.lasted)
        for size, lasted in times.items():
            if len(lasted) >= MIN_MESSAGES:
                sizes.setdefault(size, {})[ends] = float(np.median(lasted)) / 1e9
    for size, took in sizes.items():
        usual = float(np.median([*took.values()]))
        for (sender, receiver), seconds in took.items():
            if len(took) > 2 and seconds > SLOW_LINK * usual:
                found = {
                    "time": duration(seconds),
                    "usual": duration(usual),
                    "size": size,
                    "links": len(took),
                }
                yield finding(
                    "flight.slow link", places[receiver], sender=sender, receiver=receiver, **found
                )


def _those(wait: WaitingCall) -> str:
    return f"{ranks(wait.waiting)} wait{'s' if len(wait.waiting) == 1 else ''}"


def _call(wait: WaitingCall, entry: Entry | None = None) -> str:
    entry = entry or next(iter(wait.waiting.values()))
    if entry.ends:
        sender, receiver = (wait.group.ranks[end] for end in entry.ends)
        return (
            f"the message from rank {sender} to rank {receiver} in {wait.group}, {_describe(entry)}"
        )
    return f"call {_number(wait.key)} of {wait.group}, {_describe(entry)}"


def _number(key: CallNumber) -> str:
    return f"{key[0]}.{key[1]}" if key[1] else str(key[0])


def _describe(entry: Entry) -> str:
    """Return the operation, its tensors and where the program called it."""
    is_in = bool(entry.inputs)
    shapes, types = (
        (entry.inputs, entry.input_types) if is_in else (entry.outputs, entry.output_types)
    )
    sizes = named([f"[{', '.join(map(str, each))}]" for each in shapes])
    kind = named(sorted(set(types)))
    return (
        entry.operation
        + (f" of {kind} {sizes}" if shapes else "")
        + (f" at {entry.frame}" if entry.frame else "")
    )


def _places(dumps: Mapping[int, Dump], of: Sequence[int]) -> tuple[Place, ...]:
    return places(dumps[rank].path for rank in of if rank in dumps)

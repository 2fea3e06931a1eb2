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
    entries_each = max(FEWEST, MAX_ENTRIES // len(paths))
    for path in paths:
        try:
            dump = read(path, entries_each, left)
        except LogError as error:
            broken.append(error)
            continue
        known = dumps.setdefault(dump.rank, dump)
        if known is not dump:
            twice = f"{path}: got another dump of rank {dump.rank}, beside {known.path}"
            broken.append(LogError(twice))
    if broken and not dumps:
        raise broken[0]
    yield from findings([dumps[rank] for rank in sorted(dumps)], broken)


def findings(dumps: Sequence[Dump], broken: Sequence[LogError] = ()) -> Iterator[Finding]:
    """Yield what the dumps are, then the causes of a hang before its effects."""
    groups = groups_of(dumps)
    by_rank = {dump.rank: dump for dump in dumps}
    yield _job(dumps, groups)
    yield from _unreadable(dumps, broken)
    yield from _versions(dumps)
    differing: set[tuple[int, CallNumber]] = set()
    for group in groups:
        first_odd = _first_odd(group)
        if first_odd:
            key, odd = first_odd
            differing.add((id(group), key))
            yield _differs(group, key, odd, by_rank)
    waits: list[WaitingCall] = []
    for group in groups:
        waits.extend(waits_of(group, set(by_rank)))
        waits.extend(message_waits(group))
    for circle in islice(cycles(waits), MAX_NAMED):
        yield _crossed(circle, by_rank)
    # In a call that differs, ranks wait because of the difference, which has been told.
    untold = [wait for wait in waits if wait.absent or (id(wait.group), wait.key) not in differing]
    yield from _waits(untold, by_rank)
    for group in groups:
        yield from _messages(group, by_rank)
    if waits or differing:
        return
    files = {dump.rank: Place(dump.path) for dump in dumps}
    for group in groups:
        yield from _slow_links(group, files)
        yield from _stragglers(group, files)


def _unreadable(dumps: Sequence[Dump], broken: Sequence[LogError]) -> Iterator[Finding]:
    """Yield the files that cannot be read, and the dumps of which calls were left out."""
    for error in broken[:MAX_NAMED]:
        yield Finding("unreadable", str(error))
    in_part = [dump for dump in dumps if dump.left_out]
    for dump in in_part[:MAX_NAMED]:
        calls = many(dump.left_out, "recorded call")
        yield finding("flight.unreadable", Place(dump.path), calls=calls, rank=dump.rank)


def _job(dumps: Sequence[Dump], groups: Sequence[ProcessGroup]) -> Finding:
    versions = sorted({dump.version or "?" for dump in dumps})
    sizes = [
        many(len(dumps), "rank"),
        many(len(groups), "process group"),
        many(sum(len(dump.entries) for dump in dumps), "recorded call"),
        f"version {named(versions)}",
    ]
    lacking: set[int] = set().union(*(group.ranks for group in groups))
    lacking -= {dump.rank for dump in dumps}
    more = f"; without a dump: {ranks(lacking)}" if lacking else ""
    return Finding("dumps", ", ".join(sizes) + more, at=(Place(dumps[0].path),))


def _versions(dumps: Sequence[Dump]) -> Iterator[Finding]:
    """Yield versions of the library that differ: those of few ranks first."""
    by_version: dict[str, list[int]] = {}
    for dump in dumps:
        by_version.setdefault(dump.library or "an unknown version", []).append(dump.rank)
    if len(by_version) < 2:
        return
    fewest_first = sorted(by_version.items(), key=lambda item: len(item[1]))
    texts = [f"{ranks(those)}: {version}" for version, those in fewest_first]
    _, fewest = fewest_first[0]
    at = places(dump.path for dump in dumps if dump.rank in fewest)
    yield finding("flight.versions", *at, found=named(texts))


def _first_odd(group: ProcessGroup) -> tuple[CallNumber, Odd] | None:
    """Return the first call of a group in which its ranks differ."""
    keys: set[CallNumber] = set().union(*group.calls.values())
    for key in sorted(keys):
        calls = _calls_of(group, key)
        lacking = []
        for rank, (first, last) in group.spans.items():
            if first < key < last and rank not in calls:
                lacking.append(rank)
        if lacking:
            text = f"{ranks(lacking)}: no such call; {ranks(calls)}: one"
            return key, Odd("operation", tuple(lacking), text)
        if len(calls) > 1:
            odd = disagreement(calls, len(group.ranks))
            if odd:
                return key, odd
    return None


def _calls_of(group: ProcessGroup, key: CallNumber) -> dict[int, Entry]:
    """Return the call of this number by each rank that has it."""
    return {rank: made[key] for rank, made in group.calls.items() if key in made}


def _differs(group: ProcessGroup, key: CallNumber, odd: Odd, dumps: Mapping[int, Dump]) -> Finding:
    calls = _calls_of(group, key)
    others = [rank for rank in calls if rank not in odd.culprits]
    shown = list(odd.culprits[:2])
    if others:
        shown = [odd.culprits[0], others[0]]
    described = [f"rank {rank}: {_describe(calls[rank])}" for rank in shown if rank in calls]
    return finding(
        f"flight.other {odd.kind}",
        *_places(dumps, shown),
        ranks=ranks(odd.culprits) if others else "all ranks",
        number=_number(key),
        group=group,
        differ=odd.text,
        calls="; ".join(described),
        shifted=_shifted(group, key, odd, others),
    )


def _shifted(group: ProcessGroup, key: CallNumber, odd: Odd, others: Sequence[int]) -> str:
    """Return that the culprit is a call ahead or behind, if so: one that it left out, or made twice."""
    if odd.kind != "operation" or not others:
        return ""
    mine = group.calls[odd.culprits[0]]
    theirs = group.calls[others[0]]
    after = (key[0] + 1, 0)
    if key in mine and after in theirs and _signature(mine[key]) == _signature(theirs[after]):
        return f"; its call {_number(key)} is the others' next one: it left one out"
    if key in theirs and after in mine and _signature(mine[after]) == _signature(theirs[key]):
        return f"; its next call is the others' call {_number(key)}: it made one more"
    return ""


def _signature(entry: Entry) -> tuple[str, int, int]:
    return entry.operation, elements(entry.inputs), elements(entry.outputs)


def _crossed(circle: Sequence[WaitsFor], dumps: Mapping[int, Dump]) -> Finding:
    steps = []
    for link in circle[:MAX_NAMED]:
        call = _call(link.wait, link.wait.waiting[link.rank])
        steps.append(f"rank {link.rank} waits in {call} for rank {link.other}")
    members = f"{ranks(link.rank for link in circle)} wait for each other in a circle"
    alone = [link.rank for link in circle if len(link.wait.waiting) == 1]
    if len(alone) == 1 and len(circle) > 1:
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
        only_stuck = wait.absent and not culprits and not wait.is_called
        if only_stuck or (culprits and culprits in shown):
            effects.append(wait)
        elif len(shown) < MAX_NAMED:
            shown.append(culprits)
            yield _unfinished(wait, dumps) if wait.is_called else _never(wait, culprits, dumps)
    if effects:
        first = effects[0]
        such = f"{_those(first)} in {_call(first)} for {ranks(first.absent)}"
        count = many(len(effects), "more call")
        yield Finding("effects", f"{count} in which ranks wait, such as: {such}")


def _never(wait: WaitingCall, culprits: Sequence[int], dumps: Mapping[int, Dump]) -> Finding:
    at = _places(dumps, [*culprits, *wait.waiting])
    gone = [rank for rank in culprits if rank not in dumps]
    here = [rank for rank in culprits if rank in dumps]
    waiting = {"waiting": _those(wait), "call": _call(wait)}
    if not here:
        return finding("flight.no dump", *at, ranks=ranks(gone), rank=gone[0], **waiting)
    entry = next(iter(wait.waiting.values()))
    if entry.ends:
        lacking = "receive" if entry.operation == "send" else "send"
        last = f"rank {here[0]} made no {lacking} for it"
    else:
        last = "; ".join(_last(wait.group, rank) for rank in here[:MAX_NAMED])
    more = f"; {ranks(gone)} left no dump" if gone else ""
    after = ""
    if dumps[here[0]].entries:
        before = dumps[here[0]].entries[-1]
        after = f"after {_describe(before)} in group {before.group}, "
    values = {"last": last, "more": more, "after": after, "rank": here[0]}
    return finding("flight.never arrived", *at, **values, **waiting)


def _last(group: ProcessGroup, rank: int) -> str:
    """Return what a rank that is behind called last."""
    if rank in group.spans:
        key = group.last(rank)
        call = _describe(group.calls[rank][key])
        return f"rank {rank} made call {_number(key)} of {group} last ({call})"
    if rank not in group.knowing:
        return f"rank {rank} does not know {group}: it did not make it, or lazily"
    as_far = "" if rank in group.whole else " among its last ones"
    return f"rank {rank} made no call of {group}{as_far}"


def _unfinished(wait: WaitingCall, dumps: Mapping[int, Dump]) -> Finding:
    """Return what a call that all have called waits for."""
    call = _call(wait)
    late = _late(wait)
    if late:
        at = _places(dumps, [*late, *wait.waiting])
        values = {"ranks": ranks(late), "rank": next(iter(late))}
        return finding("flight.late", *at, **values, seconds=max(late.values()), call=call)
    at = _places(dumps, [*wait.absent, *wait.waiting])
    if wait.absent:
        absent = {"ranks": ranks(wait.absent), "rank": wait.absent[0]}
        return finding("flight.not started", *at, **absent, call=call, waiting=_those(wait))
    is_part = len(wait.waiting) < len(wait.group.ranks)
    return finding(
        "flight.not completed by some" if is_part else "flight.not completed",
        *at,
        ranks=ranks(wait.waiting),
        rank=min(wait.waiting),
        call=call,
        group=wait.group,
    )


def _late(wait: WaitingCall) -> dict[int, float]:
    """Return seconds after the first for each rank that called when the first one's timeout was over."""
    calls = _calls_of(wait.group, wait.key)
    if not all(entry.created and entry.timeout for entry in calls.values()):
        return {}
    first = min(entry.created for entry in calls.values())
    late = {}
    for rank, entry in calls.items():
        seconds = (entry.created - first) / 1e9
        if seconds * 1000 >= ALMOST * entry.timeout:
            late[rank] = seconds
    return late


def _messages(group: ProcessGroup, dumps: Mapping[int, Dump]) -> Iterator[Finding]:
    """Yield sends whose receive is for another size or dtype, where one of both is not completed."""
    for (sender, receiver), (sends, receives) in pairs(group).items():
        for number, (send, recv) in enumerate(zip(sends, receives, strict=False)):
            is_alike = elements(send.inputs) == elements(recv.outputs)
            fits = is_alike and send.input_types == recv.output_types
            are_done = send.state == "completed" and recv.state == "completed"
            if fits or are_done:
                continue
            yield finding(
                "flight.other message",
                *_places(dumps, [sender, receiver]),
                sender=sender,
                receiver=receiver,
                number=number,
                group=group,
                calls=f"{_describe(send)}; {_describe(recv)}",
            )
            break


def _stragglers(group: ProcessGroup, places: Mapping[int, Place]) -> Iterator[Finding]:
    """Yield for each kind of collective the rank that begins last: there it takes the least time."""
    made = {rank: calls for rank, calls in group.calls.items() if calls}
    if len(made) < len(group.ranks) or len(made) < 2:
        return
    common = set.intersection(*(set(calls) for calls in made.values()))
    kinds: dict[tuple[str, int], list[list[int]]] = {}
    for key in sorted(common):
        calls = [made[rank][key] for rank in group.ranks]
        nanoseconds = [call.lasted for call in calls]
        if all(nanoseconds):
            kind = calls[0].operation, elements(calls[0].inputs)
            kinds.setdefault(kind, []).append(nanoseconds)
    members = [(f"rank {rank}", places[rank]) for rank in group.ranks]
    for (operation, _), by_call in kinds.items():
        microseconds = np.array(by_call, dtype=float).T / 1e3
        yield from waiting_findings(operation, members, microseconds)


def _slow_links(group: ProcessGroup, places: Mapping[int, Place]) -> Iterator[Finding]:
    """Yield links whose messages took much longer than messages of their size on the median link."""
    for size, seconds_of in _seconds_of_links(group).items():
        usual = float(np.median(list(seconds_of.values())))
        for (sender, receiver), seconds in seconds_of.items():
            if len(seconds_of) > 2 and seconds > SLOW_LINK * usual:
                yield finding(
                    "flight.slow link",
                    places[receiver],
                    sender=sender,
                    receiver=receiver,
                    time=duration(seconds),
                    usual=duration(usual),
                    size=size,
                    links=len(seconds_of),
                )


def _seconds_of_links(group: ProcessGroup) -> dict[int, dict[tuple[int, int], float]]:
    """Return by elements of a message the median seconds of each link that has enough of them."""
    by_size: dict[int, dict[tuple[int, int], float]] = {}
    for ends, (_, receives) in pairs(group).items():
        lasted: dict[int, list[int]] = {}
        for entry in receives:
            if entry.lasted:
                lasted.setdefault(elements(entry.outputs), []).append(entry.lasted)
        for size, nanoseconds in lasted.items():
            if len(nanoseconds) >= MIN_MESSAGES:
                by_size.setdefault(size, {})[ends] = float(np.median(nanoseconds)) / 1e9
    return by_size


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
    shapes, types = entry.outputs, entry.output_types
    if entry.inputs:
        shapes, types = entry.inputs, entry.input_types
    text = entry.operation
    if shapes:
        sizes = named([f"[{', '.join(map(str, sizes))}]" for sizes in shapes])
        text += f" of {named(sorted(set(types)))} {sizes}"
    if entry.frame:
        text += f" at {entry.frame}"
    return text


def _places(dumps: Mapping[int, Dump], members: Sequence[int]) -> tuple[Place, ...]:
    return places(dumps[rank].path for rank in members if rank in dumps)

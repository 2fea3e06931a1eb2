"""The calls in the dumps of all ranks: in which call a rank waits, for whom, and whether the ranks call alike."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from collectives_logs.finding import MAX_NAMED, ranks
from collectives_logs.flight_dump import Dump, DumpedGroup, Entry, Shapes

# The number of a collective in its group, and of a call within it: several tensors may be coalesced
# under one number.
CallNumber = tuple[int, int]

MESSAGES = ("send", "recv")
# What closes a batch of calls, and neither sends nor receives.
CLOSES = "coalesced"
# The name that torch gives its default group.
DEFAULT = "0"


@dataclass
class ProcessGroup:
    """A process group: a name and ranks, because torch may give one name to groups of different ranks."""

    name: str
    description: str
    ranks: tuple[int, ...]
    calls: dict[int, dict[CallNumber, Entry]] = field(default_factory=dict)  # by rank with a dump
    # Of ranks with calls: the first and last one.
    spans: dict[int, tuple[CallNumber, CallNumber]] = field(default_factory=dict)
    messages: dict[int, list[Entry]] = field(default_factory=dict)  # sends and receives, in order
    whole: set[int] = field(default_factory=set)  # ranks whose recorder has overwritten nothing
    knowing: set[int] = field(default_factory=set)  # ranks whose dump names the group

    def __str__(self) -> str:
        if self.description in ("", "undefined", self.name):
            return f"group {self.name or '(no name)'}"
        return f"group {self.name} ({self.description})"

    def last(self, rank: int) -> CallNumber:
        """Return the last call of a rank, below all others if it made none."""
        return self.spans[rank][1] if rank in self.spans else (-1, 0)


class WaitingCall(NamedTuple):
    """Ranks that wait in a call, and those for which they wait: ranks that have not called it, or not started it."""

    group: ProcessGroup
    key: CallNumber  # for a message, the number of the message between its ends
    waiting: dict[int, Entry]
    absent: tuple[int, ...]
    is_called: bool = False  # the absent have called it, and not started


def groups_of(dumps: Sequence[Dump]) -> list[ProcessGroup]:
    """Return the groups of these dumps.

    Where no dump names a group's ranks, they are those that used it.

    >>> entry = Entry("0", 1, "all_reduce", None, ((4,),), ((4,),), ("Float",), ("Float",), "started", "")
    >>> (of,) = groups_of([Dump(f"d{rank}", rank, "2.10", "", {}, [entry], 0, True) for rank in (0, 1)])
    >>> of.ranks, of.last(1)
    ((0, 1), (1, 0))
    """
    known, users = _known(dumps), _users(dumps)
    groups: dict[tuple[str, tuple[int, ...]], ProcessGroup] = {}
    for dump in dumps:
        entries: dict[str, list[Entry]] = {name: [] for name in dump.groups}
        for entry in dump.entries:
            entries.setdefault(entry.group, []).append(entry)
        for name, mine in entries.items():
            dumped = dump.groups.get(name, DumpedGroup("", ()))
            members = dumped.ranks
            if not members:
                others = [ranks for ranks in known.get(name, ()) if dump.rank in ranks]
                members = others[0] if others else tuple(sorted(users.get(name, ())))
            if not members:
                continue
            group = ProcessGroup(name, dumped.description, members)
            group = groups.setdefault((name, members), group)
            group.knowing.add(dump.rank)
            _add(group, dump, mine)
    return list(groups.values())


def _known(dumps: Sequence[Dump]) -> dict[str, list[tuple[int, ...]]]:
    """Return the ranks that dumps name for a group."""
    known: dict[str, list[tuple[int, ...]]] = {}
    for dump in dumps:
        for name, members in dump.groups.items():
            if members.ranks and members.ranks not in known.setdefault(name, []):
                known[name].append(members.ranks)
    return known


def _users(dumps: Sequence[Dump]) -> dict[str, set[int]]:
    """Return the ranks that called something in a group; the default group has all."""
    users: dict[str, set[int]] = {DEFAULT: {dump.rank for dump in dumps}}
    for dump in dumps:
        for entry in dump.entries:
            users.setdefault(entry.group, set()).add(dump.rank)
    return users


def _add(group: ProcessGroup, dump: Dump, entries: Sequence[Entry]) -> None:
    """Give the group what this rank did there: its entries."""
    calls: dict[CallNumber, Entry] = {}
    messages = group.messages.setdefault(dump.rank, [])
    number, index = -1, 0
    for entry in entries:
        if entry.operation == CLOSES:
            continue
        if entry.operation in MESSAGES:
            messages.append(entry)
            continue
        index = index + 1 if entry.number == number else 0
        number = entry.number
        calls[number, index] = entry
    if dump.is_whole:
        group.whole.add(dump.rank)
    elif calls:
        first, last = min(calls)[0], max(calls)[0]
        if first < last:  # of the first number, some calls may be overwritten
            calls = {key: entry for key, entry in calls.items() if key[0] > first}
    group.calls[dump.rank] = calls
    if calls:
        group.spans[dump.rank] = min(calls), max(calls)


def with_dumps(of: ProcessGroup, dumped: set[int]) -> list[int]:
    """Return the group's ranks that have a dump."""
    return [rank for rank in of.ranks if rank in dumped]


def reaches(of: ProcessGroup, rank: int, key: CallNumber) -> bool:
    """Return True if a rank has made this call, as far as its dump can tell: one that it has overwritten, it has."""
    return of.last(rank) >= key


def waits_of(group: ProcessGroup, dumped: set[int]) -> Iterator[WaitingCall]:
    """Yield the calls in which ranks of a group wait, the earliest first, with those for which they wait."""
    members = with_dumps(group, dumped)
    missing = [rank for rank in group.ranks if rank not in dumped]
    first: dict[CallNumber, dict[int, Entry]] = {}
    for rank in members:
        for key, entry in sorted(group.calls.get(rank, {}).items()):
            if not is_done(group, key, entry, members):
                first.setdefault(key, {})[rank] = entry
                break
    for key, waiting in sorted(first.items()):
        behind = [rank for rank in members if not reaches(group, rank, key)]
        if behind or missing:
            yield WaitingCall(group, key, waiting, (*behind, *missing))
            continue
        started = {rank: entry for rank, entry in waiting.items() if entry.state == "started"}
        late = tuple(rank for rank, entry in waiting.items() if entry.state == "scheduled")
        if not (started and late):
            started, late = waiting, ()
        yield WaitingCall(group, key, started, late, is_called=True)


def is_done(group: ProcessGroup, key: CallNumber, entry: Entry, members: Sequence[int]) -> bool:
    """Return True if a call is completed.

    The state "ended" says that a call is over, well or not. It cannot have been completed unless
    all ranks made it, and if they did, it counts as completed.
    """
    if entry.state == "ended":
        return all(reaches(group, rank, key) for rank in members)
    return entry.state == "completed"


def message_waits(group: ProcessGroup) -> Iterator[WaitingCall]:
    """Yield messages without their other end, while the rank of this end waits."""
    for (sender, receiver), (sends, receives) in pairs(group).items():
        if sender == receiver:
            continue
        yield from _without_end(group, sender, receiver, sends, len(receives))
        yield from _without_end(group, receiver, sender, receives, len(sends))


def _without_end(
    group: ProcessGroup, rank: int, other: int, messages: Sequence[Entry], matched: int
) -> Iterator[WaitingCall]:
    """Yield the first message of a rank beyond those that the other rank has, if it waits."""
    for entry in messages[matched:]:
        if entry.state in ("scheduled", "started"):
            yield WaitingCall(group, (matched, 0), {rank: entry}, (other,))
            return


def pairs(group: ProcessGroup) -> dict[tuple[int, int], tuple[list[Entry], list[Entry]]]:
    """Return the sends and the receives of each sender and receiver, as ranks of the job, from where they match.

    Where a recorder has overwritten the first ones, those count that are not completed.
    """
    by_ends: dict[tuple[int, int], tuple[list[Entry], list[Entry]]] = {}
    for rank, messages in group.messages.items():
        for entry in messages:
            if not entry.ends or max(entry.ends) >= len(group.ranks):
                continue
            sender, receiver = (group.ranks[end] for end in entry.ends)
            is_send = entry.operation == "send"
            if rank == (sender if is_send else receiver):
                sends, receives = by_ends.setdefault((sender, receiver), ([], []))
                (sends if is_send else receives).append(entry)
    for ends, (sends, receives) in by_ends.items():
        with_messages = {end for end in ends if end in group.messages}
        if not with_messages <= group.whole:
            by_ends[ends] = _not_completed(sends), _not_completed(receives)
    return by_ends


def _not_completed(messages: Sequence[Entry]) -> list[Entry]:
    return [entry for entry in messages if entry.state != "completed"]


# Collectives whose inputs have one size on all ranks, beside those below.
ALIKE = frozenset(
    (
        "all_reduce",
        "allreduce_coalesced",
        "reduce",
        "_reduce_oop",
        "broadcast",
        "_broadcast_oop",
        "sparse_all_reduce",
    )
)
GATHERS = frozenset(
    [
        "all_gather",
        "all_gather_single",
        "_all_gather_base",
        "all_gather_into_tensor_coalesced",
        "all_gather_v",
    ]
)
SCATTERS = frozenset(
    [
        "reduce_scatter",
        "reduce_scatter_single",
        "_reduce_scatter_base",
        "reduce_scatter_tensor_coalesced",
        "reduce_scatter_v",
    ]
)
EXCHANGES = frozenset(("all_to_all", "all_to_all_single", "all_to_all_v_single", "all_to_allv"))


class Odd(NamedTuple):
    """A difference, its kind, and the ranks that differ from most.

    All ranks where no side has more.
    """

    kind: str
    culprits: tuple[int, ...]
    text: str


def disagreement(calls: Mapping[int, Entry], p: int) -> Odd | None:
    """Return what differs between the calls of ranks in a group of p.

    None if they fit, or too few are there.

    >>> entry = Entry("0", 1, "all_reduce", None, ((4,),), ((4,),), ("Float",), ("Float",), "started", "")
    >>> calls = {rank: entry for rank in range(3)} | {3: entry._replace(inputs=((5,),), outputs=((5,),))}
    >>> disagreement(calls, 4)
    Odd(kind='sizes', culprits=(3,), text='rank 3: 5 elements; ranks 0–2: 4')
    """
    operations = {rank: entry.operation for rank, entry in calls.items()}
    if len(set(operations.values())) > 1:
        return _odd("operation", operations)
    # On other ranks than the root a gather has no outputs, and a scatter no inputs.
    input_types = {rank: _types(entry.input_types) for rank, entry in calls.items()}
    output_types = {rank: _types(entry.output_types) for rank, entry in calls.items()}
    algorithms = {rank: entry.algorithm for rank, entry in calls.items()}
    for kind, values in (
        ("dtypes", input_types),
        ("dtypes", output_types),
        ("algorithm", algorithms),
    ):
        given = {rank: value for rank, value in values.items() if value}
        if len(set(given.values())) > 1:
            return _odd(kind, given)
    return _other_sizes(calls, p, next(iter(operations.values()), ""))


def _types(types: Sequence[str]) -> str:
    return ", ".join(sorted(set(types)))


def _other_sizes(calls: Mapping[int, Entry], p: int, operation: str) -> Odd | None:
    """Return where the sizes of tensors do not fit each other in calls of one operation."""
    if operation in ALIKE or operation == "gather":
        return _alike({rank: entry.inputs for rank, entry in calls.items()})
    if operation == "scatter":
        return _alike({rank: entry.outputs for rank, entry in calls.items()})
    totals = {}
    for rank, entry in calls.items():
        totals[rank] = elements(entry.inputs), elements(entry.outputs)
    if operation in GATHERS:
        return _gather(totals, p)
    if operation in SCATTERS:
        swapped = {rank: (received, sent) for rank, (sent, received) in totals.items()}
        return _gather(swapped, p, "output", "input")
    if operation in EXCHANGES:
        return _exchange(calls, totals, p, operation)
    return None


def elements(shapes: Shapes) -> int:
    """Return the elements of all tensors together."""
    return sum(math.prod(sizes) for sizes in shapes)


def _alike(shapes: Mapping[int, Shapes]) -> Odd | None:
    counts = {}
    for rank, tensors in shapes.items():
        counts[rank] = tuple(math.prod(sizes) for sizes in tensors)
    if len(set(counts.values())) < 2:
        return None
    texts = {rank: _counted(elements_each) for rank, elements_each in counts.items()}
    return _odd("sizes", texts, " elements")


def _counted(counts: tuple[int, ...]) -> str:
    """Return the elements of each tensor as text; of many, their number and sum."""
    if len(counts) > MAX_NAMED:
        return f"{sum(counts)} in {len(counts)} tensors"
    return " + ".join(map(str, counts)) or "0"


def _gather(
    totals: Mapping[int, tuple[int, int]], p: int, part: str = "input", whole: str = "output"
) -> Odd | None:
    """Compare parts that make up a whole: (part, whole) of each rank, in elements."""
    fitting = [size for size in totals.values() if size[1] == p * size[0]]
    if len(fitting) == len(totals) and len(set(fitting)) < 2:
        return None
    parts = [size[0] for size in totals.values()]
    wholes = {size[1] for size in totals.values()}
    is_uneven = len(set(parts)) > 1
    if len(parts) == p:
        is_uneven = sum(parts) == max(wholes)
    if len(wholes) == 1 and is_uneven:
        return None  # parts of different sizes make up the whole, as far as one can tell
    texts = {}
    for rank, (of_part, of_whole) in totals.items():
        texts[rank] = f"{part} {of_part}, {whole} {of_whole}"
    odd = _odd("sizes", texts, " elements")
    right = _most_common(fitting)
    if right is None:
        return odd._replace(text=f"{odd.text}; expected {whole} = {p} × {part}")
    culprits = sorted(rank for rank, size in totals.items() if size != right)
    return odd._replace(culprits=tuple(culprits))


def _most_common(sizes: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
    """Return the size that most have, None if two have as many."""
    counts = Counter(sizes).most_common(2)
    if not counts or (len(counts) == 2 and counts[0][1] == counts[1][1]):
        return None
    return counts[0][0]


def _exchange(
    calls: Mapping[int, Entry], totals: Mapping[int, tuple[int, int]], p: int, operation: str
) -> Odd | None:
    """Compare what the ranks send and receive together.

    Each pair, where there is a tensor for each peer.
    """
    have_tensor_each = all(
        len(entry.inputs) == p and len(entry.outputs) == p for entry in calls.values()
    )
    if len(calls) == p and p > 1 and have_tensor_each:
        return _pairs(calls)
    texts = {}
    for rank, (sent, received) in totals.items():
        texts[rank] = f"{sent} in, {received} out"
    odd = _odd("sizes", texts, " elements")
    all_sent = sum(sent for sent, _ in totals.values())
    all_received = sum(received for _, received in totals.values())
    if len(calls) == p and all_sent != all_received:
        return odd
    # Where each rank sends as much as it receives, split sizes may fit or not be there; if it
    # hangs, they are not.
    is_over = all(entry.state in ("completed", "ended") for entry in calls.values())
    is_even = all(sent == received and sent % p == 0 for sent, received in totals.values())
    is_known = operation == "all_to_all_v_single"
    if is_even and not is_over and not is_known and len(set(totals.values())) > 1:
        return odd
    return None


def _pairs(calls: Mapping[int, Entry]) -> Odd | None:
    """Compare the tensors for each peer: one must be as large as the other rank expects it."""
    order = sorted(calls)
    wrong = []
    for i, sender in enumerate(order):
        for j, receiver in enumerate(order):
            sent = math.prod(calls[sender].inputs[j])
            expected = math.prod(calls[receiver].outputs[i])
            if sent != expected:
                wrong.append((sender, receiver, sent, expected))
    if not wrong:
        return None
    counts: Counter[int] = Counter()
    for sender, receiver, _, _ in wrong:
        counts.update({sender, receiver})
    most = max(counts.values())
    culprits = tuple(sorted(rank for rank, count in counts.items() if count == most))
    shown = [pair for pair in wrong if culprits[0] in pair[:2]]
    sender, receiver, sent, expected = shown[0]
    text = f"rank {sender} sends {sent} elements to rank {receiver}, which expects {expected}"
    more = f"; {len(wrong)} pairs differ" if len(wrong) > 1 else ""
    return Odd("sizes", culprits, text + more)


def _odd(kind: str, values: Mapping[int, Hashable], unit: str = "") -> Odd:
    """Return the sides, the fewest ranks first, and the ranks that differ from most."""
    sides: dict[Hashable, list[int]] = {}
    for rank, value in sorted(values.items()):
        sides.setdefault(value, []).append(rank)
    fewest_first = sorted(sides.items(), key=lambda side: len(side[1]))
    most = max(len(members) for members in sides.values())
    largest = [members for members in sides.values() if len(members) == most]
    texts, minority = [], []
    for value, members in fewest_first:
        texts.append(f"{ranks(members)}: {value}")
        if len(members) < most:
            minority.extend(members)
    texts[0] += unit
    if len(largest) > 1 or not minority:
        minority = list(values)
    more = f"; {len(texts) - MAX_NAMED} more" if len(texts) > MAX_NAMED else ""
    return Odd(kind, tuple(sorted(minority)), "; ".join(texts[:MAX_NAMED]) + more)


class WaitsFor(NamedTuple):
    """A rank that waits in a call for another rank."""

    rank: int
    wait: WaitingCall
    other: int


def waiting_ranks(waits: Sequence[WaitingCall]) -> set[int]:
    """Return all ranks that wait in some call."""
    return {rank for wait in waits for rank in wait.waiting}


def cycles(waits: Sequence[WaitingCall]) -> Iterator[list[WaitsFor]]:
    """Yield circles of ranks, each of which waits for the next; no rank is in two of them.

    Ranks that wait for nobody are taken away, then those that waited for them alone, and so on;
    whatever is left leads into a cycle.
    """
    waits_by_rank: dict[int, list[WaitingCall]] = {}
    for wait in waits:
        for rank in wait.waiting:
            waits_by_rank.setdefault(rank, []).append(wait)
    left = _left(waits, waits_by_rank)
    seen: set[int] = set()
    for start in sorted(left):
        path: dict[int, WaitsFor] = {}
        rank = start
        while rank not in seen:
            seen.add(rank)
            path[rank] = _first_link(rank, waits_by_rank[rank], left)
            rank = path[rank].other
        if rank in path:
            begin = list(path).index(rank)
            yield list(path.values())[begin:]


def _first_link(rank: int, waits: Sequence[WaitingCall], left: set[int]) -> WaitsFor:
    """Return for which of these ranks another one waits, which waits for at least one."""
    for wait in waits:
        for other in wait.absent:
            if other in left and other != rank:
                return WaitsFor(rank, wait, other)
    raise AssertionError(f"rank {rank} waits for no rank of {sorted(left)}")


def _left(waits: Sequence[WaitingCall], waits_by_rank: dict[int, list[WaitingCall]]) -> set[int]:
    """Return the ranks that wait for one of these ranks."""
    # By rank: the waits that it keeps others in, as places in `waits`.
    wanted: dict[int, list[int]] = {}
    for place, wait in enumerate(waits):
        for rank in wait.absent:
            wanted.setdefault(rank, []).append(place)
    # For each wait, how many of those that it waits for wait themselves.
    open_waits = [sum(rank in waits_by_rank for rank in wait.absent) for wait in waits]
    # For each rank, how many of its waits have such.
    ways = dict.fromkeys(waits_by_rank, 0)
    for place, wait in enumerate(waits):
        if open_waits[place]:
            for rank in wait.waiting:
                ways[rank] += 1
    done = [rank for rank, count in ways.items() if count == 0]
    left = set(waits_by_rank) - set(done)
    while done:
        for place in wanted.get(done.pop(), ()):
            open_waits[place] -= 1
            if open_waits[place]:
                continue
            for rank in waits[place].waiting:
                ways[rank] -= 1
                if ways[rank] == 0:
                    left.discard(rank)
                    done.append(rank)
    return left

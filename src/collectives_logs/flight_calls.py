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
        known = self.description not in ("", "undefined", self.name)
        return (
            f"group {self.name} ({self.description})"
            if known
            else f"group {self.name or '(no name)'}"
        )

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
            members = dump.groups.get(name, DumpedGroup("", ()))
            ranks = members.ranks or next(
                (each for each in known.get(name, ()) if dump.rank in each), ()
            )
            ranks = ranks or tuple(sorted(users.get(name, ())))
            if ranks:
                of = groups.setdefault(
                    (name, ranks), ProcessGroup(name, members.description, ranks)
                )
                of.knowing.add(dump.rank)
                _add(of, dump, mine)
    return [*groups.values()]


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


def _add(of: ProcessGroup, dump: Dump, entries: Sequence[Entry]) -> None:
    """Give the group what this rank did there: its entries."""
    calls: dict[CallNumber, Entry] = {}
    messages = of.messages.setdefault(dump.rank, [])
    number, index = -1, 0
    for entry in entries:
        if entry.operation == CLOSES:
            continue
        if entry.operation in MESSAGES:
            messages.append(entry)
        else:
            number, index = entry.number, index + 1 if entry.number == number else 0
            calls[number, index] = entry
    if dump.is_whole:
        of.whole.add(dump.rank)
    elif calls and min(calls)[0] < max(calls)[0]:
        first = min(calls)[0]  # some of its calls may be overwritten
        calls = {key: entry for key, entry in calls.items() if key[0] > first}
    of.calls[dump.rank] = calls
    if calls:
        of.spans[dump.rank] = min(calls), max(calls)


def with_dumps(of: ProcessGroup, dumped: set[int]) -> list[int]:
    """Return the group's ranks that have a dump."""
    return [rank for rank in of.ranks if rank in dumped]


def reaches(of: ProcessGroup, rank: int, key: CallNumber) -> bool:
    """Return True if a rank has made this call, as far as its dump can tell: one that it has overwritten, it has."""
    return of.last(rank) >= key


def waits_of(of: ProcessGroup, dumped: set[int]) -> Iterator[WaitingCall]:
    """Yield the calls in which ranks of a group wait, the earliest first, with those for which they wait."""
    members = with_dumps(of, dumped)
    missing = [rank for rank in of.ranks if rank not in dumped]
    first: dict[CallNumber, dict[int, Entry]] = {}
    for rank in members:
        for key, entry in sorted(of.calls.get(rank, {}).items()):
            if not is_done(of, key, entry, members):
                first.setdefault(key, {})[rank] = entry
                break
    for key, waiting in sorted(first.items()):
        behind = [rank for rank in members if not reaches(of, rank, key)]
        if behind or missing:
            yield WaitingCall(of, key, waiting, (*behind, *missing))
        else:
            started = {rank: entry for rank, entry in waiting.items() if entry.state == "started"}
            late = [rank for rank, entry in waiting.items() if entry.state == "scheduled"]
            yield (
                WaitingCall(of, key, started, tuple(late), True)
                if started and late
                else WaitingCall(of, key, waiting, (), True)
            )


def is_done(of: ProcessGroup, key: CallNumber, entry: Entry, members: Sequence[int]) -> bool:
    """Return True if a call is completed.

    One that is over, well or not, was so if all ranks made it.
    """
    return entry.state == "completed" or (
        entry.state == "ended" and all(reaches(of, rank, key) for rank in members)
    )


def message_waits(of: ProcessGroup) -> Iterator[WaitingCall]:
    """Yield messages without their other end, while the rank of this end waits."""
    for (sender, receiver), (sends, receives) in pairs(of).items():
        for here, there, mine, others in (
            (sender, receiver, sends, receives),
            (receiver, sender, receives, sends),
        ):
            after = [
                entry for entry in mine[len(others) :] if entry.state in ("scheduled", "started")
            ]
            if after and here != there:
                yield WaitingCall(of, (len(others), 0), {here: after[0]}, (there,))


def pairs(of: ProcessGroup) -> dict[tuple[int, int], tuple[list[Entry], list[Entry]]]:
    """Return the sends and the receives of each sender and receiver, as ranks of the job, from where they match.

    Where a recorder has overwritten the first ones, those count that are not completed.
    """
    found: dict[tuple[int, int], tuple[list[Entry], list[Entry]]] = {}
    for rank, messages in of.messages.items():
        for entry in messages:
            if entry.ends and max(entry.ends) < len(of.ranks):
                sender, receiver = (of.ranks[end] for end in entry.ends)
                if rank == (sender if entry.operation == "send" else receiver):
                    found.setdefault((sender, receiver), ([], []))[
                        entry.operation == "recv"
                    ].append(entry)
    for ends, both in found.items():
        if not of.whole.issuperset(end for end in ends if end in of.messages):
            a, b = ([entry for entry in each if entry.state != "completed"] for each in both)
            found[ends] = a, b
    return found


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
    (operation,) = set(operations.values()) or {""}
    # On other ranks than the root a gather has no outputs, and a scatter no inputs.
    for types in (
        {r: e.input_types for r, e in calls.items()},
        {r: e.output_types for r, e in calls.items()},
    ):
        given = {rank: ", ".join(sorted(set(each))) for rank, each in types.items() if each}
        if len(set(given.values())) > 1:
            return _odd("dtypes", given)
    algorithms = {rank: entry.algorithm for rank, entry in calls.items() if entry.algorithm}
    if len(set(algorithms.values())) > 1:
        return _odd("algorithm", algorithms)
    if operation in ALIKE:
        return _alike({rank: entry.inputs for rank, entry in calls.items()})
    totals = {
        rank: (elements(entry.inputs), elements(entry.outputs)) for rank, entry in calls.items()
    }
    if operation in GATHERS:
        return _gather(totals, p)
    if operation in SCATTERS:
        return _gather(
            {rank: (there, here) for rank, (here, there) in totals.items()}, p, "output", "input"
        )
    if operation in EXCHANGES:
        return _exchange(calls, totals, p, operation)
    if operation == "gather":
        return _alike({rank: entry.inputs for rank, entry in calls.items()})
    if operation == "scatter":
        return _alike({rank: entry.outputs for rank, entry in calls.items()})
    return None


def elements(shapes: Shapes) -> int:
    """Return the elements of all tensors together."""
    return sum(math.prod(sizes) for sizes in shapes)


def _alike(shapes: Mapping[int, Shapes]) -> Odd | None:
    counts = {rank: tuple(math.prod(sizes) for sizes in each) for rank, each in shapes.items()}
    if len(set(counts.values())) < 2:
        return None
    return _odd("sizes", {rank: _counted(each) for rank, each in counts.items()}, " elements")


def _counted(counts: tuple[int, ...]) -> str:
    """Return the elements of each tensor as text; of many, their number and sum."""
    if len(counts) > MAX_NAMED:
        return f"{sum(counts)} in {len(counts)} tensors"
    return " + ".join(map(str, counts)) or "0"


def _gather(
    totals: Mapping[int, tuple[int, int]], p: int, part: str = "input", whole: str = "output"
) -> Odd | None:
    """Compare parts that make up a whole: (part, whole) of each rank, in elements."""
    if all(there == p * here for here, there in totals.values()) and len(set(totals.values())) < 2:
        return None
    parts = [here for here, _ in totals.values()]
    wholes = {there for _, there in totals.values()}
    is_uneven = sum(parts) == max(wholes) if len(parts) == p else len(set(parts)) > 1
    if len(wholes) == 1 and is_uneven:
        return None  # parts of different sizes make up the whole, as far as one can tell
    fit = Counter(each for each in totals.values() if each[1] == p * each[0]).most_common(2)
    sums = {rank: f"{part} {here}, {whole} {there}" for rank, (here, there) in totals.items()}
    odd = _odd("sizes", sums, " elements")
    if fit and (len(fit) == 1 or fit[0][1] > fit[1][1]):
        right = fit[0][0]
        return odd._replace(
            culprits=tuple(sorted(rank for rank, each in totals.items() if each != right))
        )
    return odd._replace(text=f"{odd.text}; expected {whole} = {p} × {part}")


def _exchange(
    calls: Mapping[int, Entry], totals: Mapping[int, tuple[int, int]], p: int, operation: str
) -> Odd | None:
    """Compare what the ranks send and receive together.

    Each pair, where there is a tensor for each peer.
    """
    if (
        len(calls) == p
        and p > 1
        and all(len(e.inputs) == len(e.outputs) == p for e in calls.values())
    ):
        return _pairs(calls)
    sent, received = (sum(each) for each in zip(*totals.values(), strict=True))
    odd = _odd(
        "sizes",
        {rank: f"{here} in, {there} out" for rank, (here, there) in totals.items()},
        " elements",
    )
    if len(calls) == p and sent != received:
        return odd
    # Where each rank sends as much as it receives, split sizes may fit or not be there; if it
    # hangs, they are not.
    is_over = all(entry.state in ("completed", "ended") for entry in calls.values())
    is_even = all(here == there and here % p == 0 for here, there in totals.values())
    is_known = operation == "all_to_all_v_single"
    return (
        odd if is_even and len(set(totals.values())) > 1 and not is_over and not is_known else None
    )


def _pairs(calls: Mapping[int, Entry]) -> Odd | None:
    """Compare the tensors for each peer: one must be as large as the other rank expects it."""
    order = sorted(calls)
    wrong = [
        (a, b)
        for i, a in enumerate(order)
        for j, b in enumerate(order)
        if math.prod(calls[a].inputs[j]) != math.prod(calls[b].outputs[i])
    ]
    if not wrong:
        return None
    counts = Counter(rank for pair in wrong for rank in set(pair))
    most = counts.most_common()
    culprits = tuple(sorted(rank for rank, count in most if count == most[0][1]))
    a, b = next(pair for pair in wrong if culprits[0] in pair)
    i, j = order.index(a), order.index(b)
    sends = f"rank {a} sends {math.prod(calls[a].inputs[j])} elements to rank {b}, which expects "
    more = f"; {len(wrong)} pairs differ" if len(wrong) > 1 else ""
    return Odd("sizes", culprits, f"{sends}{math.prod(calls[b].outputs[i])}{more}")


def _odd(kind: str, values: Mapping[int, Hashable], unit: str = "") -> Odd:
    """Return the sides, the fewest ranks first, and the ranks that differ from most."""
    sides: dict[Hashable, list[int]] = {}
    for rank, value in sorted(values.items()):
        sides.setdefault(value, []).append(rank)
    order = sorted(sides.items(), key=lambda side: len(side[1]))
    most = max(len(of) for of in sides.values())
    minority = [rank for _, of in order if len(of) < most for rank in of]
    is_tie = sum(len(of) == most for of in sides.values()) > 1
    texts = [f"{ranks(of)}: {value}{unit if i == 0 else ''}" for i, (value, of) in enumerate(order)]
    more = f"; {len(texts) - MAX_NAMED} more" if len(texts) > MAX_NAMED else ""
    return Odd(
        kind,
        tuple(sorted(values if is_tie else minority or values)),
        "; ".join(texts[:MAX_NAMED]) + more,
    )


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
    of: dict[int, list[WaitingCall]] = {}
    for wait in waits:
        for rank in wait.waiting:
            of.setdefault(rank, []).append(wait)
    left = _left(waits, of)
    seen: set[int] = set()
    for start in sorted(left):
        path: dict[int, WaitsFor] = {}
        rank = start
        while rank not in seen:
            seen.add(rank)
            path[rank] = link = next(
                WaitsFor(rank, wait, other)
                for wait in of[rank]
                for other in wait.absent
                if other in left and other != rank
            )
            rank = link.other
        if rank in path:
            links = [*path.values()]
            yield links[[*path].index(rank) :]


def _left(waits: Sequence[WaitingCall], of: dict[int, list[WaitingCall]]) -> set[int]:
    """Return the ranks that wait for one of these ranks."""
    # By rank: the waits that it keeps others in, as places in `waits`.
    wanted: dict[int, list[int]] = {}
    for i, wait in enumerate(waits):
        for rank in wait.absent:
            wanted.setdefault(rank, []).append(i)
    # Those of it that wait themselves.
    open_waits = [sum(rank in of for rank in wait.absent) for wait in waits]
    ways = dict.fromkeys(of, 0)
    for i, wait in enumerate(waits):
        for rank in wait.waiting:
            ways[rank] += open_waits[i] > 0
    done = [rank for rank, count in ways.items() if count == 0]
    left = set(of) - set(done)
    while done:
        for i in wanted.get(done.pop(), ()):
            open_waits[i] -= 1
            for rank in waits[i].waiting if open_waits[i] == 0 else ():
                ways[rank] -= 1
                if ways[rank] == 0:
                    left.discard(rank)
                    done.append(rank)
    return left

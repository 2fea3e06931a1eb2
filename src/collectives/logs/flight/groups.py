"""The dumps of all ranks together: each process group, what each of its ranks called, and in which call it waits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from collectives.logs.flight.dump import Dump, Entry, Members

# The number of a collective in its group, and of a call within it: several tensors may be coalesced under one number.
Key = tuple[int, int]

MESSAGES = ("send", "recv")
# What closes a batch of calls, and neither sends nor receives.
CLOSES = "coalesced"
# The name that torch gives its default group.
DEFAULT = "0"


@dataclass
class Group:
    """A process group: a name and ranks, because torch may give one name to groups of different ranks."""

    name: str
    description: str
    ranks: tuple[int, ...]
    calls: dict[int, dict[Key, Entry]] = field(default_factory=dict)  # by rank with a dump
    spans: dict[int, tuple[Key, Key]] = field(default_factory=dict)  # of ranks with calls: the first and last one
    messages: dict[int, list[Entry]] = field(default_factory=dict)  # sends and receives, in order
    whole: set[int] = field(default_factory=set)  # ranks whose recorder has overwritten nothing
    knowing: set[int] = field(default_factory=set)  # ranks whose dump names the group

    def __str__(self) -> str:
        known = self.description not in ("", "undefined", self.name)
        return f"group {self.name} ({self.description})" if known else f"group {self.name or '(no name)'}"

    def last(self, rank: int) -> Key:
        """The last call of a rank, below all others if it made none."""
        return self.spans[rank][1] if rank in self.spans else (-1, 0)


class Wait(NamedTuple):
    """Ranks that wait in a call, and those for which they wait: ranks that have not called it, or not started it."""

    group: Group
    key: Key  # for a message, the number of the message between its ends
    waiting: dict[int, Entry]
    absent: tuple[int, ...]
    is_called: bool = False  # the absent have called it, and not started


def groups_of(dumps: Sequence[Dump]) -> list[Group]:
    """The groups of these dumps, one for each rank. Where no dump names a group's ranks, they are those that used it.

    >>> entry = Entry("0", 1, "all_reduce", None, ((4,),), ((4,),), ("Float",), ("Float",), "started", "")
    >>> (of,) = groups_of([Dump(f"d{rank}", rank, "2.10", "", {}, [entry], 0, True) for rank in (0, 1)])
    >>> of.ranks, of.last(1)
    ((0, 1), (1, 0))
    """
    known, users = _known(dumps), _users(dumps)
    groups: dict[tuple[str, tuple[int, ...]], Group] = {}
    for dump in dumps:
        entries: dict[str, list[Entry]] = {name: [] for name in dump.groups}
        for entry in dump.entries:
            entries.setdefault(entry.group, []).append(entry)
        for name, mine in entries.items():
            members = dump.groups.get(name, Members("", ()))
            ranks = members.ranks or next((each for each in known.get(name, ()) if dump.rank in each), ())
            ranks = ranks or tuple(sorted(users.get(name, ())))
            if ranks:
                of = groups.setdefault((name, ranks), Group(name, members.description, ranks))
                of.knowing.add(dump.rank)
                _add(of, dump, mine)
    return [*groups.values()]


def _known(dumps: Sequence[Dump]) -> dict[str, list[tuple[int, ...]]]:
    """The ranks that dumps name for a group."""
    known: dict[str, list[tuple[int, ...]]] = {}
    for dump in dumps:
        for name, members in dump.groups.items():
            if members.ranks and members.ranks not in known.setdefault(name, []):
                known[name].append(members.ranks)
    return known


def _users(dumps: Sequence[Dump]) -> dict[str, set[int]]:
    """The ranks that called something in a group; the default group has all."""
    users: dict[str, set[int]] = {DEFAULT: {dump.rank for dump in dumps}}
    for dump in dumps:
        for entry in dump.entries:
            users.setdefault(entry.group, set()).add(dump.rank)
    return users


def _add(of: Group, dump: Dump, entries: Sequence[Entry]) -> None:
    """Return what this rank did in the group: its entries there."""
    calls: dict[Key, Entry] = {}
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


def with_dumps(of: Group, dumped: set[int]) -> list[int]:
    """The group's ranks that have a dump."""
    return [rank for rank in of.ranks if rank in dumped]


def reaches(of: Group, rank: int, key: Key) -> bool:
    """Whether a rank has made this call, as far as its dump can tell: one that it has overwritten, it has."""
    return of.last(rank) >= key


def waits_of(of: Group, dumped: set[int]) -> Iterator[Wait]:
    """The calls in which ranks of a group wait, the earliest first, with those for which they wait."""
    members = with_dumps(of, dumped)
    missing = [rank for rank in of.ranks if rank not in dumped]
    first: dict[Key, dict[int, Entry]] = {}
    for rank in members:
        for key, entry in sorted(of.calls.get(rank, {}).items()):
            if not is_done(of, key, entry, members):
                first.setdefault(key, {})[rank] = entry
                break
    for key, waiting in sorted(first.items()):
        behind = [rank for rank in members if not reaches(of, rank, key)]
        if behind or missing:
            yield Wait(of, key, waiting, (*behind, *missing))
        else:
            started = {rank: entry for rank, entry in waiting.items() if entry.state == "started"}
            late = [rank for rank, entry in waiting.items() if entry.state == "scheduled"]
            yield Wait(of, key, started, tuple(late), True) if started and late else Wait(of, key, waiting, (), True)


def is_done(of: Group, key: Key, entry: Entry, members: Sequence[int]) -> bool:
    """Whether a call is completed; one that is over, well or not, was so if all ranks made it."""
    return entry.state == "completed" or (entry.state == "ended" and all(reaches(of, rank, key) for rank in members))


def message_waits(of: Group) -> Iterator[Wait]:
    """Messages without their other end, while the rank of this end waits."""
    for (sender, receiver), (sends, receives) in pairs(of).items():
        for here, there, mine, others in ((sender, receiver, sends, receives), (receiver, sender, receives, sends)):
            after = [entry for entry in mine[len(others) :] if entry.state in ("scheduled", "started")]
            if after and here != there:
                yield Wait(of, (len(others), 0), {here: after[0]}, (there,))


def pairs(of: Group) -> dict[tuple[int, int], tuple[list[Entry], list[Entry]]]:
    """The sends and the receives of each sender and receiver, both as ranks of the job, from where they match.

    Where a recorder has overwritten the first ones, those count that are not completed.
    """
    found: dict[tuple[int, int], tuple[list[Entry], list[Entry]]] = {}
    for rank, messages in of.messages.items():
        for entry in messages:
            if entry.ends and max(entry.ends) < len(of.ranks):
                sender, receiver = (of.ranks[end] for end in entry.ends)
                if rank == (sender if entry.operation == "send" else receiver):
                    found.setdefault((sender, receiver), ([], []))[entry.operation == "recv"].append(entry)
    for ends, both in found.items():
        if not of.whole.issuperset(end for end in ends if end in of.messages):
            a, b = ([entry for entry in each if entry.state != "completed"] for each in both)
            found[ends] = a, b
    return found

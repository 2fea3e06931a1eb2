"""Read torch's watchdog: calls that timed out, and how many calls of a group each rank had enqueued."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from collectives.units import many
from collectives_logs.finding import MAX_NAMED, Finding, finding, named, ranks
from collectives_logs.sources import Place

# Calls and states that are kept.
MAX_TIMEOUTS = 1 << 16

# All patterns are for a text without its blanks, because a terminal or a thread may have wrapped
# its lines anywhere.
WHO = r"\[(?:PG(?P<group>[^\[\]]{1,300}?))?Rank(?P<rank>\d{1,7})\]"
WATCHDOG = re.compile(
    rf"(?:\[PG(?P<outer>[^\[\]]{{1,300}}?)Rank\d{{1,7}}\][a-zA-Z]{{1,90}}:)?{WHO}(?:Work|(?:Watchdogc|C)aughtcollective"
    r"operationtimeout:)WorkNCCL\((?:SeqNum=(?P<number>\d{1,15}),)?OpType=(?P<collective>\w{1,40}),(?:TensorShape=\[[\d,]*\],)?"
    r"(?:NumelIn=(?P<sent>\d{1,20}),NumelOut=(?P<received>\d{1,20}),)?Timeout\(ms\)=(?P<milliseconds>\d{1,12})\)"
)
STATE = re.compile(
    WHO + r"(?P<text>[^\[\]]{0,600}?)lastenqueued(?:NCCL)?work:(?P<enqueued>-?\d{1,19}),"
    r"lastcompleted(?:NCCL)?work:(?P<completed>-?\d{1,19})",
    re.IGNORECASE,
)
AT = re.compile(r"at(?:NCCL)?work(?:sequenceid)?:(\d{1,15})")
JOB = re.compile(r"\[rank(\d{1,7})\]")
GUID = re.compile(r"([^()]{1,80})(?:\(([^()]{1,200})\))?")

# Calls between pairs have numbers of their own on each rank, and calls of one number that are no
# mistake.
PAIRS = ("SEND", "RECV", "COALESCED")
# Calls that take as many elements on each rank.
ALIKE = ("ALLREDUCE", "BROADCAST", "REDUCE", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE")
# Torch counts a call after NCCL's function has returned.
COUNTED = "they had not come to this call, or had not come out of NCCL's function for it"
UNKNOWN = 1 << 64  # from which on a count of elements is -1


class TimedOutCall(NamedTuple):
    """A call that torch's watchdog gave up: its collective, elements in and out (-1: unknown), and milliseconds."""

    collective: str
    sent: int
    received: int
    milliseconds: int

    def __str__(self) -> str:
        known = 0 <= self.sent < UNKNOWN - 1
        return self.collective + (
            f" ({many(self.sent, 'element')} in, {self.received:,} out)" if known else ""
        )


class Member(NamedTuple):
    """A process: its rank in the job, -1 if the line does not say it, and in its group."""

    job: int
    rank: int


@dataclass
class TimedOutGroup:
    """The calls of a process group that timed out, the first of each rank, and what each rank had enqueued."""

    calls: dict[Member, tuple[int, TimedOutCall, Place]] = field(default_factory=dict)
    enqueued: dict[Member, int] = field(default_factory=dict)
    completed: dict[Member, int] = field(default_factory=dict)
    # In which call, as the watchdog says.
    failed: dict[Member, tuple[int, Place]] = field(default_factory=dict)

    def add(self, member: Member, number: int, call: TimedOutCall, at: Place) -> None:
        """Keep a call, if it is the member's first."""
        if number < self.calls.get(member, (number + 1,))[0]:
            self.calls[member] = number, call, at

    def unite(self) -> None:
        """Give a member the rank in the job that another line of the group has for it."""
        known = {each.rank: each for each in (*self.calls, *self.enqueued) if each.job >= 0}
        for of in (self.enqueued, self.completed):
            for each in [each for each in of if each.job < 0 and each.rank in known]:
                of[known[each.rank]] = max(of.pop(each), of.get(known[each.rank], -1))
        for each in [each for each in self.failed if each.job < 0 and each.rank in known]:
            self.failed.setdefault(known[each.rank], self.failed.pop(each))
        for each in [each for each in self.calls if each.job < 0 and each.rank in known]:
            self.add(known[each.rank], *self.calls.pop(each))


@dataclass
class WatchdogLog:
    """All that was found; groups by torch's name, "" for calls whose group is unknown."""

    groups: dict[str, TimedOutGroup] = field(default_factory=dict)
    # In lines without their group.
    loose: list[tuple[Member, int, TimedOutCall, Place]] = field(default_factory=list)
    of_call: dict[tuple[Member, int], set[str]] = field(default_factory=dict)
    kept: int = 0

    def record(self, at: Place, text: str, job: int = -1) -> bool:
        """Keep what a record says, a text without blanks; return True if it says something."""
        before = self.kept
        if before >= MAX_TIMEOUTS:
            return False
        for found in WATCHDOG.finditer(text):
            group, member = _who(text, found, job)
            sent, received = (int(found[name] or -1) for name in ("sent", "received"))
            call = TimedOutCall(found["collective"], sent, received, int(found["milliseconds"]))
            self.loose.append((member, int(found["number"] or -1), call, at))
            if group:
                self._of(group).add(*self.loose.pop())
            self.kept += 1
        for found in STATE.finditer(text):
            self._state(found, at, *_who(text, found, job))
            self.kept += 1
        return self.kept > before

    def _state(self, found: re.Match[str], at: Place, group: str, member: Member) -> None:
        """Keep the numbers of a rank's last calls, and in which one the watchdog met a failure."""
        of, enqueued, completed = self._of(group), int(found["enqueued"]), int(found["completed"])
        of.enqueued[member] = max(of.enqueued.get(member, -1), enqueued)
        if completed <= enqueued:  # torch 2.3 prints a number here that was never set
            of.completed[member] = max(of.completed.get(member, -1), completed)
        if number := AT.search(found["text"]):
            self.of_call.setdefault((member, int(number[1])), set()).add(group)
            of.failed.setdefault(member, (int(number[1]), at))

    def _of(self, group: str) -> TimedOutGroup:
        return self.groups.setdefault(group, TimedOutGroup())

    def settled(self) -> Mapping[str, TimedOutGroup]:
        """Return the groups, after loose calls have found theirs in the line that follows them, if it is one only."""
        for member, number, call, at in self.loose:
            groups = self.of_call.get((member, number), set())
            self._of(*groups if len(groups) == 1 else ("",)).add(member, number, call, at)
        self.loose.clear()
        for name, of in self.groups.items():
            if name:
                of.unite()
        named = {
            (each.rank, *call[:2])
            for name, of in self.groups.items()
            if name
            for each, call in of.calls.items()
        }
        unknown = self._of("")  # a process prints its call again with its last words, and its group
        unknown.calls = {
            each: call
            for each, call in unknown.calls.items()
            if (each.rank, *call[:2]) not in named
        }
        return self.groups


def _who(text: str, found: re.Match[str], job: int) -> tuple[str, Member]:
    """Return the group's name and the process of a match.

    The job's rank stands before it, or before the line.
    """
    group = found.groupdict().get("outer") or found["group"] or ""
    group = re.sub(r"^ID\d+PGGUID", "", group)  # the number of the group on this rank
    before = [*JOB.finditer(text, 0, found.start())]
    rank = int(found["rank"])
    if before:
        job = int(before[-1][1])
    elif _is_default(group):
        job = rank
    return group, Member(job, rank)


def _is_default(group: str) -> bool:
    return group == "0" or group.endswith("(default_pg)")


def timeouts(of: WatchdogLog) -> Iterator[Finding]:
    """Yield what timed out, those first that say why."""
    groups = of.settled()
    found = [
        each
        for name, group in groups.items()
        for each in islice(_of_group(of, name, group), MAX_NAMED)
    ]
    yield from sorted(found, key=lambda one: one.kind == "timeout")[:MAX_NAMED]


def _of_group(torch: WatchdogLog, name: str, of: TimedOutGroup) -> Iterator[Finding]:
    yield from _failures(torch, name, of)
    numbers: dict[int, dict[TimedOutCall, list[Member]]] = {}
    for member, (number, call, _) in of.calls.items():
        numbers.setdefault(number, {}).setdefault(call, []).append(member)
    for number, calls in sorted(numbers.items()):
        if found := _differ(name, of, number, calls):
            yield found
        for call, those in calls.items():
            places = [*dict.fromkeys(of.calls[member][2] for member in those)][:2]
            follows = _follows(name, of, number, call, those)
            of_call = {
                "ranks": _ranks(those),
                "seconds": call.milliseconds / 1000,
                "call": _call(name, number, call),
            }
            yield finding("watchdog.timeout", *places, **of_call, follows=follows)


def _failures(torch: WatchdogLog, name: str, of: TimedOutGroup) -> Iterator[Finding]:
    """Yield in which call the watchdog of a rank met a failure, where no line says that the call timed out."""
    waited = {
        (each.rank, call[0])
        for group in torch.groups.values()
        for each, call in group.calls.items()
    }
    calls: dict[int, list[Member]] = {}
    for member, (number, _) in of.failed.items():
        if (member.rank, number) not in waited:
            calls.setdefault(number, []).append(member)
    for number, those in [*calls.items()] if name else ():
        at = [of.failed[member][1] for member in those]
        last = {
            f"last enqueued {of.enqueued[each]}, completed {of.completed.get(each, '?')}": each
            for each in those
        }
        yield finding(
            "watchdog.failure",
            *at[:2],
            ranks=_ranks(those),
            number=number,
            group=_group(name),
            last=named([*last]),
        )


def _differ(
    name: str, of: TimedOutGroup, number: int, calls: Mapping[TimedOutCall, list[Member]]
) -> Finding | None:
    """Return a finding if calls of one number are of different collectives, or of other sizes where these agree."""
    kinds = {call.collective: call for call in calls if call.collective not in PAIRS}
    is_size = (
        len(kinds) == 1 and next(iter(kinds)) in ALIKE and len({call[:3] for call in calls}) > 1
    )
    members = [each for those in calls.values() for each in those]
    if (
        number < 0
        or (len(kinds) < 2 and not is_size)
        or len({each.rank for each in members}) < len(members)
    ):
        return None
    different = "; ".join(f"{_ranks(those)}: {call}" for call, those in calls.items())
    at = [of.calls[those[0]][2] for those in calls.values()]
    if name:
        return finding("watchdog.calls", *at, number=number, group=_group(name), calls=different)
    return finding("watchdog.calls of any group", *at, number=number, calls=different)


def _follows(
    name: str, of: TimedOutGroup, number: int, call: TimedOutCall, those: list[Member]
) -> str:
    """Return what the lines prove about the others: who had not enqueued the call, or that all had."""
    if not call.collective.startswith(PAIRS) and name and number >= 0:
        behind: dict[int, list[Member]] = {}
        for each, last in of.enqueued.items():
            if last < number and each not in those:
                behind.setdefault(last, []).append(each)
        if behind:
            last_calls = [
                f"{_ranks(some)} had enqueued call {last} last"
                for last, some in sorted(behind.items())
            ]
            return f"{named(last_calls)}, as torch printed: {COUNTED}"
        if beyond := [
            each for each, last in of.completed.items() if last >= number and each not in those
        ]:
            return f"{_ranks(beyond)} had completed this call, as torch printed"
    members = _gathered(call) if name else 0
    if members and len({each.job for each in those if each.job >= 0}) == members:
        return f"all {members} ranks of the group made this call: none is missing"
    return "these lines do not prove which rank, link or GPU held the call up"


def _gathered(call: TimedOutCall) -> int:
    """Return the ranks of the group, which a gather's sizes say; 0 for other calls."""
    small, large = sorted((call.sent, call.received))
    is_one = "ALLGATHER" in call.collective or "REDUCE_SCATTER" in call.collective
    return large // small if is_one and small > 0 and large % small == 0 else 0


def _ranks(members: Iterable[Member]) -> str:
    """Return the members by their ranks in the job, or in their group where lines say no more."""
    given = [*members]
    if all(each.job >= 0 for each in given):
        return ranks(each.job for each in given)
    return f"{ranks(each.rank for each in given)} of the group"


def _group(name: str) -> str:
    """Return how a finding calls a group.

    >>> _group("13(mesh_dp)"), _group("1"), _group("0(default_pg)")
    ('group 13 (mesh_dp)', 'group 1', 'group 0 (default_pg)')
    """
    found = GUID.fullmatch(name)
    return (
        f"group {named([found[1]])}{f' ({found[2]})' if found[2] else ''}"
        if found
        else f"group {name}"
    )


def _call(name: str, number: int, call: TimedOutCall) -> str:
    what, sizes = call.collective, str(call).removeprefix(call.collective)
    return (
        f"{what}{f' {number}' if number >= 0 else ''}{f' of {_group(name)}' if name else ''}{sizes}"
    )

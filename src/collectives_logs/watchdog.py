"""Read torch's watchdog: calls that timed out, and how many calls of a group each rank had enqueued."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice
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
        if 0 <= self.sent < UNKNOWN - 1:
            sent = many(self.sent, "element")
            return f"{self.collective} ({sent} in, {self.received:,} out)"
        return self.collective


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
        known: dict[int, Member] = {}
        for member in chain(self.calls, self.enqueued):
            if member.job >= 0:
                known[member.rank] = member
        for numbers in (self.enqueued, self.completed):
            for member in _unnamed(numbers, known):
                same = known[member.rank]
                numbers[same] = max(numbers.pop(member), numbers.get(same, -1))
        for member in _unnamed(self.failed, known):
            self.failed.setdefault(known[member.rank], self.failed.pop(member))
        for member in _unnamed(self.calls, known):
            number, call, at = self.calls.pop(member)
            self.add(known[member.rank], number, call, at)


def _unnamed(members: Iterable[Member], known: Mapping[int, Member]) -> list[Member]:
    """Return the members without a rank in the job of which another line has it."""
    return [member for member in members if member.job < 0 and member.rank in known]


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
            number = int(found["number"] or -1)
            sent, received = int(found["sent"] or -1), int(found["received"] or -1)
            call = TimedOutCall(found["collective"], sent, received, int(found["milliseconds"]))
            if group:
                self._of(group).add(member, number, call, at)
            else:
                self.loose.append((member, number, call, at))
            self.kept += 1
        for found in STATE.finditer(text):
            group, member = _who(text, found, job)
            self._state(found, at, group, member)
            self.kept += 1
        return self.kept > before

    def _state(self, found: re.Match[str], at: Place, name: str, member: Member) -> None:
        """Keep the numbers of a rank's last calls, and in which one the watchdog met a failure."""
        group = self._of(name)
        enqueued, completed = int(found["enqueued"]), int(found["completed"])
        group.enqueued[member] = max(group.enqueued.get(member, -1), enqueued)
        if completed <= enqueued:  # torch 2.3 prints a number here that was never set
            group.completed[member] = max(group.completed.get(member, -1), completed)
        failed = AT.search(found["text"])
        if failed:
            number = int(failed[1])
            self.of_call.setdefault((member, number), set()).add(name)
            group.failed.setdefault(member, (number, at))

    def _of(self, group: str) -> TimedOutGroup:
        return self.groups.setdefault(group, TimedOutGroup())

    def settled(self) -> Mapping[str, TimedOutGroup]:
        """Return the groups, after loose calls have found theirs in the line that follows them, if it is one only."""
        for member, number, call, at in self.loose:
            groups = self.of_call.get((member, number), set())
            name = min(groups) if len(groups) == 1 else ""
            self._of(name).add(member, number, call, at)
        self.loose.clear()
        named_calls = set()
        for name, group in self.groups.items():
            if name:
                group.unite()
                named_calls |= {_identity(member, call) for member, call in group.calls.items()}
        unknown = self._of("")  # a process prints its call again with its last words, and its group
        for member, given_up in list(unknown.calls.items()):
            if _identity(member, given_up) in named_calls:
                del unknown.calls[member]
        return self.groups


def _identity(
    member: Member, call: tuple[int, TimedOutCall, Place]
) -> tuple[int, int, TimedOutCall]:
    """Return what two lines of one call have in common: the rank in the group, the number and the call."""
    number, given_up, _ = call
    return member.rank, number, given_up


def _who(text: str, found: re.Match[str], job: int) -> tuple[str, Member]:
    """Return the group's name and the process of a match.

    The job's rank stands before it, or before the line.
    """
    group = found.groupdict().get("outer") or found["group"] or ""
    group = re.sub(r"^ID\d+PGGUID", "", group)  # the number of the group on this rank
    before = JOB.findall(text[: found.start()])
    rank = int(found["rank"])
    if before:
        job = int(before[-1])
    elif _is_default(group):
        job = rank
    return group, Member(job, rank)


def _is_default(group: str) -> bool:
    return group == "0" or group.endswith("(default_pg)")


def timeouts(log: WatchdogLog) -> Iterator[Finding]:
    """Yield what timed out, those first that say why."""
    found: list[Finding] = []
    for name, group in log.settled().items():
        found.extend(islice(_of_group(log, name, group), MAX_NAMED))
    found.sort(key=lambda one: one.kind == "timeout")
    yield from found[:MAX_NAMED]


def _of_group(log: WatchdogLog, name: str, group: TimedOutGroup) -> Iterator[Finding]:
    if name:
        yield from _failures(log, name, group)
    numbers: dict[int, dict[TimedOutCall, list[Member]]] = {}
    for member, (number, call, _) in group.calls.items():
        numbers.setdefault(number, {}).setdefault(call, []).append(member)
    for number, calls in sorted(numbers.items()):
        different = _differ(name, group, number, calls)
        if different:
            yield different
        for call, members in calls.items():
            at = dict.fromkeys(group.calls[member][2] for member in members)
            yield finding(
                "watchdog.timeout",
                *islice(at, 2),
                ranks=_ranks(members),
                seconds=call.milliseconds / 1000,
                call=_call(name, number, call),
                follows=_follows(name, group, number, call, members),
            )


def _failures(log: WatchdogLog, name: str, group: TimedOutGroup) -> Iterator[Finding]:
    """Yield in which call the watchdog of a rank met a failure, where no line says that the call timed out."""
    timed_out = set()
    for other in log.groups.values():
        for member, (number, _, _) in other.calls.items():
            timed_out.add((member.rank, number))
    calls: dict[int, list[Member]] = {}
    for member, (number, _) in group.failed.items():
        if (member.rank, number) not in timed_out:
            calls.setdefault(number, []).append(member)
    for number, members in calls.items():
        at = [group.failed[member][1] for member in members]
        last: dict[str, None] = {}  # each text once, in their order
        for member in members:
            completed = group.completed.get(member, "?")
            last[f"last enqueued {group.enqueued[member]}, completed {completed}"] = None
        yield finding(
            "watchdog.failure",
            *at[:2],
            ranks=_ranks(members),
            number=number,
            group=_group(name),
            last=named(list(last)),
        )


def _differ(
    name: str,
    group: TimedOutGroup,
    number: int,
    calls: Mapping[TimedOutCall, list[Member]],
) -> Finding | None:
    """Return a finding if calls of one number are of different collectives, or of other sizes where these agree."""
    collectives = {call.collective for call in calls if call.collective not in PAIRS}
    sizes = {(call.collective, call.sent, call.received) for call in calls}
    is_size = len(collectives) == 1 and len(sizes) > 1 and collectives <= set(ALIKE)
    if number < 0 or (len(collectives) < 2 and not is_size):
        return None
    members = list(chain.from_iterable(calls.values()))
    if len({member.rank for member in members}) < len(members):
        return None
    different = "; ".join(f"{_ranks(those)}: {call}" for call, those in calls.items())
    at = [group.calls[those[0]][2] for those in calls.values()]
    values = {"number": number, "calls": different}
    if name:
        return finding("watchdog.calls", *at, group=_group(name), **values)
    return finding("watchdog.calls of any group", *at, **values)


def _follows(
    name: str, group: TimedOutGroup, number: int, call: TimedOutCall, members: list[Member]
) -> str:
    """Return what the lines prove about the others: who had not enqueued the call, or that all had."""
    if name and number >= 0 and not call.collective.startswith(PAIRS):
        behind: dict[int, list[Member]] = {}
        for member, last in group.enqueued.items():
            if last < number and member not in members:
                behind.setdefault(last, []).append(member)
        if behind:
            texts = []
            for last, those in sorted(behind.items()):
                texts.append(f"{_ranks(those)} had enqueued call {last} last")
            return f"{named(texts)}, as torch printed: {COUNTED}"
        beyond = []
        for member, last in group.completed.items():
            if last >= number and member not in members:
                beyond.append(member)
        if beyond:
            return f"{_ranks(beyond)} had completed this call, as torch printed"
    size = _gathered(call) if name else 0
    jobs = {member.job for member in members if member.job >= 0}
    if size and len(jobs) == size:
        return f"all {size} ranks of the group made this call: none is missing"
    return "these lines do not prove which rank, link or GPU held the call up"


def _gathered(call: TimedOutCall) -> int:
    """Return the ranks of the group, which a gather's sizes say; 0 for other calls."""
    small, large = sorted((call.sent, call.received))
    is_one = "ALLGATHER" in call.collective or "REDUCE_SCATTER" in call.collective
    return large // small if is_one and small > 0 and large % small == 0 else 0


def _ranks(members: Iterable[Member]) -> str:
    """Return the members by their ranks in the job, or in their group where lines say no more."""
    given = list(members)
    if all(member.job >= 0 for member in given):
        return ranks(member.job for member in given)
    return f"{ranks(member.rank for member in given)} of the group"


def _group(name: str) -> str:
    """Return how a finding calls a group.

    >>> _group("13(mesh_dp)"), _group("1"), _group("0(default_pg)")
    ('group 13 (mesh_dp)', 'group 1', 'group 0 (default_pg)')
    """
    found = GUID.fullmatch(name)
    if not found:
        return f"group {name}"
    description = f" ({found[2]})" if found[2] else ""
    return f"group {named([found[1]])}{description}"


def _call(name: str, number: int, call: TimedOutCall) -> str:
    text = call.collective
    if number >= 0:
        text += f" {number}"
    if name:
        text += f" of {_group(name)}"
    return text + str(call).removeprefix(call.collective)

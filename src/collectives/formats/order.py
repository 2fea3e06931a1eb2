"""Who waits for whom: messages matched with their receivers, an order of all steps, a deadlock as its cycle.

The k-th send of a connection (GPU, GPU, channel) meets its k-th receive. A step is done before the next one of its
block, before those that wait for it, and before the step that receives its message. With n slots a connection holds n
messages, so that a send also waits for the receive n messages earlier. With 0 slots both ends act at the same time.
"""

from collections import defaultdict
from functools import cached_property
from itertools import pairwise

from collectives.formats.program import SLOTS, Program, wrong

Connection = tuple[int, int, int]


class Order:
    """A program's steps as a graph; ScheduleError if a message has no receiver, or a receiver no message."""

    def __init__(self, program: Program) -> None:
        self.program = program
        ends: dict[Connection, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        for number, step in enumerate(program.steps):
            block = program.blocks[program.block_of[number]]
            if step.kind.sends:
                ends[block.gpu, block.send, block.channel][0].append(number)
            if step.kind.receives:
                ends[block.receive, block.gpu, block.channel][1].append(number)
        for connection, (sends, receives) in ends.items():
            _need_pairs(program, connection, sends, receives)
        self.connections = [list(zip(*both, strict=True)) for both in ends.values()]
        self.sender = {receive: send for messages in self.connections for send, receive in messages}

    @cached_property
    def before(self) -> list[list[int]]:
        """The steps that must be done before each step, whatever the number of slots."""
        program = self.program
        found: list[list[int]] = [[] for _ in program.steps]
        for first, last in pairwise(program.first):
            for step in range(first + 1, last):
                found[step].append(step - 1)
        for step, other in (*program.waits.items(), *self.sender.items()):
            found[step].append(other)
        return found

    @cached_property
    def steps(self) -> list[int]:
        """All steps, each after those that it waits for; ScheduleError for a deadlock."""
        order, stuck = _sorted(self.before)
        if stuck:
            raise self._deadlock(self.before, stuck, "")
        return order

    def need_no_deadlock(self) -> None:
        """Raise ScheduleError for a deadlock, with unlimited slots or with those of the protocol."""
        slots = SLOTS[self.program.protocol]
        before = self._limited(slots)
        if self.steps and (stuck := _sorted(before)[1]):
            enough = self._least(slots, max(map(len, self.connections)))
            raise self._deadlock(
                before, stuck, f" with the {slots} slots of {self.program.protocol} ({enough} suffice)"
            )

    def slots(self) -> int:
        """The smallest number of slots that suffices, if those of the protocol do."""
        return self._least(0, SLOTS[self.program.protocol])

    def _least(self, low: int, high: int) -> int:
        """The smallest number of slots with which nothing is stuck; ``high`` slots suffice."""
        while low < high:
            middle = (low + high) // 2
            if _sorted(self._limited(middle))[1]:
                low = middle + 1
            else:
                high = middle
        return low

    def depth(self) -> int:
        """The longest chain of messages of which each is sent after the one before has arrived."""
        depth = [0] * len(self.before)
        for step in self.steps:
            depth[step] = max((depth[b] + (self.sender.get(step) == b) for b in self.before[step]), default=0)
        return max(depth, default=0)

    def _limited(self, slots: int) -> list[list[int]]:
        """The steps before each step, with so many slots."""
        if not slots:
            return self._joined()
        found = [list(each) for each in self.before]
        for messages in self.connections:
            for (_, receive), (send, _) in zip(messages, messages[slots:], strict=False):
                found[send].append(receive)
        return found

    def _joined(self) -> list[list[int]]:
        """With no slot, a chain of steps that pass on one message acts as its first step does."""
        act = list(range(len(self.before)))
        for receive, send in self.sender.items():
            act[_root(act, receive)] = _root(act, send)
        found: list[list[int]] = [[] for _ in act]
        for step, others in enumerate(self.before):
            found[_root(act, step)] += [_root(act, each) for each in others if each != self.sender.get(step)]
        return found

    def _deadlock(self, before: list[list[int]], stuck: set[int], slots: str) -> Exception:
        cycle = _cycle(before, stuck)
        names = [self.program.name(step) for step in cycle]
        shown = names if len(names) <= 6 else [*names[:5], f"… ({len(names) - 5} more)"]
        blocks = len({self.program.block_of[step] for step in stuck})
        what = f"deadlock{slots}: {len(stuck)} of {len(before)} steps never run, {blocks} thread blocks are stuck; "
        return wrong(self.program, cycle[0], f"{what}{' waits for '.join([*shown, names[0]])}", "waits for itself")


def _need_pairs(program: Program, connection: Connection, sends: list[int], receives: list[int]) -> None:
    src, dst, channel = connection
    where = f"from GPU {src} to GPU {dst} on channel {channel}"
    if len(sends) != len(receives):
        extra = max(sends, receives, key=len)[min(len(sends), len(receives))]
        what = f"{program.name(extra)} has no partner: got {len(sends)} sends {where} and {len(receives)} receives"
        raise wrong(
            program, extra, what, "its message is " + ("never received" if len(sends) > len(receives) else "never sent")
        )
    for send, receive in zip(sends, receives, strict=True):
        counts = program.steps[send].chunks, program.steps[receive].chunks
        if counts[0] != counts[1]:
            what = f"{program.name(receive)} receives {counts[1]} chunks of {counts[0]} that {program.name(send)} sends"
            raise wrong(program, receive, what, "another number of chunks is sent")


def _root(act: list[int], step: int) -> int:
    while act[step] != step:
        act[step] = act[act[step]]
        step = act[step]
    return step


def _sorted(before: list[list[int]]) -> tuple[list[int], set[int]]:
    """The steps in an order that ``before`` allows, and those that are in no such order."""
    behind: list[list[int]] = [[] for _ in before]
    missing = [len(others) for others in before]
    for step, others in enumerate(before):
        for other in others:
            behind[other].append(step)
    order = [step for step, count in enumerate(missing) if not count]
    for step in order:
        for other in behind[step]:
            missing[other] -= 1
            if not missing[other]:
                order.append(other)
    return order, set(range(len(before))).difference(order)


def _cycle(before: list[list[int]], stuck: set[int]) -> list[int]:
    """Steps that wait for each other in a circle."""
    path: list[int] = []
    at: dict[int, int] = {}
    step = min(stuck)
    while step not in at:
        at[step] = len(path)
        path.append(step)
        step = next(other for other in before[step] if other in stuck)
    return path[at[step] :]

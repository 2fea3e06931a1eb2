"""An independent executor: it plays a program in a random order, or in every order, and says what went wrong.

A step begins (it takes its message and reads its cells) and ends later (it writes, sends,
announces); other blocks run in between. Two steps in between at the same time that use one cell,
one of them writing it, are a race. It shares no code with the proof, not even the reader.
"""

import copy
import random
from collections import Counter
from xml.etree import ElementTree

Cell = tuple[int, str, int]
SLOTS = {"Simple": 2, "LL": 8, "LL128": 8}


class FaultError(Exception):
    """Something went wrong in this order."""


class Run:
    """A program in the middle of being played."""

    def __init__(self, text: str, slots: int | None) -> None:
        self.top = ElementTree.fromstring(text)
        self.p, self.whole = int(self.top.get("ngpus")), int(self.top.get("nchunksperloop"))
        self.coll, self.in_place = (
            self.top.get("coll").replace("_", ""),
            self.top.get("inplace") == "1",
        )
        self.slots, self.held, self.used = slots, {}, {}
        self.blocks, self.at, self.flying, self.done, self.queues, self.room = (
            [],
            [],
            {},
            set(),
            {},
            Counter(),
        )
        for gpu in self.top:
            g = int(gpu.get("id"))
            for tb in gpu.findall("tb"):
                send, recv, chan = (int(tb.get(name)) for name in ("send", "recv", "chan"))
                steps = [dict(step.attrib) for step in tb]
                self.blocks.append((g, int(tb.get("id")), (g, send, chan), (recv, g, chan), steps))
                self.at.append(0)
            self.begin_with(g)
            for copy_ in gpu.findall("copy"):
                source, target = (
                    self.cell(g, "i", int(copy_.get("i_off"))),
                    self.cell(g, "o", int(copy_.get("o_off"))),
                )
                self.held[target] = self.held[source]

    def __deepcopy__(self, memo: dict) -> "Run":
        other = copy.copy(self)
        for name in ("held", "at", "flying", "done", "room"):
            setattr(other, name, copy.copy(getattr(self, name)))
        other.queues = {name: list(queue) for name, queue in self.queues.items()}
        return other

    def key(self) -> object:
        held = frozenset((cell, frozenset(value.items())) for cell, value in self.held.items())
        return tuple(self.at), frozenset(self.flying), held

    def cell(self, g: int, buffer: str, offset: int) -> Cell:
        part = self.whole // self.p
        if self.in_place and buffer in "io":
            if self.coll in ("allgather", "gather") and buffer == "i":
                return g, "io", g * part + offset
            if self.coll in ("reducescatter", "scatter") and buffer == "o":
                return g, "io", g * part + offset
            return g, "io", offset
        return g, buffer, offset

    def begin_with(self, g: int) -> None:
        part = self.whole // self.p
        if self.coll in ("broadcast", "scatter") and g:
            return
        for c in range(part if self.coll in ("allgather", "gather") else self.whole):
            self.held[self.cell(g, "i", c)] = Counter([(g, c)])

    def asked(self) -> dict[Cell, Counter]:
        """Return the contents that cells must have at the end."""
        p, part, found = self.p, self.whole // self.p, {}
        for g in range(p):
            for c in range(part if self.coll in ("reducescatter", "scatter") else self.whole):
                where = g * part + c
                found[self.cell(g, "o", c)] = Counter(
                    {
                        "allreduce": [(q, c) for q in range(p)],
                        "reduce": [(q, c) for q in range(p)],
                        "reducescatter": [(q, where) for q in range(p)],
                        "allgather": [(c // (part or 1), c % (part or 1))],
                        "gather": [(c // (part or 1), c % (part or 1))],
                        "broadcast": [(0, c)],
                        "scatter": [(0, where)],
                        "alltoall": [(c // (part or 1), g * part + c % (part or 1))],
                    }[self.coll]
                )
        return {
            cell: want
            for cell, want in found.items()
            if self.coll not in ("reduce", "gather") or not cell[0]
        }

    def uses(self, b: int) -> tuple[list[Cell], list[Cell]]:
        g, _, _, _, steps = self.blocks[b]
        step = steps[self.at[b]]
        src, dst = (
            [
                self.cell(g, step[f"{side}buf"], int(step[f"{side}off"]) + j)
                for j in range(int(step["cnt"]))
            ]
            for side in ("src", "dst")
        )
        kind = step["type"]
        reads = src if kind in ("s", "rrs", "rrc", "rrcs", "cpy", "re") else []
        return reads + (dst if kind == "re" else []), dst if kind in (
            "r",
            "rcs",
            "rrc",
            "rrcs",
            "cpy",
            "re",
        ) else []

    def ready(self, b: int) -> bool:
        g, _, out, into, steps = self.blocks[b]
        if b in self.flying:
            return True
        if self.at[b] == len(steps):
            return False
        step = steps[self.at[b]]
        if step["depid"] != "-1" and (g, int(step["depid"]), int(step["deps"])) not in self.done:
            return False
        if step["type"][0] == "r" and step["type"] != "re" and not self.queues.get(into):
            return False
        return not step["type"].endswith("s") or self.slots is None or self.room[out] < self.slots

    def act(self, b: int) -> None:
        if b in self.flying:
            self.end(b)
        else:
            self.begin(b)

    def begin(self, b: int) -> None:
        _, _, out, into, steps = self.blocks[b]
        step, (reads, writes) = steps[self.at[b]], self.uses(b)
        for other in self.flying:
            theirs = self.uses(other)
            if set(writes) & set(theirs[0] + theirs[1]) or set(theirs[1]) & set(reads):
                raise FaultError("race")
        if set(writes) & set(reads) and any(
            r in writes and writes.index(r) != i for i, r in enumerate(reads[: len(writes)])
        ):
            raise FaultError("race with itself")
        count = int(step["cnt"])
        total = [Counter() for _ in range(count)]
        if step["type"][0] == "r" and step["type"] != "re":
            message = self.queues[into].pop(0)
            if len(message) != count:
                raise FaultError("another number of chunks")
            total = [Counter(each) for each in message]
        for i, cell in enumerate(reads):
            total[i % count] = total[i % count] + self.held.get(cell, Counter(["uninitialised"]))
        if step["type"].endswith("s"):
            self.room[out] += 1
        self.flying[b] = total

    def end(self, b: int) -> None:
        g, name, out, into, steps = self.blocks[b]
        step, total = steps[self.at[b]], self.flying[b]
        for cell, value in zip(self.uses(b)[1], total, strict=False):
            self.held[cell] = value
        del self.flying[b]
        if step["type"][0] == "r" and step["type"] != "re":
            self.room[into] -= 1
        if step["type"].endswith("s"):
            self.queues.setdefault(out, []).append(total)
        self.done.add((g, name, self.at[b]))
        self.at[b] += 1

    def need_right(self) -> None:
        if any(at < len(block[4]) for at, block in zip(self.at, self.blocks, strict=True)):
            raise FaultError("deadlock")
        if any(self.queues.values()):
            raise FaultError("a message without a receiver")
        if any(self.held.get(cell) != want for cell, want in self.asked().items()):
            raise FaultError("wrong result")


def play(text: str, seed: int) -> str | None:
    """One random order: what went wrong.

    Half of the orders let some blocks wait as long as possible.
    """
    rng = random.Random(seed)
    slots = SLOTS[ElementTree.fromstring(text).get("proto")] if seed % 4 == 3 else None
    run = Run(text, slots)
    rank = [rng.random() for _ in run.blocks]
    try:
        while ready := [b for b in range(len(run.blocks)) if run.ready(b)]:
            b = max(ready, key=rank.__getitem__) if seed % 2 else rng.choice(ready)
            run.act(b)
            if seed % 2 and rng.random() < 0.1:
                rank[b] = rng.random()
        run.need_right()
    except FaultError as fault:
        return str(fault)
    return None


def play_all(text: str) -> tuple[set[str], int]:
    """Every order of a small program: what can go wrong, and how many states there are."""
    faults, seen, todo = set(), set(), [Run(text, None)]
    while todo:
        run = todo.pop()
        ready = [b for b in range(len(run.blocks)) if run.ready(b)]
        try:
            if not ready:
                run.need_right()
            for b in ready:
                after = copy.deepcopy(run)
                after.act(b)
                if (key := after.key()) not in seen:
                    seen.add(key)
                    todo.append(after)
        except FaultError as fault:
            faults.add(str(fault))
    return faults, len(seen)

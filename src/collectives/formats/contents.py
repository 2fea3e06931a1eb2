"""What every cell holds at the end: each contribution counted, in one order of the steps.

If no two steps race, every order ends the same, so that one order proves all of them.
"""

from collections.abc import Mapping

from collectives.formats.layout import Layout
from collectives.formats.order import Order
from collectives.formats.program import Program
from collectives.formats.replay import replay
from collectives.formats.table import wrong
from collectives.schedule import ScheduleError

# A contribution (rank * k + chunk), and how often it is in a sum: once, or 2 for "more than once".
Held = Mapping[int, int]
UNINITIALISED = -1
NOTHING: Held = {UNINITIALISED: 1}


class Contents:
    """The cells of all GPUs after the whole program, and which step wrote each last."""

    def __init__(self, program: Program, order: Order, layout: Layout) -> None:
        self.program, self.layout = program, layout
        self.held: list[Held] = [NOTHING] * len(layout.gpu_of_cell)
        self.writer: dict[int, int] = {}
        self.again: dict[int, int] = {}  # a contribution, and the step that first counted it again
        for cell, contribution in layout.before().items():
            self.held[cell] = {contribution: 1}
        for number, written, _ in replay(program, order, layout, self.held, self._add):
            self.writer |= dict.fromkeys(written, number)

    def _add(self, number: int, one: Held, other: Held) -> Held:
        total = dict(one)
        for contribution, times in other.items():
            total[contribution] = min(total.get(contribution, 0) + times, 2)
            if total[contribution] > 1:
                self.again.setdefault(contribution, number)
        return total

    def need_right(self) -> None:
        """Raise ScheduleError for a cell that does not hold what the collective asks for."""
        for cell, rank, chunk, asked in self.layout.after():
            held = self.held[cell]
            if held.keys() != asked or any(times > 1 for times in held.values()):
                raise self._error(cell, rank, chunk, asked)

    def _error(self, cell: int, rank: int, chunk: int, asked: set[int]) -> ScheduleError:
        held, place = self.held[cell], self.layout.place(cell)
        twice = sorted(each for each, times in held.items() if times > 1 and each >= 0)
        faults = {
            "uninitialised data": UNINITIALISED in held,
            f"{self._names(twice)} more than once": twice,
            f"{self._names(sorted(held.keys() - asked - {UNINITIALISED}))}, not asked for": held.keys() - asked - {-1},
            f"not {self._names(sorted(asked - held.keys()))}": asked - held.keys(),
        }
        found = ", ".join(what for what, is_so in faults.items() if is_so)
        what = f"wrong result: GPU {rank}, chunk {chunk} (cell {place}) holds {found}"
        last = self.again[twice[0]] if twice and twice[0] in self.again else self.writer.get(cell)
        if last is None:
            return ScheduleError(f"{what}; no step writes this cell")
        note = "counted again here" if twice else f"the last write of {place}"
        return wrong(self.program, last, what, note)

    def _names(self, contributions: list[int]) -> str:
        """Contributions of ranks, of a few of them."""
        k = self.layout.contract.k
        names = [f"chunk {each % k} of rank {each // k}" for each in contributions]
        return ", ".join(names if len(names) <= 4 else [*names[:3], f"… ({len(names) - 3} more)"])

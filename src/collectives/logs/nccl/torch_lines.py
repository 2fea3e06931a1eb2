"""What torch prints about NCCL: its watchdog's timeouts, its report on the ranks that did not join, NCCL's errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from collectives.logs.finding import Finding, Place, ranks
from collectives.units import many

# What is kept: ranks that timed out, and sentences of reports.
MOST_TIMEOUTS, MOST_REPORTS = 1 << 16, 64

WATCHDOG = re.compile(
    r"\[Rank (\d{1,7})\] Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(\d{1,15}), OpType=(\w{1,40}), "
    r"NumelIn=(\d{1,15}), NumelOut=(\d{1,15}), Timeout\(ms\)=(\d{1,12})\)"
)

# With TORCH_NCCL_DESYNC_DEBUG, as `TraceUtils.h` writes it.
REPORT = re.compile(
    r"\[(\d[\d, ]{0,9999})\] (finished collective #\d{1,19}, but didn't join collective #\d{1,19}"
    r"|joined but didn't finish collective #\d{1,19}|are the lagging ranks)"
)

# NCCL's words for a result, behind what torch and NCCL's examples print before them.
ERROR = re.compile(
    r"NCCL error(?: in)?:? (?:\S{1,300}:\d{1,7},? )?'?(unhandled (?:cuda|system) error|internal error"
    r"|invalid (?:argument|usage)|remote process exited)"
)
# The line after this one has NCCL's last warning.
LAST = re.compile(r"^(\[rank\d{1,7}\]: ?|)Last error:$")


class Timeout(NamedTuple):
    """A collective that torch's watchdog gave up: its name and number, elements in and out, and milliseconds."""

    collective: str
    number: int
    sent: int
    received: int
    milliseconds: int


@dataclass
class Torch:
    """All that was found."""

    timeouts: dict[int, tuple[Timeout, Place]] = field(default_factory=dict)  # by rank
    reports: dict[str, Place] = field(default_factory=dict)  # sentences about ranks that did not join
    last: str | None = None  # how the next line begins, if it has NCCL's last warning

    def line(self, at: Place, text: str) -> str:
        """Keep what a line says; NCCL's error in it, or "" if there is none."""
        start, found = self.last, LAST.search(text)
        self.last = found[1] if found else None
        if start is not None and text.startswith(start) and not text.startswith("Exception raised"):
            return text.removeprefix(start).strip()
        if (found := WATCHDOG.search(text)) and len(self.timeouts) < MOST_TIMEOUTS:
            timeout = Timeout(found[3], *(int(found[i]) for i in (2, 4, 5, 6)))
            self.timeouts.setdefault(int(found[1]), (timeout, at))
        elif (found := REPORT.search(text)) and len(self.reports) < MOST_REPORTS:
            did = found[2].replace("didn't", "did not").replace("are the lagging ranks", "never joined a collective")
            those = ranks(int(each) for each in re.findall(r"\d{1,9}", found[1]))
            self.reports.setdefault(f"{those} {did}", at)
        found = ERROR.search(text)
        return found[1] if found else ""


def is_torch(text: str) -> bool:
    """Whether a text has a timeout of the watchdog, or an error of NCCL."""
    return WATCHDOG.search(text) is not None or ERROR.search(text) is not None


def timeouts(of: Torch, size: int) -> Iterator[Finding]:
    """Collectives that timed out, and the ranks that do not wait there; `size`: the ranks of the job, 0 if unknown."""
    waiting: dict[Timeout, list[int]] = {}
    for rank, (timeout, _) in of.timeouts.items():
        waiting.setdefault(timeout, []).append(rank)
    for timeout, those in waiting.items():
        others = set(range(max([size, *(1 + rank for rank in of.timeouts)]))) - set(those)
        what = f"{timeout.collective} {timeout.number} ({many(timeout.sent, 'element')} in, {timeout.received:,} out)"
        follows = "the log does not say how many ranks there are: one without a line here may not have arrived"
        if of.reports:
            follows = f"torch reports, counting from 1: {'; '.join(of.reports)}"
        elif others:
            follows = f"{ranks(others)} did not report it, and may not have arrived"
        elif size:
            follows = "all ranks arrived: a link or a GPU stopped, not the program"
        yield Finding(
            "timeout",
            f"{ranks(those)} waited {timeout.milliseconds / 1000:g} s in {what}",
            follows,
            "run again with TORCH_FR_BUFFER_SIZE=2000 and TORCH_FR_DUMP_TEMP_FILE set, and read the dumps of all ranks",
            (of.timeouts[those[0]][1], *of.reports.values())[:2],
        )

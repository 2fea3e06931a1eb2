"""A timeline of a hang: four ranks call all-reduces, and one of them does not come to the last."""

from __future__ import annotations

import pandas as pd

from collectives.figures.style import Picture
from collectives_book.figures import kit
from collectives_book.figures.lanes import lanes

RANKS, MISSING = 4, 2
# Seconds that a rank computes before a call, that the call takes, and until its timeout.
COMPUTES, SUMS, TIMEOUT = 1.0, 0.5, 3.0
FIRST, LAST = 4, 6  # the calls that are shown
COLOURS = {"computes": "faint", "all-reduce": "#0072B2", "waits in it": "#D55E00"}
ABOUT = (
    "A hang as a timeline: ranks 0, 1 and 3 wait in call 6 until the timeout; rank 2 computes and "
    "never makes it, so its last call is 5"
)


def hang() -> Picture:
    """Return the timeline: three ranks wait in call 6 until their timeout, and rank 2 has not made it."""
    bars: list[dict[str, object]] = []
    for rank in range(RANKS):
        bars += _bars(rank)
    rows = pd.DataFrame(bars).fillna({"text": ""}).assign(panel="")
    axis = kit.Axis("seconds", "{:.0f}".format)
    return lanes(rows, axis, ABOUT, COLOURS, facet="panel")


def _bars(rank: int) -> list[dict[str, object]]:
    """Return what one rank does, one bar after another."""
    lane = f"rank {rank}"
    now = 0.0
    bars: list[dict[str, object]] = []
    for call in range(FIRST, LAST + 1):
        is_last = call == LAST
        computes = COMPUTES + (TIMEOUT if is_last and rank == MISSING else 0.0)
        bars.append({"lane": lane, "begin": now, "end": now + computes, "what": "computes"})
        now += computes
        if is_last and rank == MISSING:
            break
        what, takes = ("waits in it", TIMEOUT) if is_last else ("all-reduce", SUMS)
        bar = {
            "lane": lane,
            "begin": now,
            "end": now + takes,
            "what": what,
            "text": f"{call}",
        }
        bars.append(bar)
        now += takes
    return bars

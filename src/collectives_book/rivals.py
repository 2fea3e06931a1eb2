"""All-reduce on one machine by every library that serves there and by ours, and the best of them in each cell.

A cell is a number of ranks, a size, and how calls follow each other: each after a barrier, or back
to back. Equal measurements are launched several times, in turn, because launches differ more than
calls do.
"""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Annotated, Any

import pandas as pd
from pydantic import Field, model_validator

from collectives.backends import named, need_persistent, presence
from collectives.bench import Row, Settings
from collectives.config import Seconds
from collectives.units import MAX_SECONDS, format_bytes
from collectives_book.experiment import (
    Name,
    Ranks,
    Repetitions,
    Size,
    Some,
    SweepExperiment,
)
from collectives_book.figures.kit import Rows
from collectives_book.figures.measured import label

OURS = "p2p"
# Of buffers from this size on, a tenth of the calls.
LARGE, FEWER = 1 << 20, 10
CELL = ["ranks", "bytes", "timing"]
SAID = {"met": "after a barrier", "back_to_back": "back to back"}


class Rivals(SweepExperiment):
    """Parameters of the comparison; a rival that is absent on this machine is left out."""

    ranks: Some[Ranks]
    sizes: Some[Size]
    rivals: Some[Name]
    launches: Repetitions
    repetitions: Repetitions
    warmups: Annotated[int, Field(ge=0)]
    where: Name
    timeout: Annotated[Seconds, Field(gt=0, le=MAX_SECONDS)]

    @model_validator(mode="after")
    def _are_others(self) -> Rivals:
        if OURS in self.rivals:
            raise ValueError(f"rivals: got {OURS}, which is ours, expected others")
        return self

    def measurements(self) -> list[Settings]:
        """Return all launches in turn, each with every number of ranks and way to call."""
        return self._measurements(self.rivals)

    def here(self) -> list[Settings]:
        """Return the same without the rivals that are absent here."""
        absent = self.left_out()
        return self._measurements([typed for typed in self.rivals if typed not in absent])

    def left_out(self) -> dict[str, str]:
        """Return why rivals are absent on this machine, by the name that was typed."""
        reasons = {typed: presence(named(typed)[0]).absent for typed in self.rivals}
        return {typed: reason for typed, reason in reasons.items() if reason}

    def _measurements(self, rivals: list[str]) -> list[Settings]:
        everyone = [OURS, *rivals]
        preparing = [typed for typed in everyone if _is_persistent(typed)]
        small = [nbytes for nbytes in self.sizes if nbytes < LARGE]
        large = [nbytes for nbytes in self.sizes if nbytes >= LARGE]
        turns = product(
            range(1, self.launches + 1), self.ranks, (small, large), (False, True), (False, True)
        )
        return [
            Settings(
                backends=preparing if persistent else everyone,
                ranks=ranks,
                bytes=sizes,
                where=self.where,
                back_to_back=back_to_back,
                persistent=persistent,
                launch=launch,
                repetitions=_calls(self.repetitions, sizes),
                warmups=_calls(self.warmups, sizes),
                timeout=self.timeout,
            )
            for launch, ranks, sizes, back_to_back, persistent in turns
            if sizes
        ]


def _calls(calls: int, sizes: list[int]) -> int:
    return -(-calls // FEWER) if sizes[0] >= LARGE else calls


def _is_persistent(typed: str) -> bool:
    try:
        need_persistent(typed)
    except ValueError:
        return False
    return True


def table(rows: Rows) -> Rows:
    """Return our time beside the best rival's in each cell, ordinary and prepared, in microseconds.

    A time is the median over launches of each launch's median. An ordinary call of ours has ordinary
    rivals; a prepared one has the ordinary and the prepared calls of each. *ratio* is the best
    rival's time over ours: above 1 ours is faster. *place* is ours among all libraries, of which each
    counts once.
    """
    medians = _medians(rows)
    is_ours = medians.series == OURS
    cells = [_cell(ours, medians[~is_ours]) for ours in medians[is_ours].itertuples()]
    return pd.DataFrame(cells)


def everyone(rows: Rows) -> Rows:
    """Return the microseconds of every back end's ordinary and prepared call in each cell, a line for each cell."""
    medians = _medians(rows)
    columns = medians.series + medians.persistent.map({True: ", prepared", False: ""})
    named = medians.assign(
        call=columns, size=medians.bytes.map(format_bytes), calls=medians.timing.map(SAID)
    )
    return named.pivot_table("median_us", ["ranks", "size", "calls"], "call", sort=False)


def _medians(rows: Rows) -> Rows:
    """Return the median over launches of each launch's median."""
    right = rows[rows.error.isna()]
    pairs = zip(right.backend, right.algorithm, strict=True)
    # What "auto" takes may differ between launches, and is one series.
    series = [OURS if name == OURS else label(name, algorithm) for name, algorithm in pairs]
    columns = [*CELL, "persistent", "backend", "series"]
    grouped = right.assign(series=series).groupby(columns, sort=False)
    medians: Rows = grouped.median_us.median().reset_index()
    return medians


def _cell(ours: Any, rivals: Rows) -> Row:
    """Return the line of one cell."""
    is_here = (rivals[CELL] == [getattr(ours, name) for name in CELL]).all(axis=1)
    fit = rivals[is_here & (~rivals.persistent | ours.persistent)]
    best = fit.loc[fit.median_us.idxmin()]
    faster = fit[fit.median_us < ours.median_us]
    return {
        "ranks": ours.ranks,
        "size": format_bytes(ours.bytes),
        "calls": SAID[ours.timing],
        "ours": "prepared" if ours.persistent else "ordinary",
        "ours, us": ours.median_us,
        "best rival": f"{best.series}, prepared" if best.persistent else best.series,
        "its time, us": best.median_us,
        "ratio": best.median_us / ours.median_us,
        "place": 1 + faster.backend.nunique(),
    }


def side_by_side(compared: Rows) -> Rows:
    """Return a `table` as HTML: our microseconds, the best rival's, and below its name; a column for each size.

    A component of Open MPI has its own name, and a star marks a prepared call.
    """
    ours, its = (compared[name].map(_us) for name in ("ours, us", "its time, us"))
    rival = compared["best rival"].str.replace(r"mpi \((.*)\)", r"\1", regex=True)
    rival = rival.str.replace(", prepared", "*")
    texts = compared.assign(text=ours + " / " + its + "<br>" + rival)
    wide = texts.set_index(["ranks", "calls", "ours", "size"]).text.unstack(sort=False)
    lines = [(f"{ranks} ranks, {calls}", call) for ranks, calls, call in wide.index]
    wide.index = pd.MultiIndex.from_tuples(lines)
    return wide.rename_axis(columns=None)


def _us(microseconds: float) -> str:
    return f"{microseconds:.1f}" if microseconds < 10 else f"{microseconds:,.0f}"


def places(compared: Rows) -> str:
    """Return in a sentence in how many cells of a `table` ours is first, second, third and later.

    >>> places(pd.DataFrame({"place": [1, 2, 1, 5]}))
    'Ours is first in 2 of 4 cells, second in 1, third in 0 and later in 1.'
    """
    counted = Counter(min(place, 4) for place in compared.place)
    first, second, third, later = (counted[place] for place in (1, 2, 3, 4))
    return (
        f"Ours is first in {first} of {len(compared)} cells, second in {second}, "
        f"third in {third} and later in {later}."
    )

"""Rows of the experiment ``asynchronous`` as sentences, whose numbers come from the rows."""

from __future__ import annotations

from collectives.units import duration, many
from collectives_book.asynchronous.figures import added, by_mode, modes, name, slowness
from collectives_book.figures import statements
from collectives_book.figures.statements import Row, Rows

VISIBLE = 0.01  # the least difference of two losses that their figure shows


def kept(rows: Rows, slow: str) -> str:
    """A sentence: what is left of each mode's updates per second when a worker is slow."""
    table = by_mode(rows)
    even, now = (table[table.slow == each].set_index("mode") for each in ("nobody", slow))
    who = slowness(next(now.itertuples())).replace("\n", " ")
    left = [
        f"{name(mode, now.bound[mode])} {100 * even.median_us[mode] / now.median_us[mode]:.0f}%" for mode in now.index
    ]
    return f"If {who}, the modes keep this share of their updates per second: {statements.listed(left)}."


def faster(rows: Rows, slow: str, one: str, other: str) -> str:
    """A clause: how many times as many updates per second one mode makes as another, or a tie; and how sure that is.

    Of few runs it gives the ratio of the medians, and says that they prove nothing.

    >>> import pandas as pd
    >>> common = {"slow": "turns", "bound": 4, "updates": 100}
    >>> seconds = {"synchronous": [4.0] * 5, "stale": [2.0] * 5, "asynchronous": [2.0] * 5}
    >>> rows = pd.DataFrame([common | {"mode": mode, "seconds": each} for mode in seconds for each in seconds[mode]])
    >>> faster(rows, "turns", "stale", "synchronous").partition(" as ")[2]
    'many updates per second as *synchronous* (5 runs each, 93.75% intervals)'
    >>> faster(rows, "turns", "asynchronous", "stale")
    '*asynchronous* and *at most 4 steps ahead* show no significant difference (93.75% intervals)'
    """
    table = by_mode(rows[rows.slow == slow]).set_index("mode", drop=False)
    first, second = (next(table.loc[[mode]].itertuples()) for mode in (one, other))
    names = [name(mode, int(table.bound.iloc[0])) for mode in (one, other)]
    counts = [len(each.samples) for each in (first, second)]
    sure = statements.intervals(counts)
    unproved = statements.few(first) or statements.few(second)
    if not (unproved or statements.apart(first, second)):
        return f"*{names[0]}* and *{names[1]}* show no significant difference ({sure})"
    times = f"{second.median_us / first.median_us:.2f} times"
    of = f"{statements.span(counts, str)} runs each, {'too few for proof' if unproved else sure}"
    return f"*{names[0]}* makes {times} as many updates per second as *{names[1]}* ({of})"


def lag(rows: Rows) -> str:
    """A sentence: how stale the parameters were in each mode, and the delays of the gradients."""
    parts = []
    for mode, runs in modes(rows[rows["mode"] != "all_reduce"]):
        delays = added(runs.delay)
        largest = len(added(runs.staleness)) - 1
        parts.append(f"{mode} {largest} ({_median(delays)}, {len(delays) - 1})")
    return f"Largest staleness, and in brackets the median and the largest delay: {'; '.join(parts)}."


def share(rows: Rows) -> str:
    """A clause: how many of the asynchronous updates were the slow worker's."""
    counts = [int(row.by_worker[row.slow_worker]) / row.updates for row in rows.itertuples()]
    return (
        f"the slow worker contributed {statements.span([100 * each for each in counts], '{:.1f}'.format)}% of the "
        f"updates, not {100 / rows.workers.iloc[0]:.1f}%"
    )


def reached(rows: Rows) -> str:
    """A sentence: how many updates and how much time each mode took to one loss that every run reaches."""
    goal = max(min(row.losses) for row in rows.itertuples())
    parts = []
    for mode, runs in modes(rows):
        first = [_first(row, goal) for row in runs.itertuples()]
        parts.append(
            f"{mode} {statements.span([at for at, _ in first], '{:.0f}'.format)} "
            f"updates and {statements.span([seconds for _, seconds in first], duration)}"
        )
    return f"To a loss of {goal:.2f}, the lowest that every run reaches, it took {'; '.join(parts)}."


def _first(row: Row, goal: float) -> tuple[int, float]:
    nth = next(nth for nth, value in enumerate(row.losses) if value <= goal)
    return nth * row.workers, row.at[nth]


def last(rows: Rows) -> str:
    """A sentence: the loss and the accuracy of each mode after all updates."""
    parts = []
    for mode, runs in modes(rows):
        losses = statements.span([row.losses[-1] for row in runs.itertuples()], "{:.2f}".format)
        right = statements.span(100 * runs.accuracy, "{:.0f}%".format)
        parts.append(f"{mode} {losses} ({right} of the test images correct)")
    return f"After {rows.updates.iloc[0]} updates the loss is: {'; '.join(parts)}."


def beside(rows: Rows) -> str:
    r"""Sentences: at how many points a mode that may be ahead shows a higher or lower loss than the synchronous one.

    >>> import pandas as pd
    >>> losses = [("synchronous", [2.0, 1.0, 0.5]), ("stale", [2.0, 1.2, 0.5]), ("stale", [2.0, 1.1, 0.4])]
    >>> said = beside(pd.DataFrame([{"mode": mode, "bound": 4, "losses": each} for mode, each in losses]))
    >>> print(said.replace(". ", ".\n"))
    On the left, compare each mode with the synchronous runs at 3 points, and ignore differences below 0.01.
    All runs of *at most 4 steps ahead* are above them at 1 point and below them at 0.
    """
    base = _ends(rows[rows["mode"] == "synchronous"])
    parts = [
        f"On the left, compare each mode with the synchronous runs at {many(len(base), 'point')}, "
        f"and ignore differences below {VISIBLE}."
    ]
    for mode, runs in modes(rows[rows["mode"].isin(["stale", "asynchronous"])]):
        pairs = [*zip(_ends(runs), base, strict=True)]
        above = sum(low - highest >= VISIBLE for (low, _), (_, highest) in pairs)
        below = sum(lowest - high >= VISIBLE for (_, high), (lowest, _) in pairs)
        parts.append(f"All runs of *{mode}* are above them at {many(above, 'point')} and below them at {below}.")
    return " ".join(parts)


def _ends(rows: Rows) -> list[tuple[float, float]]:
    """The lowest and the highest loss at each point."""
    return [(min(each), max(each)) for each in zip(*rows.losses, strict=True)]


def repeatable(rows: Rows) -> str:
    """A sentence: in how many different results the runs of each mode ended, to the bit."""
    parts = [f"{mode} {runs.digest.nunique()} from {len(runs)} runs" for mode, runs in modes(rows)]
    return f"Number of different results, compared to the bit: {'; '.join(parts)}."


def _median(counts: list[int]) -> int:
    """The lower median of counted values.

    >>> _median([0, 3, 1]), _median([1, 0, 1])
    (1, 0)
    """
    half, seen = (sum(counts) + 1) // 2, 0
    for value, count in enumerate(counts):
        seen += count
        if seen >= half:
            return value
    raise ValueError("a median needs values: got none")

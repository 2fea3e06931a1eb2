"""How long calls took that completed: the rank that the others wait for, and a link that is slower than the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from collectives.logs import waiting
from collectives.logs.finding import Finding, Place
from collectives.logs.flight.agreement import elements
from collectives.logs.flight.groups import Group, pairs
from collectives.units import duration

# A link is slow if its messages take so many times as long as the median of the others, with so many on each.
SLOW, FEWEST = 2.0, 3


def stragglers(of: Group, places: Mapping[int, Place]) -> Iterator[Finding]:
    """For each kind of collective the rank that begins last: there it takes the least time."""
    made = {rank: calls for rank, calls in of.calls.items() if calls}
    if len(made) < len(of.ranks) or len(made) < 2:
        return
    common = set.intersection(*(set(calls) for calls in made.values()))
    kinds: dict[tuple[str, int], list[list[int]]] = {}
    for key in sorted(common):
        calls = [made[rank][key] for rank in of.ranks]
        if all(call.lasted for call in calls):
            kind = calls[0].operation, elements(calls[0].inputs)
            kinds.setdefault(kind, []).append([call.lasted for call in calls])
    members = [(f"rank {rank}", places[rank]) for rank in of.ranks]
    for (operation, _), lasted in kinds.items():
        yield from waiting.findings(operation, members, np.array(lasted, dtype=float).T / 1e3)


def slow_links(of: Group, places: Mapping[int, Place]) -> Iterator[Finding]:
    """Links whose messages took much longer than messages of their size on the median link."""
    sizes: dict[int, dict[tuple[int, int], float]] = {}
    for ends, (_, receives) in pairs(of).items():
        times: dict[int, list[int]] = {}
        for entry in receives:
            if entry.lasted:
                times.setdefault(elements(entry.outputs), []).append(entry.lasted)
        for size, lasted in times.items():
            if len(lasted) >= FEWEST:
                sizes.setdefault(size, {})[ends] = float(np.median(lasted)) / 1e9
    for size, took in sizes.items():
        usual = float(np.median([*took.values()]))
        for (sender, receiver), seconds in took.items():
            if len(took) > 2 and seconds > SLOW * usual:
                yield Finding(
                    "slow link",
                    f"rank {sender} to rank {receiver}: a message of {size:,} elements takes {duration(seconds)}, and "
                    f"{duration(usual)} on the median of {len(took)} links",
                    f"all that crosses this link waits for it; it is slow, or rank {sender} sends late",
                    f"measure it alone, and rank {sender} with another one: `sendrecv_perf` on the two hosts",
                    (places[receiver],),
                )

"""Schedules that race in a page: two side by side, on one clock, each message as long under way as a machine takes."""

import json
from collections.abc import Sequence
from html import escape
from typing import Any, NamedTuple

from collectives.algorithms import build
from collectives.figures.player import player_data
from collectives.machine import machine
from collectives.simulator.trace import flights

# How a sentence names an algorithm, where that is not the name in the table.
SPOKEN = {"two_tree": "two trees"}


class RacePlayer(NamedTuple):
    """Schedules as an HTML element; a page without JavaScript shows how long each takes.

    A lane has a schedule, and for each step when its messages start and arrive, in seconds.
    """

    lanes: Sequence[dict[str, Any]]
    nbytes: int
    name: str
    autoplay: bool

    def _repr_html_(self) -> str:
        data = json.dumps(
            {"bytes": self.nbytes, "lanes": self.lanes}, separators=(",", ":")
        ).replace("<", "\\u003c")
        spoken = " and ".join(lane["name"] for lane in self.lanes)
        times = "; ".join(f"{lane['name']}: {lane['seconds'] * 1e6:.0f} µs" for lane in self.lanes)
        return (
            f'<schedule-race id="{escape(self.name)}" role="group" aria-label="Race: {escape(spoken)}"'
            f"{' autoplay' if self.autoplay else ''}><p>{escape(times)}</p>"
            f'<script type="application/json">{data}</script></schedule-race>'
        )


def race(
    collective: str,
    algorithms: Sequence[str],
    p: int,
    *,
    on: str,
    nbytes: int,
    name: str,
    autoplay: bool = False,
) -> RacePlayer:
    """Play algorithms side by side on ``p`` ranks of the machine ``on``, a preset or a YAML file.

    ``name`` is the id.

    With ``autoplay`` it plays once when it comes into view, unless the reader asked for no motion.
    Raises ValueError like `build` and `machine`.

    >>> [round(lane["seconds"] * 1e6) for lane in race(
    ...     "all_reduce", ["ring", "two_tree"], 16, on="ethernet", nbytes=8, name="hook").lanes]
    [900, 270]
    """
    return RacePlayer(
        [_lane(collective, each, p, on, nbytes) for each in algorithms],
        nbytes,
        name,
        autoplay,
    )


def _lane(collective: str, algorithm: str, p: int, on: str, nbytes: int) -> dict[str, Any]:
    schedule = build(collective, algorithm, p)
    steps = flights(schedule, machine(on), nbytes, algorithm)
    ends = [max(ends, default=0.0) for _, ends in steps]
    return {
        "name": SPOKEN.get(algorithm, algorithm.replace("_", " ")),
        "data": player_data(schedule, algorithm),
        "seconds": _short(max(ends, default=0.0)),
        "steps": [[[_short(time) for time in times] for times in step] for step in steps],
    }


def _short(seconds: float) -> float:
    return float(f"{seconds:.6g}")

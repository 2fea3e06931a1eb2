"""Schedules that race in a page: two side by side, on one clock, each message as long under way as a machine takes."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, NamedTuple

from collectives.figures.player import player_data
from collectives.schedule import Schedule

# How a sentence names an algorithm, where that is not the name in the table.
SPOKEN = {"two_tree": "two trees"}


class Lane(NamedTuple):
    """A schedule, and when its messages start and arrive: for each step (starts, arrivals), in seconds.

    A step's messages are in the order of `Step.messages`.
    """

    algorithm: str
    schedule: Schedule
    steps: Sequence[tuple[Sequence[float], Sequence[float]]]

    @property
    def spoken(self) -> str:
        """The algorithm, as a sentence names it."""
        return SPOKEN.get(self.algorithm, self.algorithm.replace("_", " "))

    @property
    def seconds(self) -> float:
        """When the last message arrives."""
        return max((end for _, ends in self.steps for end in ends), default=0.0)


@dataclass(frozen=True)
class Race:
    """Lanes as an HTML element; a page without JavaScript shows how long each takes."""

    lanes: tuple[Lane, ...]
    nbytes: int
    name: str
    autoplay: bool

    def _repr_html_(self) -> str:
        data = {"bytes": self.nbytes, "lanes": [_lane(lane) for lane in self.lanes]}
        script = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
        spoken = " and ".join(lane.spoken for lane in self.lanes)
        times = "; ".join(f"{lane.spoken}: {lane.seconds * 1e6:.0f} µs" for lane in self.lanes)
        return (
            f'<schedule-race id="{escape(self.name)}" role="group" aria-label="Race: {escape(spoken)}"'
            f"{' autoplay' if self.autoplay else ''}><p>{escape(times)}</p>"
            f'<script type="application/json">{script}</script></schedule-race>'
        )


def _lane(lane: Lane) -> dict[str, Any]:
    steps = [[[float(f"{time:.6g}") for time in times] for times in step] for step in lane.steps]
    return {
        "name": lane.spoken,
        "data": player_data(lane.schedule, lane.algorithm),
        "seconds": float(f"{lane.seconds:.6g}"),
        "steps": steps,
    }

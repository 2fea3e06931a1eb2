"""Schedules that race in a page: two side by side, on one clock, each message as long under way as a machine takes."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, NamedTuple

from collectives.algorithms import build
from collectives.figures.player import player_data
from collectives.machine import machine
from collectives.schedule import Schedule
from collectives.simulator.trace import flights

# How a sentence names an algorithm, where that is not the name in the table.
SPOKEN = {"two_tree": "two trees"}


class Track(NamedTuple):
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
class RacePlayer:
    """Tracks as an HTML element; a page without JavaScript shows how long each takes."""

    tracks: tuple[Track, ...]
    nbytes: int
    name: str
    autoplay: bool

    def _repr_html_(self) -> str:
        data = {"bytes": self.nbytes, "lanes": [_page_data(track) for track in self.tracks]}
        script = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
        spoken = " and ".join(track.spoken for track in self.tracks)
        times = "; ".join(f"{track.spoken}: {track.seconds * 1e6:.0f} µs" for track in self.tracks)
        return (
            f'<schedule-race id="{escape(self.name)}" role="group" aria-label="Race: {escape(spoken)}"'
            f"{' autoplay' if self.autoplay else ''}><p>{escape(times)}</p>"
            f'<script type="application/json">{script}</script></schedule-race>'
        )


def race(
    collective: str, algorithms: Sequence[str], p: int, *, on: str, nbytes: int, name: str, autoplay: bool = False
) -> RacePlayer:
    """Algorithms side by side on ``p`` ranks of the machine ``on``, a preset or a YAML file; ``name`` is the id.

    With ``autoplay`` it plays once when it comes into view, unless the reader asked for no motion. Raises ValueError
    like `build` and `machine`.

    >>> [round(track.seconds * 1e6) for track in race(
    ...     "all_reduce", ["ring", "two_tree"], 16, on="ethernet", nbytes=8, name="hook").tracks]
    [900, 270]
    """
    return RacePlayer(tuple(_track(collective, each, p, on, nbytes) for each in algorithms), nbytes, name, autoplay)


def _track(collective: str, algorithm: str, p: int, on: str, nbytes: int) -> Track:
    schedule = build(collective, algorithm, p)
    return Track(algorithm, schedule, flights(schedule, machine(on), nbytes, algorithm))


def _page_data(track: Track) -> dict[str, Any]:
    steps = [[[float(f"{time:.6g}") for time in times] for times in step] for step in track.steps]
    return {
        "name": track.spoken,
        "data": player_data(track.schedule, track.algorithm),
        "seconds": float(f"{track.seconds:.6g}"),
        "steps": steps,
    }

"""Schedules for the player in the book's pages: as JSON, as scripts that a page loads, and as an HTML element.

``python -m collectives.figures.player FOLDER`` writes the scripts.
"""

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from collectives.algorithms import ALGORITHMS, build, is_for_links, is_own, is_plan, names
from collectives.core.contracts import CONTRACTS, after, before, where
from collectives.core.grid import grid
from collectives.core.schedule import Schedule, Step, parts
from collectives.figures.layout import layout
from collectives.figures.style import colours
from collectives.renamed import current_name

VERSION = 1
EVERYONE = -1
RANKS = range(2, 17)
SEGMENTS = 2  # what the pages show of an algorithm that pipelines


def player_data(schedule: Schedule, algorithm: str) -> dict[str, Any]:
    """Return a schedule for the player, as values that JSON has: dicts, lists, numbers, text and None.

    ======================
    ==========================================================================================
    version                 1; it changes when an old reader would misread the data collective,
    algorithm   names p, k, root, parts       ranks; chunks; the root or null; parts into which the
    collective divides the buffer switches                number of switches, numbered from p on;
    their cells hold nothing at the start ranks_per_node          number of consecutive ranks on
    each node one_port                false if a rank may send or receive several messages in one
    step colours                 one for each chunk, as #rrggbb layout                  shape; x and
    y of every rank and switch in the unit square, y downwards; the radius of a
                            rank; around: places on the circle, or 0; nodes: the line [x, y, x, y]
                            of each node's ranks
    steps                   for each step the five columns [src, dst, chunk, count, add] (add: 1
    adds, 0 replaces) before                  [rank, chunk, count]: the rank has its own data in
    ``count`` chunks from this one on asked                   [rank, chunk, count, who]: at the end
    these chunks hold the contribution of rank ``who``,
                            or, if that is -1, of every rank
    ======================
    ==========================================================================================

    To play it, count for each cell (rank, chunk) how often it has each rank's contribution. A step
    reads all its rows before it writes any. A row that replaces overwrites the cell; a row that
    adds adds its counts, and so does every other such row. A cell outside ``before`` is
    uninitialised, and so is any sum with it. At the end every cell of ``asked`` has each
    contribution that is asked for exactly once, and no other.

    Raises ScheduleError for an unknown collective. Cost: a list entry for every row of every step.

    >>> data = player_data(build("all_reduce", "recursive_doubling", 2), "recursive_doubling")
    >>> data["steps"], data["before"], data["asked"]
    ([[[0, 1], [1, 0], [0, 0], [1, 1], [1, 1]]], [[0, 0, 1], [1, 0, 1]], [[0, 0, 1, -1], [1, 0, 1, -1]])
    """
    return {
        "version": VERSION,
        "collective": schedule.collective,
        "algorithm": algorithm,
        "p": schedule.p,
        "k": schedule.k,
        "root": schedule.root,
        "parts": parts(schedule.collective, schedule.p),
        "switches": schedule.switches,
        "ranks_per_node": schedule.ranks_per_node,
        "one_port": schedule.one_port,
        "colours": colours(schedule.k),
        "layout": _layout(schedule, algorithm),
        "steps": [_columns(step) for step in schedule.steps()],
        "before": [[rank, chunk, count] for rank, chunk, count, _ in _runs(_before(schedule))],
        "asked": [list(run) for run in _runs(_asked(schedule))],
    }


def _layout(schedule: Schedule, algorithm: str) -> dict[str, Any]:
    placed = layout(schedule, algorithm)
    x, y = placed.points.T.tolist()
    kept = {name: value for name, value in placed._asdict().items() if name != "points"}
    return {**kept, "x": x, "y": y, "nodes": [list(line) for line in placed.nodes]}


def _columns(step: Step) -> list[list[int]]:
    return [getattr(step, name).astype(int).tolist() for name in Step.__slots__]


Cell = tuple[int, int, int]
Run = tuple[int, int, int, int]


def _before(schedule: Schedule) -> Iterator[Cell]:
    """Yield the contributor of each cell at the start: (rank, chunk, contributor)."""
    for rank, chunk in np.argwhere(before(schedule)[: schedule.p, :, -1] == 0).tolist():
        yield rank, chunk, rank


def _asked(schedule: Schedule) -> Iterator[Cell]:
    """Yield the contributor that each cell must hold at the end: (rank, chunk, one contributor or EVERYONE)."""
    asked = after(schedule)[:, :-1]
    for (rank, chunk), who in zip(np.argwhere(where(schedule)).tolist(), asked, strict=True):
        yield rank, chunk, EVERYONE if who.all() else int(who.argmax())


def _runs(cells: Iterator[Cell]) -> Iterator[Run]:
    """Yield consecutive chunks of one rank with the same contributor as one run.

    >>> list(_runs(iter([(0, 0, 5), (0, 1, 5), (0, 3, 5), (1, 4, 5)])))
    [(0, 0, 2, 5), (0, 3, 1, 5), (1, 4, 1, 5)]
    """
    numbered = enumerate(cells)
    for _, run in groupby(numbered, lambda item: (item[1][0], item[1][1] - item[0], item[1][2])):
        members = [cell for _, cell in run]
        rank, chunk, who = members[0]
        yield rank, chunk, len(members), who


def shown(collective: str, algorithm: str, p: int) -> Schedule:
    """Return the schedule that pages show, in two segments if the algorithm pipelines.

    Raises ValueError like `build`.

    Packed trees have many chunks as they are, and one segment.

    >>> shown("broadcast", "chain", 4).k, shown("broadcast", "binomial", 4).k
    (2, 1)
    """
    return build(collective, algorithm, p, segments=1 if is_for_links(algorithm) else SEGMENTS)


def script(collective: str) -> str:
    """Return a script that gives the page every algorithm of a collective on 2 to 16 ranks.

    It is one assignment, ``(window.schedules ??= {})["reduce"] = {"flat": {"2": …, "3": …}, …};``,
    with a line for each algorithm. Cost: fifteen schedules for each algorithm.
    """
    algorithms = [
        f"{json.dumps(name)}: {_compact({p: player_data(shown(collective, name, p), name) for p in RANKS})}"
        for name in names(collective)
    ]
    body = ",\n".join(algorithms)
    return f"(window.schedules ??= {{}})[{json.dumps(collective)}] =\n{{\n{body}\n}}\n;\n"


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def write_scripts(folder: str | Path) -> list[Path]:
    """Write ``schedules-COLLECTIVE.js`` for every collective, except unchanged ones, and return all paths."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    written = {
        folder / f"schedules-{collective}.js": script(collective).encode()
        for collective in CONTRACTS
    }
    for path, content in written.items():
        if not path.exists() or path.read_bytes() != content:
            path.write_bytes(content)
    return list(written)


@dataclass(frozen=True)
class Player:
    """A player as an HTML element; a page without JavaScript shows the schedule as text."""

    collective: str
    algorithm: str
    p: int
    attributes: dict[str, str]

    def _repr_html_(self) -> str:
        schedule = shown(self.collective, self.algorithm, self.p)
        written = "".join(f' {name}="{escape(value)}"' for name, value in self.attributes.items())
        data = (
            _inside(player_data(schedule, _name(self.algorithm)))
            if is_elsewhere(self.algorithm)
            else ""
        )
        return (
            f"<schedule-player{written}>{data}<pre>{escape(grid(schedule))}</pre></schedule-player>"
        )


def is_elsewhere(algorithm: str) -> bool:
    """Return True for a schedule in none of the scripts: one of your own, a plan, or one for a machine's links."""
    return is_own(algorithm) or is_plan(algorithm) or is_for_links(algorithm)


def _name(algorithm: str) -> str:
    """Return the name without folders."""
    return Path(algorithm).name if is_own(algorithm) else algorithm


def _inside(data: dict[str, Any]) -> str:
    """Return the script with the data of a schedule that none of the page's scripts has."""
    text = _compact(data).replace("<", "\\u003c")
    return f'<script type="application/json">{text}</script>'


def player(
    collective: str, algorithm: str, p: int, *, name: str | None = None, **options: str | int
) -> Player:
    """Return the player for a chapter's code cell: a schedule to play, step through and replace.

    Options: ``step`` (how many steps have been played when the page opens), ``bytes`` (the size of
    the buffer, 1 MiB by default). ``name`` is the element's id, which is part of links to a step;
    two players of a page that start with the same schedule need different ones. A schedule of your
    own, ``file.py:function`` or ``file.xml``, a plan, ``direct2/ring3``, and one for a machine's
    links, ``packed_trees@dgx1``, are in the element itself. Raises ValueError for an unknown
    algorithm or option, and outside 2 to 16 ranks.

    >>> print(player("all_reduce", "recursive_doubling", 2, step=1)._repr_html_())
    <schedule-player id="all-reduce-recursive-doubling-2" collective="all_reduce" algorithm="recursive_doubling" p="2"
    step="1" role="group" aria-label="Schedule player: all-reduce by recursive doubling on 2 ranks"><pre>step |
    rank 0 | rank 1
       0 | +0&lt;1   | +0&lt;0</pre></schedule-player>
    """
    algorithm = current_name(algorithm)
    short = _name(algorithm)
    spoken = f"{collective.replace('_', '-')} by {short.replace('_', ' ')} on {p} ranks"
    identity = name or re.sub(r"[^\w-]", "-", f"{collective}-{short}-{p}").replace("_", "-")
    listed = (
        {}
        if is_elsewhere(algorithm)
        else {"collective": collective, "algorithm": algorithm, "p": p}
    )
    attributes = {"id": identity, **listed, **options}
    attributes |= {"role": "group", "aria-label": f"Schedule player: {spoken}"}
    _check_known(collective, algorithm, p, options)
    return Player(collective, algorithm, p, {key: str(value) for key, value in attributes.items()})


def _check_known(collective: str, algorithm: str, p: int, options: dict[str, str | int]) -> None:
    """Raise ValueError while the page is built, not when it is read."""
    if (collective, algorithm) not in ALGORITHMS and not is_elsewhere(algorithm):
        raise ValueError(f"no algorithm {algorithm!r} for {collective!r}")
    if p not in RANKS:
        raise ValueError(f"the player shows {RANKS[0]} to {RANKS[-1]} ranks, not {p}")
    unknown = set(options) - {"step", "bytes"}
    if unknown:
        raise ValueError(f"the player has no option {', '.join(sorted(unknown))}")
    if is_elsewhere(algorithm):
        shown(collective, algorithm, p)


if __name__ == "__main__":
    write_scripts(*sys.argv[1:2])

"""Findings with their sentences and places.

`advice.toml` has the sentences of every kind of finding.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Sequence
from importlib import resources
from typing import TYPE_CHECKING, NamedTuple

from collectives.units import runs
from collectives_logs.sources import Place

if TYPE_CHECKING:
    from collectives.figures.style import Picture

    # A picture of a finding, or None if there is too much to draw.
    Draw = Callable[[], Picture | None]

# How many of a kind one finding names.
MAX_NAMED = 8


def places(files: Iterable[str]) -> tuple[Place, ...]:
    """Return the first few of these files, each once."""
    return tuple(Place(file) for file in dict.fromkeys(files))[:MAX_NAMED]


class Finding(NamedTuple):
    """A sentence each: what the files say, what follows (or ""), what to try next (or "").

    And their places.
    """

    kind: str
    found: str
    follows: str = ""
    next: str = ""
    at: tuple[Place, ...] = ()
    draw: Draw | None = None


ADVICE: dict[str, dict[str, str]] = tomllib.loads(
    (resources.files(__package__) / "advice.toml").read_text(encoding="utf8")
)


def finding(key: str, *at: Place, **values: object) -> Finding:
    """Return the finding of a row of `advice.toml`, with values in its sentences, and the first few places.

    >>> finding("nccl.sockets", Place("job.log", 3), found="4 lines of connections by sockets").kind
    'connection'
    """
    row = ADVICE[key]
    found, follows, advice = (
        row.get(name, default).format(**values)
        for name, default in (("found", "{found}"), ("follows", ""), ("next", ""))
    )
    return Finding(row.get("kind", key.partition(".")[2]), found, follows, advice, at[:MAX_NAMED])


def named(names: Sequence[str], most: int = MAX_NAMED) -> str:
    """Return the first few of these names, and how many there are beside them.

    >>> named(["n1", "n2"]), named([str(i) for i in range(10)])
    ('n1, n2', '0, 1, 2, 3, 4, 5, 6, 7 and 2 more')
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def ranks(numbers: Iterable[int]) -> str:
    """Return ranks as text, consecutive ones as runs, many of them shortened.

    >>> ranks([5, 0, 1, 2]), ranks([4])
    ('ranks 0–2, 5', 'rank 4')
    """
    given = sorted(set(numbers))
    return f"rank{'' if len(given) == 1 else 's'} {named(runs(given).split(', '))}"


# The longer names first, because they have the shorter ones in them.
COLLECTIVES = {
    "allreduce": "all_reduce",
    "crossdevicereduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "barrier": "barrier",
    "sendrecv": "send and receive",
    "send": "send and receive",
    "recv": "send and receive",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
}


def collective_of(name: str) -> str:
    """Return the collective that c10d or NCCL calls so.

    >>> [collective_of(name) for name in ("_allgather_base", "ReduceScatter_Sum_f32_RING_LL", "nonsense")]
    ['all_gather', 'reduce_scatter', 'nonsense']
    """
    squeezed = re.sub(r"[^a-z]", "", name.lower())
    return next((known for key, known in COLLECTIVES.items() if key in squeezed), name[:60])

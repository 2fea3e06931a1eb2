"""What others have published and we compare with: the points of Jeaugey 2019, and how they were read.

The article's figures 3 and 4 show NCCL 2.3's rings and NCCL 2.4's trees on up to 24,576 GPUs (4,096
nodes of six). Their values are not printed: they were read off the pixels, to within 2% in figure 3
and 150 MB/s in figure 4, at five of the nine numbers of GPUs.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

# How a legend names these points; simulated and published values never share a mark.
LABEL = "published (Jeaugey 2019)"

# From the article's text: the ratio "up to" which trees are faster than rings at 24,576 GPUs.
IMPROVEMENT = 180


class Point(NamedTuple):
    """One number of GPUs of figures 3 and 4: seconds for 8 bytes, and bus bandwidth in GB/s for 64 MB."""

    ranks: int
    tree_seconds: float
    ring_seconds: float
    tree_busbw: float
    ring_busbw: float


POINTS = (
    Point(96, 128e-6, 179e-6, 19.86, 19.07),
    Point(384, 156e-6, 655e-6, 15.43, 13.07),
    Point(768, 169e-6, 1313e-6, 15.22, 7.46),
    Point(3072, 199e-6, 5470e-6, 13.71, 6.11),
    Point(24576, 248e-6, 44400e-6, 12.79, 1.82),
)

# The sizes of figures 3 and 4, in bytes.
SMALL = 8
LARGE = 64 << 20

# The article's names for what it measured, as our algorithms are called.
SERIES = {"hierarchical_tree": "tree", "ring": "ring"}


def latencies(algorithm: str) -> dict[int, float]:
    """Figure 3: seconds of an all-reduce of 8 bytes by number of GPUs.

    Nothing for an algorithm it does not show.

    >>> latencies("hierarchical_tree")[24576], latencies("halving_doubling")
    (0.000248, {})
    """
    return _column(algorithm, "seconds")


def bandwidths(algorithm: str) -> dict[int, float]:
    """Figure 4: bus bandwidth in GB/s of an all-reduce of 64 MB by number of GPUs.

    >>> bandwidths("ring")[96]
    19.07
    """
    return _column(algorithm, "busbw")


def compare(rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Each simulated row that has a published point: both values and the error, a share of the published one.

    >>> [one["error"] for one in compare([{"algorithm": "ring", "ranks": 96, "bytes": 8, "seconds": 179e-6}])]
    [0.0]
    """
    for row in rows:
        what, points = ("busbw", bandwidths) if row["bytes"] == LARGE else ("seconds", latencies)
        point = points(row["algorithm"]).get(row["ranks"])
        if row["bytes"] in (SMALL, LARGE) and point is not None:
            same = {name: row[name] for name in ("algorithm", "ranks", "bytes")}
            yield same | {
                "published": point,
                "simulated": row[what],
                "error": row[what] / point - 1,
            }


def _column(algorithm: str, what: str) -> dict[int, float]:
    name = SERIES.get(algorithm)
    return {point.ranks: getattr(point, f"{name}_{what}") for point in POINTS} if name else {}

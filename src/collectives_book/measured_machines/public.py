"""All-reduces that others measured by nccl-tests and published, and the clusters that no fit may see.

``public-nccl-tests.csv`` has a row for each size: the cluster, the time in place, and its source.
A third of the rows of each generation of GPUs is held out, by whole clusters: in the order of the
SHA-256 of their names, until the third is reached; the last cluster of a generation is never held
out. Rows of use ``known`` are not drawn, because the sources of this book have quoted them before.
No row was measured by us.
"""

import hashlib
from collections.abc import Sequence

import pandas as pd

from collectives_book.figures.statements import Rows
from collectives_book.measured_machines.samples import TABLE

# What a cluster has otherwise than its preset.
FOUR_PORTS = "4 ports a node"


def public_rows() -> Rows:
    """Return the published rows, with ``algorithm`` "" where the library had its choice."""
    return pd.read_csv(TABLE / "public-nccl-tests.csv", keep_default_na=False)


def held_out(clusters: Sequence[str], counts: Sequence[int]) -> set[str]:
    """Return the clusters of one generation that are held out; ``counts`` are their rows.

    >>> sorted(held_out(["one", "two", "three", "four"], [10, 10, 10, 10]))
    ['four', 'two']
    >>> held_out(["alone"], [11])
    set()
    """
    by_hash = sorted(
        zip(clusters, counts, strict=True),
        key=lambda cluster: hashlib.sha256(cluster[0].encode()).hexdigest(),
    )
    held: set[str] = set()
    rows = 0
    for name, count in by_hash[:-1]:
        if 3 * rows >= sum(counts):
            break
        held.add(name)
        rows += count
    return held

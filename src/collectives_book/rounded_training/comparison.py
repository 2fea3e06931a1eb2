"""The committed trainings by how gradients are summed, and what a way of summing changes, with its interval.

Two trainings with one seed begin with the same weights and see the same batches, so their
difference is not blurred by what differs between seeds. The interval of its mean is Student's
(95%), over seeds. One interval in twenty excludes 0 by chance. This module needs no torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from scipy.special import stdtrit

from collectives.codecs import current_name

# A pandas.DataFrame; the types cannot say what it holds.
Rows = Any

CONFIDENCE = 0.95
TABLE = (
    Path(__file__).resolve().parents[3]
    / "experiments"
    / "results"
    / "reference"
    / "rounded-training"
    / "trainings.csv"
)
# What names a training; `loss` is the mean of the last steps, `quality` the perceptron's share of
# test images read right or the transformer's held-out loss, `curve` the mean loss of every ten
# steps, with spaces between.
KEY = ["model", "workers", "algorithm", "dtype", "feedback", "seed"]
COLUMNS = dict(
    zip(
        [*KEY, "loss", "quality", "curve"],
        (str, int, str, str, int, int, float, float, str),
        strict=True,
    )
)

NAMES = {"ring": "ring", "two_tree": "two trees", "two_shot": "two-shot"}
SHORT = {"bfloat16": "bf16", "float32": "fp32"}


class Variant(NamedTuple):
    """Name a way to sum gradients: algorithm and codec with a slash between, the dtype that adds, error feedback."""

    algorithm: str
    dtype: str = "float32"
    feedback: int = 0  # 1 where errors are fed back

    @property
    def codec(self) -> str:
        """The format of messages; the dtype itself where none is named.

        >>> Variant("ring/mxint8").codec, Variant("ring", "bfloat16").codec
        ('mxint8', 'bfloat16')
        """
        return self.algorithm.partition("/")[2] or self.dtype

    @property
    def name(self) -> str:
        """The name in figures.

        >>> Variant("ring", "bfloat16").name, Variant("two_shot/mxfp4", feedback=1).name
        ('ring bf16', 'two-shot mxfp4 + feedback')
        """
        said = f"{NAMES[self.algorithm.partition('/')[0]]} {SHORT.get(self.codec, self.codec)}"
        return f"{said} + feedback" if self.feedback else said


# One rank adds all contributions to a chunk at once in float32: as good as exact.
BASELINE = Variant("two_shot")
# In the same dtype in another order: what the last bits alone change.
REORDERED = Variant("ring")
VARIANTS = (
    BASELINE,
    REORDERED,
    *(Variant(algorithm, "bfloat16") for algorithm in ("ring", "two_tree", "two_shot")),
    *(
        Variant(f"two_shot/{codec}", feedback=fed)
        for codec in ("mxint8", "mxfp4")
        for fed in (0, 1)
    ),
)


def read(path: Path = TABLE) -> Rows:
    """Return the rows of a table.

    Raises ValueError for a value of another type, KeyError without a column.
    """
    table = pd.read_csv(path, dtype=COLUMNS)[[*COLUMNS]]
    return table.assign(algorithm=table.algorithm.map(current_name))


def differences(rows: Rows, of: str = "loss", other: Variant = BASELINE) -> Rows:
    """Return by how much each variant's ``loss`` or ``quality`` differs from another's, seed by seed.

    The columns are ``model``, ``workers``, ``variant``, ``mean``, and the interval's ends ``low``
    and ``high``, as shares of the other's mean. Raises ValueError where a variant lacks a seed, or
    a model has one seed alone.
    """
    wide = rows.pivot(index=["model", "workers", "seed"], columns=KEY[2:5], values=of)
    for variant in wide:
        if lacking := [*wide.index[wide[variant].isna()]]:
            raise ValueError(
                f"trainings of {Variant(*variant).name}: got none of {lacking[0]}, expected each seed"
            )
    groups = wide.sub(wide[other], axis="index").groupby(level=["model", "workers"], sort=False)
    if min(groups.size()) < 2:
        raise ValueError("seeds for an interval: got 1, expected at least 2")
    base = wide[other].groupby(level=["model", "workers"], sort=False).mean()
    mean, half = (
        groups.mean(),
        groups.sem().mul(stdtrit(groups.size() - 1, (1 + CONFIDENCE) / 2), axis="index"),
    )
    found = {"mean": mean, "low": mean - half, "high": mean + half}
    parts = [
        pd.DataFrame({name: part[variant] / base for name, part in found.items()}).assign(
            variant=variant.name
        )
        for variant in VARIANTS
        if variant != other and variant in wide
    ]
    return pd.concat(parts).reset_index()

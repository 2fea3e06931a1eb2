"""Errors of sums of floats: a schedule's additions on random data, against the exactly rounded sum."""

from __future__ import annotations

from collections.abc import Iterator
from math import fsum, inf
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives import codecs
from collectives.core.schedule import Schedule, owner
from collectives.core.summation import ROUNDINGS, ReductionTree, Summation, bound, summation
from collectives.errors import unknown
from collectives.statistics import median_interval

Floats = NDArray[Any]

REDUCING = ("all_reduce", "reduce", "reduce_scatter")
HALF = ("float16", "bfloat16")
DATA = ("normal", "positive")
ELEMENTS = 1000  # in a sample of random data


class Measured(NamedTuple):
    """Errors as shares of the RMS (root mean square) of the exact sums: RMS in the median sample, and the worst.

    There is no ``bound`` for messages in a codec other than float32.
    """

    depth: int
    bound: float | None
    rms: float
    rms_low: float
    rms_high: float
    worst: float


def measure(
    schedule: Schedule, dtype: str, samples: list[Floats], codec: str | None = None
) -> Measured:
    """Measure the errors of a schedule's sums of ``samples``, of shape (p, elements), rounded to ``dtype`` first.

    Float16 and bfloat16 are added in float32 and rounded once a step, as `collectives.all_reduce`
    does. With a ``codec`` of `collectives.codecs` messages have its format: what a rank sends is
    rounded to it, in its own buffer, too, sums are float32, and the result is rounded to the codec
    and to ``dtype``. No back end of ours sends such messages. Errors are those of the first chunk and the last, on the
    rank that ends with them. ``bound`` is for a sum without cancellation: a share of the sum of
    absolute values.

    Raises ValueError for a collective that does not add, an unknown dtype or codec, float64 with a codec,
    samples of another shape, and samples whose exact sums are all zero or not finite. Source of the
    exact sums: `math.fsum`. Cost: p * elements additions a sample and chunk.

    >>> from collectives.algorithms import build
    >>> found = measure(build("all_reduce", "ring", 64), "bfloat16", list(samples("normal", 64, seeds=3)))
    >>> found.depth, 0.008 < found.rms < 0.012
    (63, True)
    """
    _check(schedule, dtype, samples, codec)
    once, coded = _adds_once(dtype, codec), codec is not None
    sums = [
        summation(schedule, chunk, once=once, rounds_messages=coded)
        for chunk in sorted({0, schedule.k - 1})
    ]
    depth = max(int(each.depth[_rank(schedule, each), 0]) for each in sums)
    errors, scales = zip(
        *(_errors(schedule, sums, dtype, codec, sample) for sample in samples), strict=True
    )
    if not all(0 < scale < inf for scale in scales):
        raise ValueError(
            f"RMS of the exact sums: got {min(scales)}, expected more than 0 and finite"
        )
    relative = [
        float(np.sqrt((error**2).mean())) / scale
        for error, scale in zip(errors, scales, strict=True)
    ]
    low, median, high = median_interval(relative)
    worst = max(
        float(np.abs(error).max()) / scale for error, scale in zip(errors, scales, strict=True)
    )
    return Measured(depth, _bound(depth, dtype, codec), median, low, high, worst)


def samples(data: str, p: int, seeds: int, elements: int = ELEMENTS) -> Iterator[Floats]:
    """Yield samples of shape (p, elements): ``normal`` is N(0, 1), ``positive`` its absolute values, or a file's.

    NAME.npy holds one sample. Raises ValueError for other data, and for a file that does not hold
    numbers.
    """
    if data.endswith(".npy"):
        try:
            yield np.load(Path(data), allow_pickle=False).astype(np.float64)
        except (OSError, ValueError, TypeError) as error:
            raise ValueError(
                f"data {data}: got {' '.join(str(error).split())[:80]}, expected an array of numbers"
            ) from None
        return
    if data not in DATA:
        raise ValueError(f"{unknown('data', data, DATA)}, and NAME.npy")
    for seed in range(seeds):
        values = np.random.default_rng(seed).normal(size=(p, elements))
        yield values if data == "normal" else np.abs(values)


def rounded(values: Floats, dtype: str) -> Floats:
    """Round values to a dtype, to the nearest, ties to even.

    The result is float32, or float64 for float64.

    >>> rounded(np.array([1.00390625, 1.01171875]), "bfloat16").tolist()  # both are half way
    [1.0, 1.015625]
    """
    if dtype == "float64":
        return values.astype(np.float64)
    return codecs.rounded(dtype, values.ravel()).reshape(values.shape)


def _bound(depth: int, dtype: str, codec: str | None) -> float | None:
    """Return the largest error of a sum, or None if its messages are rounded to a coarser codec than float32."""
    if codec is None:
        return bound(depth, dtype)
    if codec == "float32":
        return (1 + bound(depth, "float32")) * (1 + bound(1, dtype)) - 1
    return None


def _adds_once(dtype: str, codec: str | None) -> bool:
    """Return True if a sum of several is rounded once a step: half types, which travel as they are."""
    return dtype in HALF and codec is None


def _check(schedule: Schedule, dtype: str, samples: list[Floats], codec: str | None) -> None:
    if schedule.collective not in REDUCING:
        raise ValueError(
            f"errors of sums: got {schedule.collective}, expected one of {', '.join(REDUCING)}"
        )
    if dtype not in ROUNDINGS:
        raise ValueError(unknown("dtype", dtype, list(ROUNDINGS)))
    if codec is not None and codec not in codecs.CODECS:
        raise ValueError(unknown("codec", codec, list(codecs.CODECS)))
    if codec and dtype == "float64":
        raise ValueError(
            f"dtype of a sum with the codec {codec}: got float64, expected float32 or a half type"
        )
    for sample in samples:
        if sample.ndim != 2 or len(sample) != schedule.p or not sample.size:
            raise ValueError(
                f"data of {schedule.p} ranks: got shape {sample.shape}, expected ({schedule.p}, elements)"
            )


def _rank(schedule: Schedule, of: Summation) -> int:
    """Return a rank that ends with the sum of a chunk."""
    if schedule.collective == "reduce_scatter":
        return int(owner(of.chunks.start, schedule.p, schedule.k))
    return schedule.root or 0


def _errors(
    schedule: Schedule, sums: list[Summation], dtype: str, codec: str | None, sample: Floats
) -> tuple[Floats, float]:
    """Return the errors of all chunks' sums of one sample, and the RMS of the exact ones."""
    values = rounded(sample, dtype)
    exact = np.array([fsum(column) for column in values.T.tolist()])
    found = []
    for each in sums:
        node = int(each.node[_rank(schedule, each), 0])
        found.append(_value(each.tree, node, dtype, codec, values).astype(np.float64) - exact)
    return np.concatenate(found), float(np.sqrt((exact**2).mean()))


def _value(tree: ReductionTree, node: int, dtype: str, codec: str | None, values: Floats) -> Floats:
    """Return a node's value as a rank ends with it."""

    def to_dtype(sums: Floats) -> Floats:
        return rounded(sums, dtype)

    def to_codec(sums: Floats) -> Floats:
        return codecs.rounded(codec, sums) if codec else sums

    if _adds_once(dtype, codec):
        sums: Floats = tree.evaluate(node, values, to_dtype)
        return sums
    return to_dtype(tree.evaluate(node, values, sent=to_codec))

"""Errors of sums of floats: a schedule's additions on random data, against the exactly rounded sum."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from math import fsum, inf
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

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

    There is no ``bound`` for a codec other than float32.
    """

    depth: int
    bound: float | None
    rms: float
    rms_low: float
    rms_high: float
    worst: float


def measure(schedule: Schedule, dtype: str, samples: list[Floats]) -> Measured:
    """Measure the errors of a schedule's sums of ``samples``, of shape (p, elements), rounded to ``dtype`` first.

    Float16 and bfloat16 are added in float32 and rounded once a step, as `collectives.all_reduce`
    does. In a schedule with a codec what is sent is rounded to that, sums are float32, and the
    result is rounded to both at the end. Errors are those of the first chunk and the last, on the
    rank that ends with them. ``bound`` is for a sum without cancellation: a share of the sum of
    absolute values.

    Raises ValueError for a collective that does not add, an unknown dtype, float64 with a codec,
    samples of another shape, and samples whose exact sums are all zero or not finite. Source of the
    exact sums: `math.fsum`. Cost: p * elements additions a sample and chunk.

    >>> from collectives.algorithms import build
    >>> found = measure(build("all_reduce", "ring", 64), "bfloat16", list(samples("normal", 64, seeds=3)))
    >>> found.depth, 0.008 < found.rms < 0.012
    (63, True)
    """
    _check(schedule, dtype, samples)
    sums = [
        summation(schedule, chunk, once=_once(schedule, dtype))
        for chunk in sorted({0, schedule.k - 1})
    ]
    depth = max(int(each.depth[_rank(schedule, each), 0]) for each in sums)
    errors, scales = zip(
        *(_errors(schedule, sums, dtype, sample) for sample in samples), strict=True
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
    limit: float | None = bound(depth, dtype)
    if schedule.codec:
        is_exact = schedule.codec == "float32"
        limit = (1 + bound(depth, "float32")) * (1 + bound(1, dtype)) - 1 if is_exact else None
    return Measured(depth, limit, median, low, high, worst)


def total(schedule: Schedule, values: Floats, dtype: str) -> Floats:
    """Return the sums of an all-reduce of ``values``, shape (p, n), rounded to ``dtype`` first.

    Equals `collectives.all_reduce` bit for bit on rank 0, in one process; shape (n,), float32
    (float64 of float64). Raises ValueError for what `measure` refuses. Cost: (p - 1) n additions,
    and once a schedule its tree.

    >>> from collectives.algorithms import build
    >>> total(build("all_reduce", "ring/mxint8", 2), np.array([[1.0, 2.0], [1.0, 1.0]]), "float32").tolist()
    [2.0, 3.0]
    """
    _check(schedule, dtype, [values])
    edges, n = schedule.cut(values.shape[1]), values.shape[1]
    given = np.pad(rounded(values, dtype), ((0, 0), (0, int(edges[-1]) - n)))
    sent = [np.stack([_sent(schedule.codec)(each) for each in given])] if schedule.codec else []
    rows = np.concatenate([given, *sent])
    sums: Floats = np.empty_like(given[0])
    for tree, chunks in _shapes(schedule, _once(schedule, dtype)):
        pieces = [rows[leaves, edges[c] : edges[c + 1]] for c, leaves in chunks.items()]
        added = _value(
            schedule, tree, len(tree.operands) - 1, dtype, np.concatenate(pieces, axis=1)
        )
        ends = np.cumsum([piece.shape[1] for piece in pieces])[:-1]
        for c, part in zip(chunks, np.split(added, ends), strict=True):
            sums[edges[c] : edges[c + 1]] = part
    whole: Floats = sums[:n]
    return whole


@lru_cache(maxsize=16)
def _shapes(schedule: Schedule, once: bool) -> list[tuple[ReductionTree, dict[int, list[int]]]]:
    """Return rank 0's trees of additions that differ in more than their leaves, and the leaves of their chunks.

    A leaf is r for what rank r contributes, and p + r for that as it is sent.
    """
    found: dict[tuple[tuple[int, ...], ...], tuple[ReductionTree, dict[int, list[int]]]] = {}
    whole = summation(schedule, once=once)
    for chunk, node in enumerate(whole.node[0].tolist()):
        tree, leaves = _relabelled(whole.tree, node, schedule.p)
        found.setdefault(tuple(tree.operands), (tree, {}))[1][chunk] = leaves
    return list(found.values())


def _relabelled(tree: ReductionTree, top: int, p: int) -> tuple[ReductionTree, list[int]]:
    """Return the tree with its leaves numbered in the order of their additions, and the leaves that they were."""
    inner = [number for number in tree.sums_below(top) if _leaf(tree, number, p) is None]
    below = [_leaf(tree, node, p) for number in inner for node in tree.operands[number]] or [
        _leaf(tree, top, p)
    ]
    leaves = [*dict.fromkeys(leaf for leaf in below if leaf is not None)]
    new, names = ReductionTree(len(leaves)), dict[int, int]()
    for number in inner:
        found = [(_leaf(tree, node, p), node) for node in tree.operands[number]]
        operands = [names[node] if leaf is None else leaves.index(leaf) for leaf, node in found]
        names[number] = new.add(operands) if len(operands) > 1 else new.send(operands[0])
    return new, leaves


def _leaf(tree: ReductionTree, node: int, p: int) -> int | None:
    """Return the number of a leaf, None for a sum."""
    operands = tree.operands[node]
    if not operands:
        return node
    return p + operands[0] if len(operands) == 1 and operands[0] < p else None


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
    if dtype != "bfloat16":
        return values.astype(dtype).astype(np.float64 if dtype == "float64" else np.float32)
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    up = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return np.where(
        np.isfinite(values), (up & np.uint32(0xFFFF0000)).view(np.float32), values
    ).astype(np.float32)


def _once(schedule: Schedule, dtype: str) -> bool:
    """Return True if a sum of several is rounded once a step."""
    return dtype in HALF and not schedule.codec


def _check(schedule: Schedule, dtype: str, samples: list[Floats]) -> None:
    if schedule.collective not in REDUCING:
        raise ValueError(
            f"errors of sums: got {schedule.collective}, expected one of {', '.join(REDUCING)}"
        )
    if dtype not in ROUNDINGS:
        raise ValueError(unknown("dtype", dtype, list(ROUNDINGS)))
    if schedule.codec and dtype == "float64":
        raise ValueError(
            f"dtype of a sum with the codec {schedule.codec}: got float64, expected float32 or a half type"
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
    schedule: Schedule, sums: list[Summation], dtype: str, sample: Floats
) -> tuple[Floats, float]:
    """Return the errors of all chunks' sums of one sample, and the RMS of the exact ones."""
    values = rounded(sample, dtype)
    exact = np.array([fsum(column) for column in values.T.tolist()])
    found = []
    for each in sums:
        node = int(each.node[_rank(schedule, each), 0])
        found.append(_value(schedule, each.tree, node, dtype, values).astype(np.float64) - exact)
    return np.concatenate(found), float(np.sqrt((exact**2).mean()))


def _value(
    schedule: Schedule, tree: ReductionTree, node: int, dtype: str, values: Floats
) -> Floats:
    """Return a node's value as a rank ends with it."""
    if _once(schedule, dtype):
        sums: Floats = tree.evaluate(node, values, lambda each: rounded(each, dtype))
        return sums
    sent = _sent(schedule.codec) if schedule.codec else lambda each: each
    return rounded(tree.evaluate(node, values, sent=sent), dtype)


def _sent(codec: str) -> Callable[[Floats], Floats]:
    """Return the function that rounds numbers to a codec."""
    import torch

    from collectives.engine.codec import rounded as rounded_to_codec

    return lambda values: rounded_to_codec(
        codec, torch.from_numpy(np.ascontiguousarray(values))
    ).numpy()

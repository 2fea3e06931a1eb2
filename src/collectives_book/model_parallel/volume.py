"""Bytes that a rank sends in a training step, by data, tensor and pipeline parallelism, and where the two first cross.

The model is a stack of blocks relu(x·W₁ + b₁)·W₂ + b₂ (`tensor_parallel.Block`) of width d with 4d hidden units;
``batch`` are the samples of a step in all (in a language model: the tokens). Elements have 4 bytes. An all-reduce of n
bytes costs each of p ranks 2(p - 1)/p · n, as by the ring: the least that is possible.
"""

from __future__ import annotations

from math import ceil

from collectives_book.needs import state_bytes

ELEMENT = 4
HIDDEN = 4  # hidden units for each unit of the width, as in a transformer


def parameters(width: int, blocks: int = 1) -> int:
    """Weights and biases of the blocks: 8d² + 5d each.

    >>> parameters(2)
    42
    """
    hidden = HIDDEN * width
    return blocks * (2 * width * hidden + hidden + width)


def data_parallel(p: int, width: int, blocks: int = 1) -> float:
    """An all-reduce of all gradients, whatever the batch.

    >>> data_parallel(4, 2)
    252.0
    """
    return _all_reduce(p) * ELEMENT * parameters(width, blocks)


def tensor_parallel(p: int, width: int, batch: int, blocks: int = 1) -> float:
    """Two all-reduces a block, of activations and of their gradients, whatever the number of parameters.

    >>> tensor_parallel(4, 2, batch=8)
    192.0
    """
    return _all_reduce(p) * ELEMENT * 2 * blocks * batch * width


def pipeline(stages: int, width: int, batch: int) -> float:
    """Activations to the next stage and gradients to the one before, averaged over the stages.

    >>> pipeline(4, 2, batch=8)
    96.0
    """
    return 2 * (stages - 1) / stages * ELEMENT * batch * width


def crossing(width: int) -> float:
    """The batch at which data and tensor parallelism send the same: 4d + 2.5, for any p and any number of blocks.

    >>> crossing(1024)
    4098.5
    """
    return parameters(width) / (2 * width)


def least_ranks(count: float, memory: float) -> int:
    """Ranks that a model of ``count`` parameters has to be divided among, each with ``memory`` bytes for its state.

    >>> least_ranks(5_000_000_000, 80e9), least_ranks(5_000_000_001, 80e9)
    (1, 2)
    """
    return ceil(state_bytes(count) / memory)


def _all_reduce(p: int) -> float:
    return 2 * (p - 1) / p

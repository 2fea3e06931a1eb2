"""Bytes that a rank sends in a training step, by data, tensor and pipeline parallelism, and where the two first cross.

The model is a stack of blocks relu(x·W₁ + b₁)·W₂ + b₂ (`tensor_parallel.Block`) of width d with 4d
hidden units; ``batch`` are the samples of a step in all (in a language model: the tokens). Elements
have 4 bytes. An all-reduce of n bytes costs each of p ranks 2(p - 1)/p · n, as by the ring: the
least that is possible.
"""

from __future__ import annotations

ELEMENT = 4
HIDDEN = 4  # hidden units for each unit of the width, as in a transformer


def parameters(width: int, blocks: int = 1) -> int:
    """Return the weights and biases of the blocks: 8d² + 5d each.

    >>> parameters(2)
    42
    """
    hidden = HIDDEN * width
    return blocks * (2 * width * hidden + hidden + width)


def data_parallel(p: int, width: int, blocks: int = 1) -> float:
    """Return the bytes of an all-reduce of all gradients, whatever the batch.

    >>> data_parallel(4, 2)
    252.0
    """
    return _all_reduce(p) * ELEMENT * parameters(width, blocks)


def tensor_parallel(p: int, width: int, batch: int, blocks: int = 1) -> float:
    """Return the bytes of two all-reduces a block, of activations and of their gradients.

    >>> tensor_parallel(4, 2, batch=8)
    192.0
    """
    return _all_reduce(p) * ELEMENT * 2 * blocks * batch * width


def pipeline(stages: int, width: int, batch: int) -> float:
    """Return the bytes of activations to the next stage and of gradients to the one before, averaged over the stages.

    >>> pipeline(4, 2, batch=8)
    96.0
    """
    return 2 * (stages - 1) / stages * ELEMENT * batch * width


def crossing(width: int) -> float:
    """Return the batch at which data and tensor parallelism send the same: 4d + 2.5, for any p and number of blocks.

    >>> crossing(1024)
    4098.5
    """
    return parameters(width) / (2 * width)


def _all_reduce(p: int) -> float:
    return 2 * (p - 1) / p

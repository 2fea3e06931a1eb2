"""Encode float32 in a wire format and decode it again (`collectives.wire` lists the formats).

Elements are rounded to nearest, ties to even. Encoding is idempotent: a rank that forwards decoded values adds no
error, so all ranks can hold the same bits.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

import torch

from collectives.wire import BLOCK, WIRES

Kernel = Callable[[int, int, int, int], None]  # addresses of what it writes, of what it reads, and of scales; elements
KERNEL = ctypes.CFUNCTYPE(None, *4 * [ctypes.c_int64])


def encode(wire: str, values: torch.Tensor) -> torch.Tensor:
    """Encode float32 values of whole blocks, shape (n,), as bytes (uint8): all elements, then the blocks' scales.

    A block with an infinity or a NaN decodes to NaN. Larger values saturate. Cost: two passes over the values.
    """
    whole, each = whole_blocks(wire, values).contiguous(), WIRES[wire]
    if wire == "float32":
        return whole.view(torch.uint8)
    coded = torch.empty(each.nbytes(len(whole)), dtype=torch.uint8)
    at = coded.data_ptr()
    _kernels(wire)[0](at, whole.data_ptr(), at + len(whole) * each.bits // 8, len(whole))
    return coded


def decode(wire: str, coded: torch.Tensor) -> torch.Tensor:
    """Decode bytes that `encode` returned, to float32 of shape (n,)."""
    if wire == "float32":
        return coded.view(torch.float32)
    whole, each = coded.contiguous(), WIRES[wire]
    values = torch.empty(BLOCK * len(whole) // each.nbytes(BLOCK), dtype=torch.float32)
    at = whole.data_ptr()
    _kernels(wire)[1](values.data_ptr(), at, at + len(values) * each.bits // 8, len(values))
    return values


def rounded(wire: str, values: torch.Tensor) -> torch.Tensor:
    """Round float32 values, shape (n,), to a wire format: ``decode(wire, encode(wire, values))``, for any n.

    >>> rounded("mxint8", torch.tensor([1.0, 0.51, 100.0])).tolist()
    [1.0, 1.0, 100.0]
    """
    return decode(wire, encode(wire, whole_blocks(wire, values)))[: len(values)]


def whole_blocks(wire: str, values: torch.Tensor) -> torch.Tensor:
    """The values as float32, filled up with zeros to whole blocks; the same tensor if it is that already."""
    missing = -len(values) % WIRES[wire].block
    return torch.nn.functional.pad(values.float(), (0, missing)) if missing else values.float()


@cache
def _kernels(wire: str) -> tuple[Kernel, Kernel]:
    """What encodes and decodes; compiled when it is first needed, because numba takes long to import."""
    from collectives.engine.kernels.wires import coding

    found = coding(wire)
    return KERNEL(found.encode), KERNEL(found.decode)

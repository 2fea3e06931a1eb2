"""Conversions of half types, compiled: float16 and bfloat16 to float32, and back, rounded as torch rounds them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from collectives.compiled import compiled
from collectives.engine.kernels.address import Array, Kernel

# numpy's uint32. A sum or a shift of two has 64 bits in numba; it is cut at once, so that a vector holds more of them.
Word = Any
SIZE, INFINITE = np.uint32(0x7FFFFFFF), np.uint32(0x7F800000)  # of a float32: the bits without the sign, and infinity


@compiled
def as_float(bits: Word) -> Any:
    """The float32 of these bits."""
    return np.uint32(bits).view(np.float32)


@compiled
def as_bits(value: Any) -> Word:
    """The bits of a float32."""
    return np.float32(value).view(np.uint32)


@compiled
def shorter(size: Word, drop: int, bias: int) -> Word:
    """The code of the short float that is nearest to a float32, or of the even one of two; both without their signs.

    The short type has ``drop`` bits fewer after the point, and this bias. A larger number overflows to the next code.
    """
    # Subnormal numbers are as far apart as the least normal ones.
    power = max(size & INFINITE, np.uint32((128 - bias) << 23))
    # Of the sum with this, the last bit is the last one that is kept, to which the processor rounds a sum.
    ruler = np.uint32(power + np.uint32(drop << 23))
    count = np.uint32(as_bits(as_float(size) + as_float(ruler)) - ruler)
    return np.uint32(count + np.uint32(power >> np.uint32(drop)) - np.uint32((128 - bias) << (23 - drop)))


@compiled
def longer(code: Word, drop: int, bias: int) -> Word:
    """The bits of the float32 that is equal to a short float; both without their signs."""
    shifted, ruler = np.uint32(code << np.uint32(drop)), np.uint32((128 - bias + drop) << 23)
    subnormal = as_bits(as_float(ruler + code) - as_float(ruler))
    return np.uint32(subnormal if shifted < np.uint32(1 << 23) else shifted + np.uint32((127 - bias) << 23))


def widen_float16(into: Array, one: Array, _: Array, count: int) -> None:
    """As float32."""
    for i in range(count):
        code = np.uint32(one[i] & 0x7FFF)
        size = longer(code, 13, 15) | (INFINITE if code >= np.uint32(0x7C00) else np.uint32(0))
        into[i] = as_float(size | np.uint32(np.uint32(one[i] & 0x8000) << np.uint32(16)))


def narrow_float16(into: Array, one: Array, _: Array, count: int) -> None:
    """Rounded to the nearest, or to the even one of two."""
    for i in range(count):
        bits = as_bits(one[i])
        size = bits & SIZE
        code = np.uint32(0x7E00) if size > INFINITE else shorter(min(size, np.uint32(143 << 23)), 13, 15)
        into[i] = code | (np.uint32(bits >> np.uint32(16)) & np.uint32(0x8000))


def widen_bfloat16(into: Array, one: Array, _: Array, count: int) -> None:
    """As float32, of which these are the first two bytes."""
    for i in range(count):
        into[i] = as_float(np.uint32(one[i]) << np.uint32(16))


def narrow_bfloat16(into: Array, one: Array, _: Array, count: int) -> None:
    """Rounded to the nearest, or to the even one of two."""
    for i in range(count):
        bits = as_bits(one[i])
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        into[i] = rounded if one[i] == one[i] else 0x7FC0


CONVERSIONS: dict[torch.dtype, tuple[Kernel, Kernel]] = {
    torch.float16: (widen_float16, narrow_float16),
    torch.bfloat16: (widen_bfloat16, narrow_bfloat16),
}

"""Encode float32 in a codec's format and decode it again (`collectives.codecs` lists the formats).

Elements are rounded to nearest, ties to even. Encoding is idempotent: a rank that forwards decoded
values adds no error, so all ranks can hold the same bits.

An MX format has a scale for each block of 32 elements. The scale moves a block's largest value to
the format's largest exponent; what is larger than every number of the format becomes the largest. A
block that is not finite has the scale NAN, and codes of zeros.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch

from collectives.codecs import BLOCK, CODECS
from collectives.compiled import compiled
from collectives.core.schedule import Ints
from collectives.engine.kernels import (
    BYTES,
    CONVERSIONS,
    FLOATS,
    HALVES,
    INFINITE,
    MAGNITUDE,
    Array,
    Kernel,
    Word,
    address,
    as_bits,
    as_float,
    longer,
    shorter,
)
from collectives.engine.system import call_kernel

BIAS, NAN = 127, 255  # of a scale's byte: the exponent 0, and a block that is not finite
POINT = 6  # fraction bits of mxint8: its unit is the scale divided by 2**6
INT8 = np.float32(127)
# Largest exponents and numbers; bits that a float32 has more of, biases, and the place of the sign.
FP8_EXPONENT, FP8_MOST, FP8 = 8, np.float32(448).view(np.uint32), (20, 7, 7)
FP4_EXPONENT, FP4_MOST, FP4 = 2, np.float32(6).view(np.uint32), (22, 1, 3)
# Float32 has no fractions there, so that a sum with this is rounded to an integer.
ROUNDS = np.float32(3 << 22)


def encode_mxint8(into: Array, one: Array, other: Array, count: int) -> None:
    """Encode as 8-bit integers from -127 to 127."""
    for at in range(0, count, BLOCK):
        end = min(at + BLOCK, count)
        scale = _scale(one, at, end, 0, POINT)  # a smaller scale has no inverse
        other[at // BLOCK] = scale
        for i in range(at, end):
            units = as_float(_scaled(one[i], scale, POINT))
            into[i] = as_bits(min(max(units, -INT8), INT8) + ROUNDS) & np.uint32(0xFF)


def decode_mxint8(into: Array, one: Array, other: Array, count: int) -> None:
    """Decode to the exact float32 values, as the other decoders do."""
    for at in range(0, count, BLOCK):
        unit = _unit(other[at // BLOCK], POINT)
        for i in range(at, min(at + BLOCK, count)):
            into[i] = np.float32(np.int8(one[i])) * unit


def encode_mxfp8(into: Array, one: Array, other: Array, count: int) -> None:
    """Encode as E4M3."""
    for at in range(0, count, BLOCK):
        end = min(at + BLOCK, count)
        scale = _scale(one, at, end, FP8_EXPONENT, 0)
        other[at // BLOCK] = scale
        for i in range(at, end):
            into[i] = _code(_scaled(one[i], scale, 0), FP8_MOST, *FP8)


def decode_mxfp8(into: Array, one: Array, other: Array, count: int) -> None:
    """Decode E4M3, which has a NaN that `encode_mxfp8` does not write."""
    for at in range(0, count, BLOCK):
        unit = _unit(other[at // BLOCK], 0)
        for i in range(at, min(at + BLOCK, count)):
            number = _number(np.uint32(one[i]), *FP8)
            into[i] = (number if one[i] & 0x7F != 0x7F else np.float32(np.nan)) * unit


def encode_mxfp4(into: Array, one: Array, other: Array, count: int) -> None:
    """Encode as E2M1, two a byte, the first in its lower half."""
    for at in range(0, count, BLOCK):
        end = min(at + BLOCK, count)
        scale = _scale(one, at, end, FP4_EXPONENT, 0)
        other[at // BLOCK] = scale
        for i in range(at // 2, end // 2):
            low = _code(_scaled(one[2 * i], scale, 0), FP4_MOST, *FP4)
            high = _code(_scaled(one[2 * i + 1], scale, 0), FP4_MOST, *FP4)
            into[i] = low | high << np.uint32(4)


def decode_mxfp4(into: Array, one: Array, other: Array, count: int) -> None:
    """Decode two numbers a byte."""
    for at in range(0, count, BLOCK):
        unit = _unit(other[at // BLOCK], 0)
        for i in range(at // 2, min(at + BLOCK, count) // 2):
            codes = np.uint32(one[i])
            into[2 * i] = _number(codes & np.uint32(15), *FP4) * unit
            into[2 * i + 1] = _number(codes >> np.uint32(4), *FP4) * unit


@compiled
def _scale(one: Array, at: int, end: int, exponent: int, least: int) -> int:
    """Return the scale of a block, for a format with this largest exponent."""
    most = np.uint32(0)
    for i in range(at, end):
        most = max(most, as_bits(one[i]) & MAGNITUDE)
    if most >= INFINITE:
        return NAN
    # 0 for subnormal numbers; for zeros that of 1/2.
    power = np.int64(most >> np.uint32(23)) if most else BIAS - 1
    return int(max(least, power - exponent))


@compiled
def _scaled(value: Any, scale: int, point: int) -> Word:
    """Return the bits of an element divided by its block's unit.

    Zeros for a block that is not finite.
    """
    inverse = as_float(np.uint32(2 * BIAS + point - scale) << np.uint32(23))
    return np.uint32(as_bits(value * inverse) & np.uint32(0 if scale == NAN else 0xFFFFFFFF))


@compiled
def _unit(scale: int, point: int) -> Any:
    """Return the unit by which a block's numbers are multiplied, which may be a subnormal number."""
    power = np.int64(scale) - point
    unit = as_float(np.uint32(power << 23 if power > 0 else 1 << (22 + power)))
    return np.float32(np.nan) if scale == NAN else unit


@compiled
def _code(bits: Word, most: Word, drop: int, bias: int, sign: int) -> Word:
    """Return the code of the short float that is nearest to a float32."""
    code = shorter(min(np.uint32(bits & MAGNITUDE), most), drop, bias)
    return np.uint32(code | (np.uint32(bits >> np.uint32(31 - sign)) & np.uint32(1 << sign)))


@compiled
def _number(code: Word, drop: int, bias: int, sign: int) -> Any:
    """Return the number that a code stands for."""
    size = longer(code & np.uint32((1 << sign) - 1), drop, bias)
    return as_float(size | np.uint32((code >> np.uint32(sign)) << np.uint32(31)))


class CodecKernels(NamedTuple):
    """Addresses of a codec's kernels, encode(codes, values, scales, count) and decode(values, codes, scales, count).

    The codes, without the scales, have ``bits`` for an element. A half type has no scales.
    """

    encode: int
    decode: int
    bits: int


CODEC = np.dtype([(name, np.int64) for name in CodecKernels._fields])  # the same for compiled code
MX_KERNELS: dict[str, tuple[Kernel, Kernel]] = {
    "mxint8": (encode_mxint8, decode_mxint8),
    "mxfp8": (encode_mxfp8, decode_mxfp8),
    "mxfp4": (encode_mxfp4, decode_mxfp4),
}


@cache
def codec_kernels(codec: str) -> CodecKernels:
    """Return the kernels of one of `collectives.codecs.CODECS`, for whole blocks.

    Float32 needs none.
    """
    if codec == "float32":
        return CodecKernels(0, 0, CODECS[codec].bits)
    if codec in MX_KERNELS:
        encode, decode = MX_KERNELS[codec]
        made = address(encode, BYTES, FLOATS, BYTES), address(decode, FLOATS, BYTES, BYTES)
    else:
        decode, encode = CONVERSIONS[getattr(torch, codec)]
        made = address(encode, HALVES, FLOATS, FLOATS), address(decode, FLOATS, HALVES, HALVES)
    return CodecKernels(*made, CODECS[codec].bits)


@compiled
def encode_spans(codec: Any, into: int, spans: Ints) -> None:
    """Encode spans (address, elements) into one place, all elements before all scales, and round them."""
    scales = into + spans[:, 1].sum() * codec.bits // 8
    for nth in range(len(spans)):
        at, count = spans[nth]
        call_kernel(codec.encode, into, at, scales, count)
        call_kernel(codec.decode, at, into, scales, count)
        into += count * codec.bits // 8
        scales += count // BLOCK


@compiled
def decode_span(codec: Any, into: int, coded: int, count: int) -> None:
    """Decode so many elements."""
    call_kernel(codec.decode, into, coded, coded + count * codec.bits // 8, count)


def encode(codec: str, values: torch.Tensor) -> torch.Tensor:
    """Encode float32 values of whole blocks, shape (n,), as bytes (uint8): all elements, then the blocks' scales.

    A block with an infinity or a NaN decodes to NaN. Larger values saturate. Cost: two passes over
    the values.
    """
    whole, each = whole_blocks(codec, values).contiguous(), CODECS[codec]
    if codec == "float32":
        return whole.view(torch.uint8)
    coded = torch.empty(each.nbytes(len(whole)), dtype=torch.uint8)
    at = coded.data_ptr()
    _callable(codec)[0](at, whole.data_ptr(), at + len(whole) * each.bits // 8, len(whole))
    return coded


def decode(codec: str, coded: torch.Tensor) -> torch.Tensor:
    """Decode bytes that `encode` returned, to float32 of shape (n,)."""
    if codec == "float32":
        return coded.view(torch.float32)
    whole, each = coded.contiguous(), CODECS[codec]
    values = torch.empty(BLOCK * len(whole) // each.nbytes(BLOCK), dtype=torch.float32)
    at = whole.data_ptr()
    _callable(codec)[1](values.data_ptr(), at, at + len(values) * each.bits // 8, len(values))
    return values


def rounded(codec: str, values: torch.Tensor) -> torch.Tensor:
    """Round float32 values, shape (n,), to a codec's format: ``decode(codec, encode(codec, values))``, for any n.

    >>> rounded("mxint8", torch.tensor([1.0, 0.51, 100.0])).tolist()
    [1.0, 1.0, 100.0]
    """
    return decode(codec, encode(codec, whole_blocks(codec, values)))[: len(values)]


def whole_blocks(codec: str, values: torch.Tensor) -> torch.Tensor:
    """Return the values as float32, padded with zeros to whole blocks.

    The same tensor if it is that already.
    """
    missing = -len(values) % CODECS[codec].block
    return torch.nn.functional.pad(values.float(), (0, missing)) if missing else values.float()


@cache
def _callable(codec: str) -> tuple[Callable[..., None], Callable[..., None]]:
    """Return what encodes and decodes, for Python: of addresses of result, source and scales, and elements."""
    function, found = ctypes.CFUNCTYPE(None, *4 * [ctypes.c_int64]), codec_kernels(codec)
    return function(found.encode), function(found.decode)

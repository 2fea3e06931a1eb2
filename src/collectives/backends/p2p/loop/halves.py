"""Conversions of half types, compiled: float16 and bfloat16 to float32, and back, rounded as torch rounds them."""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

import torch
from llvmlite import binding, ir  # type: ignore[import-untyped]
from numba import types
from numba.core import config
from numba.extending import intrinsic

Array = Any
Call = Any  # numba knows their types only when it compiles
WORD, HALF_WORD, FLOAT, HALF = ir.IntType(32), ir.IntType(16), ir.FloatType(), ir.HalfType()


@intrinsic
def _as_float(context: Any, bits: Any) -> Any:
    """The float32 of these bits."""
    del context, bits
    return types.float32(types.uint32), lambda _, builder, __, values: builder.bitcast(values[0], FLOAT)


@intrinsic
def _as_bits(context: Any, value: Any) -> Any:
    """The bits of a float32."""
    del context, value
    return types.uint32(types.float32), lambda _, builder, __, values: builder.bitcast(values[0], WORD)


@intrinsic
def _from_half(context: Any, bits: Any) -> Any:
    """The float32 that is equal to the float16 of these bits."""
    del context, bits

    def code(_: Any, builder: Any, __: Any, values: Any) -> Any:
        return builder.fpext(builder.bitcast(values[0], HALF), FLOAT)

    return types.float32(types.uint16), code


@intrinsic
def _to_half(context: Any, value: Any) -> Any:
    """The bits of the float16 that is nearest to a float32, or the even one of two."""
    del context, value

    def code(_: Any, builder: Any, __: Any, values: Any) -> Any:
        return builder.bitcast(builder.fptrunc(values[0], HALF), HALF_WORD)

    return types.uint16(types.float32), code


as_float: Call = _as_float
as_bits: Call = _as_bits
from_half: Call = _from_half
to_half: Call = _to_half


def widen_float16(into: Array, one: Array, _: Array, count: int) -> None:
    """As float32."""
    for i in range(count):
        into[i] = from_half(one[i])


def narrow_float16(into: Array, one: Array, _: Array, count: int) -> None:
    """Rounded to the nearest, or to the even one of two."""
    for i in range(count):
        into[i] = to_half(one[i])


def widen_bfloat16(into: Array, one: Array, _: Array, count: int) -> None:
    """As float32, of which these are the first two bytes."""
    for i in range(count):
        into[i] = as_float(types.uint32(one[i]) << types.uint32(16))


def narrow_bfloat16(into: Array, one: Array, _: Array, count: int) -> None:
    """Rounded to the nearest, or to the even one of two."""
    for i in range(count):
        bits = as_bits(one[i])
        rounded = (bits + types.uint32(0x7FFF) + ((bits >> types.uint32(16)) & types.uint32(1))) >> types.uint32(16)
        into[i] = rounded if one[i] == one[i] else 0x7FC0


Conversion = Callable[[Array, Array, Array, int], None]
CONVERSIONS: dict[torch.dtype, tuple[Conversion, Conversion]] = {
    torch.float16: (widen_float16, narrow_float16),
    torch.bfloat16: (widen_bfloat16, narrow_bfloat16),
}


def converts_float16() -> bool:
    """Whether numba's code for this processor converts float16, and does not call a function that may be missing."""
    if config.CPU_NAME or config.CPU_FEATURES:  # type: ignore[attr-defined]
        return False
    return platform.machine() in ("aarch64", "arm64") or bool(binding.get_host_cpu_features().get("f16c"))

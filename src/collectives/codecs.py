"""Round floats to formats of fewer bits, as compressed messages carry them: encode, decode, and both.

The mx formats are those of the OCP Microscaling Formats Specification 1.0 (2023): 32 numbers in a
row share a scale, which is a power of two in one byte. The scale moves the block's largest value to
the format's largest exponent, and a value above the format's largest number becomes that number. A
block with an infinity or a NaN has the scale `NO_NUMBER` and codes of zeros, and decodes to NaN.

Values are rounded to the nearest number of the format, ties to even. Encoding is idempotent: a rank
that forwards decoded values adds no error.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Codes = NDArray[np.uint8]

BLOCK = 32
BIAS = 127  # the byte of the scale 1
NO_NUMBER = 255  # the scale of a block that is not finite
# Bits of a float32: all but its sign, the exponent of infinities and NaN, and its place.
MAGNITUDE, INFINITE, EXPONENT_PLACE = np.uint32(0x7FFFFFFF), np.uint32(0x7F800000), np.uint32(23)


class Codec(NamedTuple):
    """A format: bits of an element, and how many elements share a scale (1: there is none)."""

    bits: int
    block: int

    def nbytes(self, elements: Any) -> Any:
        """Return the bytes of ``elements`` (a number or an array), which are whole blocks.

        >>> CODECS["mxint8"].nbytes(64), CODECS["bfloat16"].nbytes(3)
        (66, 6)
        """
        scales = elements // self.block if self.block > 1 else 0
        return elements * self.bits // 8 + scales


CODECS = {
    "float32": Codec(32, 1),
    "float16": Codec(16, 1),
    "bfloat16": Codec(16, 1),
    "mxint8": Codec(8, BLOCK),
    "mxfp8": Codec(8, BLOCK),  # E4M3
    "mxfp4": Codec(4, BLOCK),  # E2M1
}


class Numbers(NamedTuple):
    """The numbers of an mx format: ``sizes[code]`` for each code without its sign, ascending.

    ``exponent`` is the largest exponent of a number, and ``least_scale`` the smallest byte of a
    scale. Integers are in two's complement; other codes have their sign in the highest bit.
    """

    sizes: NDArray[np.float64]
    exponent: int
    least_scale: int
    is_integer: bool


def _short_floats(exponent_bits: int, fraction_bits: int) -> NDArray[np.float64]:
    """Return the numbers of a short float by their codes without a sign, as if none stood for a NaN."""
    codes = np.arange(1 << (exponent_bits + fraction_bits))
    exponent, fraction = np.divmod(codes, 1 << fraction_bits)
    is_normal = exponent > 0
    significand = is_normal + fraction / (1 << fraction_bits)
    bias = (1 << (exponent_bits - 1)) - 1
    numbers: NDArray[np.float64] = np.ldexp(significand, np.maximum(exponent, 1) - bias)
    return numbers


# The last code of E4M3 is a NaN. A smaller scale of integers than 6 would have no float32 as unit.
MX = {
    "mxint8": Numbers(np.arange(128) / 64, 0, 6, is_integer=True),
    "mxfp8": Numbers(_short_floats(4, 3)[:-1], 8, 0, is_integer=False),
    "mxfp4": Numbers(_short_floats(2, 1), 2, 0, is_integer=False),
}


def encode(codec: str, values: Floats) -> Codes:
    """Encode float32 values of whole blocks, shape (n,), as bytes: all elements, then the blocks' scales.

    Elements of 4 bits lie two in a byte, the first in its lower half. Cost: a search among the
    format's numbers for each value.

    >>> encode("mxfp4", np.array([6.0, -0.5] + 30 * [0.0], np.float32))[[0, -1]].tolist()
    [151, 127]
    """
    whole = np.ascontiguousarray(values, np.float32)
    if codec == "float32":
        return whole.view(np.uint8)
    if codec == "float16":
        with np.errstate(over="ignore"):  # a larger number becomes infinite
            return whole.astype(np.float16).view(np.uint8)
    if codec == "bfloat16":
        return _upper_halves(whole).view(np.uint8)
    blocks = whole.reshape(-1, BLOCK)
    scales = _scales(blocks, MX[codec])
    codes = _codes(blocks, scales, codec).ravel()
    if CODECS[codec].bits == 4:
        codes = codes[0::2] | codes[1::2] << np.uint8(4)
    return np.concatenate([codes, scales])


def decode(codec: str, coded: Codes) -> Floats:
    """Decode bytes that `encode` returned to the exact float32 values, shape (n,)."""
    if codec == "float32":
        return coded.view(np.float32)
    if codec == "float16":
        return coded.view(np.float16).astype(np.float32)
    if codec == "bfloat16":
        return (coded.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    blocks = len(coded) // CODECS[codec].nbytes(BLOCK)
    codes, scales = coded[:-blocks], coded[-blocks:]
    if CODECS[codec].bits == 4:
        codes = np.stack([codes & np.uint8(15), codes >> np.uint8(4)], axis=1)
    units = np.ldexp(1.0, scales.astype(np.int64) - BIAS)
    units[scales == NO_NUMBER] = np.nan
    signed = _numbers(codes.reshape(-1, BLOCK), codec)
    return (signed * units[:, None]).astype(np.float32).ravel()


def rounded(codec: str, values: NDArray[Any]) -> Floats:
    """Round values, shape (n,), to a codec's format: ``decode(codec, encode(codec, values))``, for any n.

    >>> rounded("mxint8", np.array([1.0, 0.51, 100.0])).tolist()
    [1.0, 1.0, 100.0]
    """
    missing = -len(values) % CODECS[codec].block
    whole = np.pad(np.asarray(values, np.float32), (0, missing))
    return decode(codec, encode(codec, whole))[: len(values)]


def _upper_halves(values: Floats) -> NDArray[np.uint16]:
    """Return the bits of the nearest bfloat16, which is the upper half of a float32."""
    bits = values.view(np.uint32)
    last_kept = (bits >> np.uint32(16)) & np.uint32(1)
    halves = ((bits + np.uint32(0x7FFF) + last_kept) >> np.uint32(16)).astype(np.uint16)
    halves[np.isnan(values)] = 0x7FC0
    return halves


def _scales(blocks: Floats, numbers: Numbers) -> Codes:
    """Return the scale of each block."""
    largest = (blocks.view(np.uint32) & MAGNITUDE).max(axis=1)
    power = (largest >> EXPONENT_PLACE).astype(np.int64)
    power[largest == 0] = BIAS - 1
    scales = np.maximum(power - numbers.exponent, numbers.least_scale)
    scales[largest >= INFINITE] = NO_NUMBER
    as_bytes: Codes = scales.astype(np.uint8)
    return as_bytes


def _codes(blocks: Floats, scales: Codes, codec: str) -> Codes:
    """Return the code of the number that is nearest to each value divided by its block's scale."""
    sizes, is_integer = MX[codec].sizes, MX[codec].is_integer
    finite = np.where((scales == NO_NUMBER)[:, None], np.float32(0), blocks)
    scaled = np.ldexp(finite.astype(np.float64), BIAS - scales.astype(np.int64)[:, None])
    size = np.minimum(np.abs(scaled), sizes[-1])
    above = np.maximum(np.searchsorted(sizes, size), 1)
    over, under = size - sizes[above - 1], sizes[above] - size
    # The even one of two numbers that are equally near has an even code.
    goes_up = (over > under) | ((over == under) & (above % 2 == 0))
    code = np.where(goes_up, above, above - 1)
    is_negative = np.signbit(finite)
    sign = is_negative.astype(np.int64) << (CODECS[codec].bits - 1)
    signed = np.where(is_negative, -code, code) if is_integer else code | sign
    codes: Codes = signed.astype(np.uint8)
    return codes


def _numbers(codes: Codes, codec: str) -> NDArray[np.float64]:
    """Return the numbers that codes stand for, before they are multiplied by the scale."""
    if MX[codec].is_integer:
        integers: NDArray[np.float64] = codes.view(np.int8) / 64
        return integers
    sign = np.uint8(1 << (CODECS[codec].bits - 1))
    sizes = MX[codec].sizes
    with_nan = np.append(sizes, np.nan)
    size = with_nan[np.minimum(codes & ~sign, len(sizes))]
    signed: NDArray[np.float64] = np.where(codes & sign, -size, size)
    return signed

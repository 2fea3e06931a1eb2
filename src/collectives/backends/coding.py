"""Encode float32 in a wire format and decode it again (`collectives.wire` lists the formats).

Elements are rounded to nearest, ties to even. Encoding is idempotent: a rank that forwards decoded values adds no
error, so all ranks can hold the same bits.
"""

from __future__ import annotations

import torch

from collectives.wire import BLOCK, WIRES

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
# The largest exponent and the largest value of each mx format.
LARGEST = {"mxint8": (0, 127 / 64), "mxfp8": (8, 448.0), "mxfp4": (2, 6.0)}
BIAS, NAN = 127, 255  # of a scale's byte: the exponent 0, and a block that is not finite
FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def encode(wire: str, values: torch.Tensor) -> torch.Tensor:
    """Encode float32 values of whole blocks, shape (n,), as bytes (uint8): all elements, then the blocks' scales.

    A block with an infinity or a NaN decodes to NaN. Larger values saturate. Cost: a few passes over the values.
    """
    if wire in DTYPES:
        return values.to(DTYPES[wire]).view(torch.uint8)
    scales, units = _scaled(wire, values)
    return torch.cat([_codes(wire, units).view(-1), scales])


def decode(wire: str, coded: torch.Tensor) -> torch.Tensor:
    """Decode bytes that `encode` returned, to float32 of shape (n,)."""
    if wire in DTYPES:
        return coded.view(DTYPES[wire]).to(torch.float32)
    blocks = 8 * len(coded) // (WIRES[wire].bits * BLOCK + 8)
    codes, scales = coded[:-blocks], coded[-blocks:]
    return _multiplied(_numbers(wire, codes).view(-1, BLOCK), _scale(wire, scales))


def rounded(wire: str, values: torch.Tensor) -> torch.Tensor:
    """Round float32 values, shape (n,), to a wire format: ``decode(wire, encode(wire, values))``, for any n.

    >>> rounded("mxint8", torch.tensor([1.0, 0.51, 100.0])).tolist()
    [1.0, 1.0, 100.0]
    """
    padded = whole_blocks(wire, values)
    if wire in DTYPES:
        return padded.to(DTYPES[wire]).to(torch.float32)
    scales, units = _scaled(wire, padded)
    numbers = units if wire == "mxint8" else _numbers(wire, _codes(wire, units)).view(-1, BLOCK)
    return _multiplied(numbers, _scale(wire, scales))[: len(values)]


def whole_blocks(wire: str, values: torch.Tensor) -> torch.Tensor:
    """The values as float32, filled up with zeros to whole blocks; the same tensor if it is that already."""
    missing = -len(values) % WIRES[wire].block
    return torch.nn.functional.pad(values.float(), (0, missing)) if missing else values.float()


def _scaled(wire: str, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The scales' bytes, and the blocks divided by their scales, saturated; for mxint8 rounded to integers, too.

    The scale moves the block's largest value to the format's largest exponent.
    """
    blocks = values.view(-1, BLOCK)
    most = blocks.abs().amax(1) if len(blocks) else blocks.new_zeros(0)
    exponents = torch.frexp(most).exponent - 1 - LARGEST[wire][0]
    finite = torch.isfinite(most)
    least = 6 if wire == "mxint8" else 0  # a unit below 2**-127 could not be divided by
    scales = torch.where(finite, (exponents + BIAS).clamp_(least, NAN - 1), NAN).to(torch.uint8)
    units = blocks * (1 / _scale(wire, torch.where(finite, scales, BIAS)))[:, None]
    if not finite.all():
        units[~finite] = 0.0
    if wire == "mxint8":
        return scales, units.round_().clamp_(-127, 127).add_(0.0)  # an integer has no -0
    return scales, units.clamp_(-LARGEST[wire][1], LARGEST[wire][1])


def _scale(wire: str, scales: torch.Tensor) -> torch.Tensor:
    """The factor of each block that its scale byte encodes; NaN for a block that is not finite."""
    units = torch.ldexp(torch.ones(len(scales)), scales.int() - BIAS - (6 if wire == "mxint8" else 0))
    return units.masked_fill_(scales == NAN, torch.nan)


def _multiplied(numbers: torch.Tensor, units: torch.Tensor) -> torch.Tensor:
    return numbers.mul_(units[:, None]).view(-1)


def _codes(wire: str, units: torch.Tensor) -> torch.Tensor:
    if wire == "mxint8":
        return units.to(torch.int8).view(torch.uint8)
    return units.to(torch.float8_e4m3fn).view(torch.uint8) if wire == "mxfp8" else _packed(units)


def _numbers(wire: str, codes: torch.Tensor) -> torch.Tensor:
    if wire == "mxint8":
        return codes.view(torch.int8).float()
    if wire == "mxfp8":
        return codes.view(torch.float8_e4m3fn).float()
    return FP4[torch.stack([codes & 15, codes >> 4], 1).view(-1).int()]


def _packed(units: torch.Tensor) -> torch.Tensor:
    """Two codes of E2M1 a byte, the first in its lower half; each is a place in FP4."""
    size = units.abs()
    below = torch.where(size < 2, (2 * size).round(), torch.where(size < 4, size.round() + 2, (size / 2).round() + 4))
    low, high = (below + 8 * units.signbit()).to(torch.uint8).view(-1, 2).unbind(1)
    return low | high << 4

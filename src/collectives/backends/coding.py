"""Numbers as a wire carries them: float32 to bytes and back (`collectives.wire` says which formats there are).

A number's code is the nearest there is, ties to even. Encoding what was decoded gives the same numbers again: so a
rank that passes them on adds no error, and all ranks can hold the same bits.
"""

from __future__ import annotations

import torch

from collectives.wire import BLOCK, WIRES

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
# Of each mx format: the largest exponent of a number, and the largest number.
LARGEST = {"mxint8": (0, 127 / 64), "mxfp8": (8, 448.0), "mxfp4": (2, 6.0)}
BIAS, NAN = 127, 255  # of a scale's byte: the exponent 0, and a block that is not finite
FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def encode(wire: str, values: torch.Tensor) -> torch.Tensor:
    """Float32, one axis of whole blocks, as bytes (uint8): all numbers, then the scales of all blocks.

    A block that holds an infinity or a NaN decodes to NaNs. Numbers beyond a format's largest become that. Cost: a few
    passes over the values.
    """
    if wire in DTYPES:
        return values.to(DTYPES[wire]).view(torch.uint8)
    scales, units = _in_units(wire, values)
    return torch.cat([_codes(wire, units).view(-1), scales])


def decode(wire: str, coded: torch.Tensor) -> torch.Tensor:
    """The numbers that these bytes encode, as float32 on one axis."""
    if wire in DTYPES:
        return coded.view(DTYPES[wire]).to(torch.float32)
    blocks = 8 * len(coded) // (WIRES[wire].bits * BLOCK + 8)
    codes, scales = coded[:-blocks], coded[-blocks:]
    return _times(_numbers(wire, codes).view(-1, BLOCK), _unit(wire, scales))


def rounded(wire: str, values: torch.Tensor) -> torch.Tensor:
    """Float32 values, of any number on one axis, as ranks receive them over a wire.

    >>> rounded("mxint8", torch.tensor([1.0, 0.51, 100.0])).tolist()
    [1.0, 1.0, 100.0]
    """
    padded = whole_blocks(wire, values)
    if wire in DTYPES:
        return padded.to(DTYPES[wire]).to(torch.float32)
    scales, units = _in_units(wire, padded)
    numbers = units if wire == "mxint8" else _numbers(wire, _codes(wire, units)).view(-1, BLOCK)
    return _times(numbers, _unit(wire, scales))[: len(values)]


def whole_blocks(wire: str, values: torch.Tensor) -> torch.Tensor:
    """The values as float32, filled up with zeros to whole blocks; the same tensor if it is that already."""
    missing = -len(values) % WIRES[wire].block
    return torch.nn.functional.pad(values.float(), (0, missing)) if missing else values.float()


def _in_units(wire: str, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The scales' bytes, and the blocks in units of the format: whole ones of mxint8, of no number beyond its largest.

    A scale brings a block's largest number to the format's largest exponent.
    """
    blocks = values.view(-1, BLOCK)
    most = blocks.abs().amax(1) if len(blocks) else blocks.new_zeros(0)
    exponents = torch.frexp(most).exponent - 1 - LARGEST[wire][0]
    finite = torch.isfinite(most)
    least = 6 if wire == "mxint8" else 0  # a unit below 2**-127 could not be divided by
    scales = torch.where(finite, (exponents + BIAS).clamp_(least, NAN - 1), NAN).to(torch.uint8)
    units = blocks * (1 / _unit(wire, torch.where(finite, scales, BIAS)))[:, None]
    if not finite.all():
        units[~finite] = 0.0
    if wire == "mxint8":
        return scales, units.round_().clamp_(-127, 127).add_(0.0)  # an integer has no -0
    return scales, units.clamp_(-LARGEST[wire][1], LARGEST[wire][1])


def _unit(wire: str, scales: torch.Tensor) -> torch.Tensor:
    """What one unit of each block is worth, NaN in a block that is not finite."""
    units = torch.ldexp(torch.ones(len(scales)), scales.int() - BIAS - (6 if wire == "mxint8" else 0))
    return units.masked_fill_(scales == NAN, torch.nan)


def _times(numbers: torch.Tensor, units: torch.Tensor) -> torch.Tensor:
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

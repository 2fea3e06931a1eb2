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
    blocks = values.view(-1, BLOCK)
    scales = _scales(wire, blocks)
    return torch.cat([_codes(wire, _scaled(wire, blocks, scales)).view(-1), scales])


def decode(wire: str, coded: torch.Tensor) -> torch.Tensor:
    """The numbers that these bytes encode, as float32 on one axis."""
    if wire in DTYPES:
        return coded.view(DTYPES[wire]).to(torch.float32)
    bits = WIRES[wire].bits
    blocks = 8 * len(coded) // (bits * BLOCK + 8)
    codes, scales = coded[:-blocks], coded[-blocks:]
    return (_numbers(wire, codes).view(-1, BLOCK) * _powers(scales)[:, None]).view(-1)


def rounded(wire: str, values: torch.Tensor) -> torch.Tensor:
    """Float32 values, of any number on one axis, as ranks receive them over a wire.

    >>> rounded("mxint8", torch.tensor([1.0, 0.51, 100.0])).tolist()
    [1.0, 1.0, 100.0]
    """
    padded = whole_blocks(wire, values)
    if wire in DTYPES:
        return padded.to(DTYPES[wire]).to(torch.float32)
    blocks = padded.view(-1, BLOCK)
    scales = _scales(wire, blocks)
    return (_nearest(wire, _scaled(wire, blocks, scales)) * _powers(scales)[:, None]).view(-1)[: len(values)]


def _nearest(wire: str, scaled: torch.Tensor) -> torch.Tensor:
    """The nearest numbers of an mx format, without their codes: several times as fast as to encode and decode."""
    if wire == "mxint8":
        return (scaled * 64).round() / 64 + 0.0  # which has no -0
    if wire == "mxfp8":
        return scaled.to(torch.float8_e4m3fn).to(torch.float32)
    size = scaled.abs()
    step = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0))
    return (scaled / step).round() * step


def whole_blocks(wire: str, values: torch.Tensor) -> torch.Tensor:
    """The values as float32, filled up with zeros to whole blocks; the same tensor if it is that already."""
    missing = -len(values) % WIRES[wire].block
    return torch.nn.functional.pad(values.float(), (0, missing)) if missing else values.float()


def _scales(wire: str, blocks: torch.Tensor) -> torch.Tensor:
    """One byte a block: the exponent that brings its largest number to the format's largest exponent."""
    most = blocks.abs().amax(1) if len(blocks) else blocks.new_zeros(0)
    exponents = torch.frexp(most).exponent - 1 - LARGEST[wire][0]
    scales = (exponents + BIAS).clamp(0, NAN - 1)
    return torch.where(torch.isfinite(most), scales, NAN).to(torch.uint8)


def _scaled(wire: str, blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Blocks divided by their scales, within the numbers of the format."""
    largest, powers = LARGEST[wire][1], torch.ldexp(torch.ones(len(scales)), BIAS - scales.int())
    return (blocks * powers[:, None]).nan_to_num().clamp(-largest, largest)


def _powers(scales: torch.Tensor) -> torch.Tensor:
    """The scales that these bytes mean."""
    powers = torch.ldexp(torch.ones(len(scales)), scales.int() - BIAS)
    powers[scales == NAN] = torch.nan
    return powers


def _codes(wire: str, scaled: torch.Tensor) -> torch.Tensor:
    if wire == "mxint8":
        return (scaled * 64).round().to(torch.int8).view(torch.uint8)
    if wire == "mxfp8":
        return scaled.to(torch.float8_e4m3fn).view(torch.uint8)
    return _packed(scaled)


def _numbers(wire: str, codes: torch.Tensor) -> torch.Tensor:
    if wire == "mxint8":
        return codes.view(torch.int8).float() / 64
    if wire == "mxfp8":
        return codes.view(torch.float8_e4m3fn).float()
    return FP4[torch.stack([codes & 15, codes >> 4], 1).view(-1).int()]


def _packed(scaled: torch.Tensor) -> torch.Tensor:
    """Two codes of E2M1 a byte, the first in its lower half; each is a place in FP4."""
    size = scaled.abs()
    below = torch.where(size < 2, (2 * size).round(), torch.where(size < 4, size.round() + 2, (size / 2).round() + 4))
    low, high = (below + 8 * scaled.signbit()).to(torch.uint8).view(-1, 2).unbind(1)
    return low | high << 4

"""Codecs: known codes, the nearest number of each format by torch's arithmetic, and numbers that no format has."""

import numpy as np
import pytest
import torch

from collectives import codecs
from collectives.codecs import CODECS

MX = [codec for codec in CODECS if codec.startswith("mx")]
# Integers from -n to n are exact in a block of them.
EXACT = {"float32": 1 << 24, "float16": 1 << 11, "bfloat16": 1 << 8}
EXACT |= {"mxint8": 127, "mxfp8": 14, "mxfp4": 4}


def encode(codec: str, values: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(codecs.encode(codec, values.numpy()))


def decode(codec: str, coded: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(codecs.decode(codec, coded.numpy()))


def rounded(codec: str, values: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(codecs.rounded(codec, values.numpy()))


def block(*values: float) -> torch.Tensor:
    """Values, and zeros up to a whole block."""
    return torch.tensor([*values, *[0.0] * (32 - len(values))])


@pytest.mark.parametrize(
    ("codec", "values", "codes", "scale"),
    [
        ("mxint8", (1.0, -0.5, 1.984375), (64, 256 - 32, 127), 127),
        ("mxfp8", (1.0, -1.125, 0.5), (0x78, 0x80 + 0x79, 0x70), 127 - 8),
        ("mxfp4", (6.0, -0.5, 3.0, 1.0), (7 | 9 << 4, 5 | 2 << 4), 127),
        ("mxint8", (1.0, -0.0), (64, 0), 127),  # an integer has no -0
        ("mxfp8", (1.0, -0.0, 0.0), (0x78, 0x80, 0), 127 - 8),
        ("mxfp4", (4.0, -0.0), (6 | 8 << 4,), 127),
        ("mxint8", (0.0, -0.0), (0, 0), 126),
        ("mxfp8", (0.0, -0.0), (0, 0x80), 126 - 8),
        ("mxfp4", (0.0, -0.0), (8 << 4,), 126 - 2),
    ],
)
def test_codes_are_those_of_the_specification(
    codec: str, values: tuple[float, ...], codes: tuple[int, ...], scale: int
) -> None:
    coded = encode(codec, block(*values))
    assert coded[: len(codes)].tolist() == list(codes)
    assert coded[-1] == scale
    assert decode(codec, coded).tolist() == block(*values).tolist()


@pytest.mark.parametrize("codec", CODECS)
def test_encoding_again_changes_nothing(codec: str) -> None:
    for seed, scale in enumerate((1.0, 1e-3, 300.0, 1e-37, 1e-41, 1e30)):
        values = scale * torch.randn(3200, generator=torch.Generator().manual_seed(seed))
        once = rounded(codec, values)
        assert torch.equal(rounded(codec, once), once)
        assert len(encode(codec, once)) == CODECS[codec].nbytes(3200)


@pytest.mark.parametrize("codec", MX)
def test_a_value_moves_by_half_a_step_of_its_block_at_most(codec: str) -> None:
    """A step is a share of the block's largest value.

    What is larger than every number becomes the largest.
    """
    step = {"mxint8": 2.0**-6, "mxfp8": 2.0**-2, "mxfp4": 1.0}[codec]
    values = torch.randn(6400, generator=torch.Generator().manual_seed(3)).view(-1, 32)
    most = values.abs().amax(1, keepdim=True)
    apart = (rounded(codec, values.view(-1)).view(-1, 32) - values).abs() / most
    assert 0.2 * step < float(apart.max()) <= 0.5 * step


@pytest.mark.parametrize("codec", CODECS)
def test_whole_numbers_are_exact_as_far_as_the_codec_says(codec: str) -> None:
    most = min(EXACT[codec], 1 << 11)
    for top in {most, most - 1, most // 2 + 1, 1}:
        numbers = torch.arange(-top, top + 1).float()
        for part in numbers.split(31):
            each = torch.cat([part, torch.tensor([float(top)])])
            assert torch.equal(rounded(codec, each), each)


@pytest.mark.parametrize("codec", MX)
def test_what_is_not_finite_makes_its_block_nan_and_no_other(codec: str) -> None:
    for bad in (float("inf"), float("-inf"), float("nan")):
        values = torch.ones(96)
        values[40] = bad
        found = rounded(codec, values)
        assert found[32:64].isnan().all()
        assert torch.equal(found[:32], torch.ones(32))
        assert torch.equal(found[64:], torch.ones(32))


@pytest.mark.parametrize("codec", MX)
def test_a_block_that_is_not_finite_has_codes_of_zeros(codec: str) -> None:
    for bad in (float("inf"), float("-inf"), float("nan")):
        *codes, scale = encode(codec, block(1.0, bad, -1.0, -0.0)).tolist()
        assert (set(codes), scale) == ({0}, 255)


@pytest.mark.parametrize("codec", ["float16", "bfloat16"])
def test_half_types_are_converted_as_torch_does(codec: str) -> None:
    """Every half number to float32.

    Back every upper half of a float32, with lower ones that are ties, or almost.
    """
    upper, dtype = torch.arange(1 << 16) << 16, getattr(torch, codec)
    every = (upper >> 16).to(torch.int16).view(dtype)
    assert torch.allclose(
        decode(codec, every.view(torch.uint8)), every.float(), 0, 0, equal_nan=True
    )
    for lower in (
        0,
        1,
        0xFFF,
        0x1000,
        0x1001,
        0x2FFF,
        0x3000,
        0x3001,
        0x7FFF,
        0x8000,
        0x8001,
        0xF000,
        0xFFFF,
    ):
        values = (upper + lower).to(torch.int32).view(torch.float32)
        found, wanted = encode(codec, values).view(dtype), values.to(dtype)
        is_alike = found.view(torch.int16) == wanted.view(torch.int16)
        assert (is_alike | (found.isnan() & wanted.isnan())).all()


def test_all_codes_of_e4m3_are_those_of_torch() -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    numbers = codes.view(torch.float8_e4m3fn).float()
    found = decode("mxfp8", torch.cat([codes, torch.full((8,), 127, dtype=torch.uint8)]))
    assert torch.allclose(found, numbers, 0, 0, equal_nan=True)
    for part in torch.arange(256)[numbers.isfinite()].split(31):
        assert (
            encode("mxfp8", block(*numbers[part].tolist(), 448.0)[:32])[: len(part)].tolist()
            == part.tolist()
        )


# The largest exponent of each format, the least scale, and the sizes of its numbers; those at even
# places are even.
SIZES = {
    "mxint8": (0, -121, torch.arange(128) / 64),
    "mxfp8": (8, -127, torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()),
    "mxfp4": (2, -127, torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])),
}


def nearest(codec: str, values: torch.Tensor) -> torch.Tensor:
    """What a codec makes of blocks, by definition: of all numbers of the format the nearest, or the even one of two."""
    exponent, least, sizes = SIZES[codec]
    blocks, sizes = values.double().view(-1, 32), sizes.double()
    powers = torch.frexp(blocks.abs().amax(1, keepdim=True)).exponent - 1 - exponent
    units = torch.ldexp(torch.ones_like(powers), powers.clamp(least, 127)).double()
    size = (blocks.abs() / units).clamp(max=sizes[-1])
    above = torch.searchsorted(sizes, size).clamp(min=1)
    over, under = size - sizes[above - 1], sizes[above] - size
    goes_up = (over > under) | ((over == under) & (above % 2 == 0))
    return (
        (torch.where(goes_up, sizes[above], sizes[above - 1]) * units)
        .copysign(blocks)
        .float()
        .view(-1)
    )


@pytest.mark.parametrize("codec", MX)
@pytest.mark.parametrize("most", [20, 300, 1 << 24], ids=["many ties", "ties", "any"])
def test_each_number_becomes_the_nearest_of_its_block(most: int, codec: str) -> None:
    """Blocks around all exponents, those of subnormal numbers and of the largest, too."""
    made = torch.Generator().manual_seed(most)
    numbers = torch.randint(-most, most + 1, (1 << 15, 32), generator=made)
    powers = (
        torch.arange(1 << 15)[:, None] % 278
        - 150
        - torch.randint(0, 7, (1 << 15, 32), generator=made)
    )
    values = torch.ldexp(numbers.double() / most, powers).float().view(-1)
    assert torch.equal(rounded(codec, values), nearest(codec, values))


@pytest.mark.parametrize("codec", CODECS)
def test_values_need_not_be_float32_or_side_by_side(codec: str) -> None:
    values = np.random.default_rng(5).normal(size=200)
    assert np.array_equal(
        codecs.rounded(codec, values[::2]), codecs.rounded(codec, values[::2].astype("f4"))
    )
    wide = values[:128].astype(np.float32)
    assert np.array_equal(codecs.encode(codec, wide[::2]), codecs.encode(codec, wide[::2].copy()))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("elements", [0, 1, 31, 32, 33])
def test_any_number_of_values_is_rounded(codec: str, elements: int) -> None:
    values = np.arange(elements, dtype=np.float32) % 4
    assert codecs.rounded(codec, values).tolist() == values.tolist()

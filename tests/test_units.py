"""Quantities: every unit by its value.

Whatever is printed can be typed, and what is typed comes back equal.
"""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives.units import (
    duration,
    format_bytes,
    format_rate,
    format_seconds,
    parse_bytes,
    parse_rate,
    parse_seconds,
)

MANY = [
    *range(2100),
    *(1 << power for power in range(63)),
    *(10**power + 7 for power in range(18)),
    (1 << 63) - 1,
]
QUANTITIES = st.floats(min_value=0, allow_nan=False, allow_infinity=False)


@given(QUANTITIES)
def test_a_typed_time_comes_back_equal(seconds: float) -> None:
    assert parse_seconds(format_seconds(seconds)) == seconds


@given(QUANTITIES)
def test_a_typed_rate_comes_back_equal(rate: float) -> None:
    assert parse_rate(format_rate(rate)) == rate


@given(st.floats(min_value=1e-12, max_value=1e12))
def test_a_duration_comes_back_to_three_digits(seconds: float) -> None:
    assert parse_seconds(duration(seconds)) == pytest.approx(seconds, rel=0.006, abs=0)


@pytest.mark.parametrize(
    "microseconds", [0.4, 5, 400, 999.4, 999.6, 1000, 999_600, 12_345_678, 1e12]
)
def test_durations_have_no_exponent_and_can_be_typed(microseconds: float) -> None:
    shown = duration(microseconds * 1e-6)
    assert "e" not in shown
    assert parse_seconds(shown) == pytest.approx(microseconds * 1e-6, rel=0.006)
    assert parse_seconds(shown.replace(" ", "")) == parse_seconds(shown)


def test_a_size_comes_back_to_six_digits() -> None:
    assert [parse_bytes(format_bytes(nbytes)) for nbytes in MANY] == pytest.approx(
        MANY, rel=6e-6, abs=0
    )


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5us", 5e-6),
        ("5\u00b5s", 5e-6),
        ("5\u03bcs", 5e-6),
        ("5 \u00b5s", 5e-6),
        (".5ms", 5e-4),
        ("1.s", 1.0),
    ],
)
def test_both_signs_for_micro_are_read(text: str, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("64 KiB", 65_536),
        ("64kib", 65_536),
        ("1.5M", 3 << 19),
        ("4 B", 4),
        ("2 GiB", 2 << 30),
        ("00", 0),
    ],
)
def test_sizes_are_read_as_they_are_printed(text: str, nbytes: int) -> None:
    assert parse_bytes(text) == nbytes


@pytest.mark.parametrize("parse", [parse_bytes, parse_seconds, parse_rate])
@pytest.mark.parametrize(
    "text",
    [
        *("", "inf", "nan", "infs", "nanGB/s", "1e3s", "1e3", "-1us", "-1", "K", "1 2us"),
        *("\u0663us", "\u0663", "5 u", "4.5B", "0x10"),
    ],
)
def test_what_is_no_quantity(parse: object, text: str) -> None:
    with pytest.raises(ValueError, match="expected for example"):
        parse(text)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("parse", "unit"),
    [(parse_bytes, "G"), (parse_bytes, ""), (parse_seconds, "s"), (parse_rate, "TB/s")],
)
def test_what_is_too_large_is_said_in_a_short_line(parse: object, unit: str) -> None:
    with pytest.raises(ValueError, match="too large; expected") as caught:
        parse("9" * 5000 + unit)  # type: ignore[operator]
    assert len(str(caught.value)) < 200


def test_a_long_text_is_not_repeated() -> None:
    with pytest.raises(ValueError, match=r"invalid time .*1,000,002 characters\)") as caught:
        parse_seconds("x" * 1_000_000)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("text", "rate"), [("200Gb/s", "25GB/s"), ("200Gbit/s", "25GB/s"), ("100 Mbps", "12.5MB/s")]
)
def test_a_rate_in_bits_is_answered_by_the_rate_in_bytes(text: str, rate: str) -> None:
    with pytest.raises(
        ValueError, match=rf"is in bits \(lower-case b\); expected for example {rate}, in bytes"
    ):
        parse_rate(text)


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        *(
            (parse_bytes, f"3{unit}", 3 << power)
            for unit, power in (("", 0), ("K", 10), ("M", 20), ("G", 30))
        ),
        *(
            (parse_seconds, f"3{unit}", value)
            for unit, value in (("ns", 3e-9), ("us", 3e-6), ("ms", 3e-3), ("s", 3.0))
        ),
        *(
            (parse_rate, f"3{unit}", value)
            for unit, value in (("B/s", 3.0), ("KB/s", 3e3), ("MB/s", 3e6))
        ),
        *((parse_rate, f"3{unit}", value) for unit, value in (("GB/s", 3e9), ("TB/s", 3e12))),
    ],
)
def test_every_unit(parse: Callable[[str], float], text: str, value: float) -> None:
    assert parse(text) == value


@pytest.mark.parametrize("text", ["64Q", "", "K", "-4", "4 5", "1e3"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match=f"'{text}'"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1 << 20, "1 MiB"),
        (1 << 30, "1 GiB"),
        (1 << 40, "1024 GiB"),
    ],
)
def test_a_size_is_printed_in_the_largest_unit_that_it_fills(nbytes: int, text: str) -> None:
    assert format_bytes(nbytes) == text

"""Every unit by its value: what is typed with it, and what is refused."""

from collections.abc import Callable

import pytest

from collectives.units import format_bytes, parse_bytes, parse_rate, parse_seconds


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        *((parse_bytes, f"3{unit}", 3 << power) for unit, power in (("", 0), ("K", 10), ("M", 20), ("G", 30))),
        *((parse_seconds, f"3{unit}", value) for unit, value in (("ns", 3e-9), ("us", 3e-6), ("ms", 3e-3), ("s", 3.0))),
        *((parse_rate, f"3{unit}", value) for unit, value in (("B/s", 3.0), ("KB/s", 3e3), ("MB/s", 3e6))),
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
    [(1023, "1023 B"), (1024, "1 KiB"), (1 << 20, "1 MiB"), (1 << 30, "1 GiB"), (1 << 40, "1024 GiB")],
)
def test_a_size_is_printed_in_the_largest_unit_that_it_fills(nbytes: int, text: str) -> None:
    assert format_bytes(nbytes) == text

"""Parse and print quantities: sizes as 64K (powers of 1024), times as 5us, rates as 25GB/s (of 1000).

The parsers read whatever `format_bytes`, `duration`, `format_seconds` and `format_rate` print. And
the largest accepted values: beyond them memory or time would run out without a message.
"""

import math
import re
from collections.abc import Sequence
from decimal import Decimal

from collectives.errors import short

# A schedule has arrays with an entry for every rank; at this limit a simulation takes a minute.
MAX_RANKS = 1 << 20

# If every rank sends to every other in one step, the step has a row for each pair: 16 million rows,
# 600 MB.
MAX_RANKS_IN_PAIRS = 1 << 12

# A step has a row for every segment in flight, and a pipeline gains nothing from more.
MAX_SEGMENTS = 1 << 16

# Every rank proves and compiles its schedule before it starts, which takes about a millisecond a
# segment.
MAX_SEGMENTS_STARTED = 1 << 10

# The chunks' offsets are an array of 64-bit numbers: 1 GiB.
MAX_CHUNKS = 1 << 27

# A command that shows or counts whole schedules does so within seconds; a picture, within a minute.
MAX_RANKS_SHOWN = 1 << 10
MAX_MESSAGES_DRAWN = 1 << 14

# Bytes of one buffer: the bytes that all ranks send together stay below 2**63.
MAX_BYTES = 1 << 38

# Ranks that are processes; a rank that has imported torch has more private memory than this.
MAX_RANKS_STARTED = 1 << 14
BYTES_OF_A_RANK = 64 << 20

# The samples of one row are printed and kept.
MAX_REPETITIONS = 10_000

# A week. The longest time that every layer below can count is not much longer.
MAX_SECONDS = 7 * 86_400

_POWERS = {"": 0, "B": 0, "K": 1, "KIB": 1, "M": 2, "MIB": 2, "G": 3, "GIB": 3}
_INT64 = (1 << 63) - 1
# Powers of ten, from small to large. The sign for micro has two code points; both are read as u.
_SECONDS = {"ns": -9, "us": -6, "ms": -3, "s": 0}
_MICRO = str.maketrans({"\u00b5": "u", "\u03bc": "u"})
_RATES = {"B/s": 0, "KB/s": 3, "MB/s": 6, "GB/s": 9, "TB/s": 12}
_NUMBER = r"([0-9]+\.?[0-9]*|\.[0-9]+)\s*"
# What the parsers read, as regular expressions for JSON Schemas.
TYPED_BYTES = rf"^\s*([0-9]+\s*[Bb]?|{_NUMBER}[KkMmGg]([Ii][Bb])?)\s*$"
TYPED_SECONDS = rf"^\s*{_NUMBER}([nmu\u00b5\u03bc]?s)\s*$"
TYPED_RATE = rf"^\s*{_NUMBER}([KMGT]?B/s)\s*$"


def parse_bytes(text: str | int) -> int:
    """Parse a size as people type it, into bytes.

    A fraction such as 1.5K is rounded to whole bytes.

    Raises ValueError for anything else, and for sizes from 2^63 on.

    >>> parse_bytes("64K"), parse_bytes("1M"), parse_bytes(4), parse_bytes("1.5 KiB")
    (65536, 1048576, 4, 1536)
    """
    match = re.fullmatch(rf"{_NUMBER}([A-Z]*)", str(text).strip().upper())
    power = _POWERS.get(match[2]) if match else None
    if not match or power is None or (power == 0 and "." in match[1]):
        raise ValueError(
            f"invalid size {short(text)}; expected for example 4, 64K, 1M or 2G (powers of 1024)"
        )
    size = Decimal(match[1]) * (1 << 10 * power)
    if size > _INT64:
        raise ValueError(f"a size of {short(text)} is too large; expected less than 2^63 bytes")
    return round(size)


def parse_seconds(text: str) -> float:
    """Parse a time as people type it, into seconds. Raises ValueError for anything else.

    >>> parse_seconds("5us"), parse_seconds("2.5 ms"), parse_seconds("400 µs"), parse_seconds("0s")
    (5e-06, 0.0025, 0.0004, 0.0)
    """
    return _quantity(str(text).translate(_MICRO), _SECONDS, "time", "500ns, 5us, 5ms or 1.5s")


def parse_rate(text: str) -> float:
    """Parse a rate as people type it, into bytes per second. Raises ValueError for anything else.

    >>> parse_rate("25MB/s"), parse_rate("23 GB/s")
    (25000000.0, 23000000000.0)
    """
    if bits := re.fullmatch(rf"{_NUMBER}([KMGT]?)b(?:ps|/s|it/s)", str(text).strip()):
        rate = format_rate(parse_rate(f"{bits[1]}{bits[2]}B/s") / 8)
        raise ValueError(
            f"a rate of {short(text)} is in bits (lower-case b); expected for example {rate}, in bytes"
        )
    return _quantity(text, _RATES, "rate", "25MB/s or 23GB/s (powers of 1000)")


def _quantity(text: str, units: dict[str, int], what: str, examples: str) -> float:
    match = re.fullmatch(rf"{_NUMBER}([^\W\d_]+(?:/s)?)", str(text).strip())
    if not match or match[2] not in units:
        raise ValueError(f"invalid {what} {short(text)}; expected for example {examples}")
    value = float(f"{match[1]}e{units[match[2]]}")
    if not math.isfinite(value):
        raise ValueError(f"a {what} of {short(text)} is too large; expected for example {examples}")
    return value


def format_bytes(nbytes: float) -> str:
    """Format a size in bytes as people read it, to six significant digits.

    >>> format_bytes(65536), format_bytes(4), format_bytes(1536)
    ('64 KiB', '4 B', '1.5 KiB')
    """
    for unit in ("B", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{_plain(nbytes, 6)} {unit}"
        nbytes /= 1024
    return f"{_plain(nbytes, 6)} GiB"


def duration(seconds: float) -> str:
    """Format a time in seconds as people read it, to three significant digits.

    >>> duration(5e-6), duration(0.0123), duration(7.8), duration(999.6e-6)
    ('5 µs', '12.3 ms', '7.8 s', '1 ms')
    """
    for unit, factor in (("µs", 1e6), ("ms", 1e3)):
        if abs(float(f"{seconds * factor:.3g}")) < 1000:
            return f"{_plain(seconds * factor, 3)} {unit}"
    return f"{_plain(seconds, 3)} s"


def many(count: int, noun: str) -> str:
    """Format a count and its noun, in the singular for one.

    >>> many(1, "chunk"), many(4, "chunk"), many(24_576, "rank")
    ('1 chunk', '4 chunks', '24,576 ranks')
    >>> many(2, "switch")
    '2 switches'
    """
    return f"{count:,} {noun}{'' if count == 1 else 'es' if noun.endswith('ch') else 's'}"


def runs(numbers: Sequence[int]) -> str:
    """Format ascending whole numbers, with consecutive ones as runs.

    >>> runs((1, 2, 3, 5))
    '1–3, 5'
    """
    given = set(numbers)
    begins = [number for number in numbers if number - 1 not in given]
    ends = [number for number in numbers if number + 1 not in given]
    return ", ".join(f"{a}" if a == b else f"{a}–{b}" for a, b in zip(begins, ends, strict=True))


def format_seconds(seconds: float) -> str:
    """Format a time in seconds as people type it, exactly: `parse_seconds` returns the same number.

    >>> format_seconds(4e-4), format_seconds(0.02), format_seconds(0.0)
    ('400us', '20ms', '0s')
    """
    return _typed(seconds, _SECONDS)


def format_rate(rate: float) -> str:
    """Format a rate in bytes per second as people type it, exactly: `parse_rate` returns the same number.

    >>> format_rate(25e9), format_rate(6.25e6), format_rate(50e3)
    ('25GB/s', '6.25MB/s', '50KB/s')
    """
    return _typed(rate, _RATES)


def _typed(value: float, units: dict[str, int]) -> str:
    """Format the value in its largest unit of at least 1. Shifting the decimal point is exact."""
    exact = Decimal(repr(float(value)))
    fitting = [unit for unit, power in units.items() if exact.scaleb(-power) >= 1]
    smallest, largest = next(iter(units)), next(reversed(units))
    unit = fitting[-1] if fitting else smallest if value else largest
    return f"{_digits(exact.scaleb(-units[unit]))}{unit}"


def _plain(value: float, digits: int) -> str:
    """Format the value with the given number of significant digits, without an exponent."""
    return _digits(Decimal(f"{value:.{digits}g}"))


def _digits(value: Decimal) -> str:
    text = f"{value:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text

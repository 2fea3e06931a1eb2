"""How quantities are typed and printed: sizes as 64K (powers of 1024), times as 5us, rates as 25GB/s (of 1000)."""

from __future__ import annotations

import re

_POWERS = {"": 0, "K": 1, "M": 2, "G": 3}
# Powers of ten.
_SECONDS = {"ns": -9, "us": -6, "ms": -3, "s": 0}
_RATES = {"B/s": 0, "KB/s": 3, "MB/s": 6, "GB/s": 9, "TB/s": 12}


def parse_bytes(text: str | int) -> int:
    """A size as people type it; raises ValueError for anything else.

    >>> parse_bytes("64K"), parse_bytes("1M"), parse_bytes(4)
    (65536, 1048576, 4)
    """
    match = re.fullmatch(r"(\d+)([KMG]?)", str(text).strip().upper())
    if not match:
        raise ValueError(f"{text!r} is no size; write it as 4, 64K, 1M or 2G (powers of 1024)")
    return int(match[1]) << 10 * _POWERS[match[2]]


def parse_seconds(text: str) -> float:
    """A time as people type it, in seconds; raises ValueError for anything else.

    >>> parse_seconds("5us"), parse_seconds("2.5 ms"), parse_seconds("0s")
    (5e-06, 0.0025, 0.0)
    """
    return _quantity(text, _SECONDS, "time; write it as 500ns, 5us, 5ms or 1.5s")


def parse_rate(text: str) -> float:
    """A rate as people type it, in bytes a second; raises ValueError for anything else.

    >>> parse_rate("25MB/s"), parse_rate("23 GB/s")
    (25000000.0, 23000000000.0)
    """
    return _quantity(text, _RATES, "rate; write it as 25MB/s or 23GB/s (powers of 1000)")


def _quantity(text: str, units: dict[str, int], otherwise: str) -> float:
    match = re.fullmatch(r"(\d+\.?\d*|\.\d+)\s*([A-Za-z/]+)", str(text).strip())
    if not match or match[2] not in units:
        raise ValueError(f"{text!r} is no {otherwise}")
    return float(f"{match[1]}e{units[match[2]]}")


def format_bytes(nbytes: float) -> str:
    """A size as people read it.

    >>> format_bytes(65536), format_bytes(4), format_bytes(1536)
    ('64 KiB', '4 B', '1.5 KiB')
    """
    for unit in ("B", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:g} {unit}"
        nbytes /= 1024
    return f"{nbytes:g} GiB"


def duration(seconds: float) -> str:
    """A time as people read it.

    >>> duration(5e-6), duration(0.0123), duration(7.8)
    ('5 µs', '12.3 ms', '7.8 s')
    """
    for unit, factor in (("µs", 1e6), ("ms", 1e3)):
        if round(seconds * factor, 6) < 1000:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds:.3g} s"

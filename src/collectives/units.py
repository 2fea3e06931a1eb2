"""How sizes are typed and printed: 4, 64K, 1M in powers of 1024."""

from __future__ import annotations

import re

_POWERS = {"": 0, "K": 1, "M": 2, "G": 3}


def parse_bytes(text: str | int) -> int:
    """A size as people type it; raises ValueError for anything else.

    >>> parse_bytes("64K"), parse_bytes("1M"), parse_bytes(4)
    (65536, 1048576, 4)
    """
    match = re.fullmatch(r"(\d+)([KMG]?)", str(text).strip().upper())
    if not match:
        raise ValueError(f"{text!r} is no size; write it as 4, 64K, 1M or 2G (powers of 1024)")
    return int(match[1]) << 10 * _POWERS[match[2]]


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

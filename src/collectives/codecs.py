"""Define the codecs of messages, and how an algorithm's name selects one; names that have changed.

``ring/bfloat16`` is the ring with bfloat16 messages. A rank rounds what it sends in its own buffer,
too, and rounds the result. Every sum is computed in float32. The mx formats are those of the OCP
Microscaling Formats Specification 1.0 (2023): 32 numbers in a row share a scale, which is a power
of two in one byte.
"""

from typing import Any, NamedTuple

FLOAT = 4  # bytes of a number of the buffer, which is float32


class Codec(NamedTuple):
    """A format: bits of an element, elements that share a scale (1: no scale), the largest exact integer.

    A block whose integers lie between ``-exact`` and ``exact`` is encoded without error.
    """

    bits: int
    block: int
    exact: int

    def nbytes(self, elements: Any) -> Any:
        """Return the bytes of ``elements`` (a number or an array), which are whole blocks.

        >>> CODECS["mxint8"].nbytes(64), CODECS["bfloat16"].nbytes(3)
        (66, 6)
        """
        return elements * self.bits // 8 + (elements // self.block if self.block > 1 else 0)

    def blocks(self, elements: int) -> int:
        """Return the blocks of ``elements``, of which the last may be filled up with zeros."""
        return -(-elements // self.block)


# Names that algorithms had before, and that rows, presets and files recorded with them still carry.
RENAMED = {
    "exchange": "one_shot",
    "optimal": "circulant",
    "parameter_server": "two_shot",
    "root": "reduce_broadcast",
}

BLOCK = 32
CODECS = {
    "float32": Codec(32, 1, 1 << 24),
    "float16": Codec(16, 1, 1 << 11),
    "bfloat16": Codec(16, 1, 1 << 8),
    "mxint8": Codec(8, BLOCK, 127),
    "mxfp8": Codec(8, BLOCK, 14),  # E4M3
    "mxfp4": Codec(4, BLOCK, 4),  # E2M1
}


def encoded_bytes(elements: int, nbytes: int, algorithm: str) -> int:
    """Return the encoded size of a buffer in bytes, or ``nbytes`` without a codec.

    >>> encoded_bytes(1000, 4000, "ring/mxint8"), encoded_bytes(1000, 4000, "ring")
    (1056, 4000)
    """
    codec = split(algorithm)[1]
    if codec is None:
        return nbytes
    each = CODECS[codec]
    return int(each.nbytes(each.blocks(elements) * each.block))


def split(algorithm: str) -> tuple[str, str | None]:
    """Split a name into the algorithm's and its codec, which is None if messages have the tensor's dtype.

    A suffix that names no codec stays in the name: it may be part of a path.

    >>> split("ring/mxint8"), split("ring"), split("my/file.py:ring"), split("my/file.py:ring/mxfp4")
    (('ring', 'mxint8'), ('ring', None), ('my/file.py:ring', None), ('my/file.py:ring', 'mxfp4'))
    """
    name, _, codec = algorithm.rpartition("/")
    return (name, codec) if codec in CODECS else (algorithm, None)


def current_name(algorithm: str) -> str:
    """Return the present name of an algorithm, with its codec. Any other text is returned as it is.

    >>> current_name("parameter_server/mxint8"), current_name("ring"), current_name("my/file.py:root")
    ('two_shot/mxint8', 'ring', 'my/file.py:root')
    """
    name, codec = split(algorithm)
    return RENAMED[name] + f"/{codec}" * bool(codec) if name in RENAMED else algorithm

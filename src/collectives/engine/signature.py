"""What a call is, in a few bytes that go with each of its messages: ranks that call differently are told how."""

from __future__ import annotations

import struct
from functools import lru_cache

import torch
from torch import distributed as dist

from collectives.algorithms import ALGORITHMS
from collectives.engine.reduce import COMBINE, DTYPES

# Collective, op, dtype, whether splits are given, root, segments, elements, the algorithm's name (or its end).
_FIELDS = struct.Struct("<BBBBiIQ20s")
_COLLECTIVES = tuple(dict.fromkeys(collective for collective, _ in ALGORITHMS))
_NONE = 255, -1  # op, root

SIZE = _FIELDS.size
NO_CALL = bytes(SIZE)

# Signatures kept.
KEPT = 256


@lru_cache(maxsize=KEPT)
def signature(
    collective: str,
    algorithm: str,
    op: dist.ReduceOp.RedOpType | None,
    dtype: torch.dtype,
    n: int | None,
    root: int | None,
    segments: int,
) -> bytes:
    """A call of ``n`` elements, or of each rank's own splits (None), as bytes that are equal for equal calls."""
    return _FIELDS.pack(
        _COLLECTIVES.index(collective),
        _NONE[0] if op is None else list(COMBINE).index(op),
        DTYPES.index(dtype),
        n is None,
        _NONE[1] if root is None else root,
        segments,
        n or 0,
        algorithm.encode()[-20:],
    )


def difference(theirs: bytes, ours: bytes) -> str:
    """In what two signatures differ.

    >>> sums, most = (
    ...     signature("all_reduce", "ring", op, torch.float32, n, None, 1)
    ...     for op, n in ((dist.ReduceOp.SUM, 8), (dist.ReduceOp.MAX, 9))
    ... )
    >>> difference(sums, most)
    'op SUM against MAX, elements 8 against 9'
    """
    pairs = zip(_read(theirs).items(), _read(ours).values(), strict=True)
    return ", ".join(f"{name} {one} against {other}" for (name, one), other in pairs if one != other)


def _read(packed: bytes) -> dict[str, str]:
    collective, op, dtype, splits, root, segments, n, algorithm = _FIELDS.unpack(packed)
    return {
        "collective": _name(_COLLECTIVES, collective),
        "algorithm": algorithm.rstrip(b"\0").decode(errors="replace"),
        "op": _name([str(each).rpartition(".")[2] for each in COMBINE], op),
        "dtype": _name([str(each).rpartition(".")[2] for each in DTYPES], dtype),
        "elements": "by split sizes" if splits else str(n),
        "root": str(root),
        "segments": str(segments),
    }


def _name(names: list[str] | tuple[str, ...], code: int) -> str:
    return names[code] if code < len(names) else "none"

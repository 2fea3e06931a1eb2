"""Checkpoints: all that a training run needs to resume, in one file that is complete or absent.

Rank 0 writes the file under another name and moves it to its place, so a rank that dies while it writes leaves the last
checkpoint as it was. Rank 0 reads it and sends its bytes to the others, which need no common file system. They are
loaded with torch's ``weights_only``, which builds tensors and plain values and runs no code.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from collectives.bench.results import replace

if TYPE_CHECKING:
    from collectives_book.data_parallel.training import Replicas

Content = dict[str, Any]

# Bytes travel as integers of this dtype, which every back end sends.
WORD = torch.int64


def save(path: str | Path, content: Content) -> None:
    """Write tensors and plain values to ``path``, over what was there; a reader sees the old file or the new one."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    replace(Path(path), lambda partial: _write(partial, content))


def _write(path: Path, content: Content) -> None:
    with path.open("wb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())  # the bytes are on the disk before the name is


def load(path: str | Path, replicas: Replicas) -> Content | None:
    """What rank 0 finds at ``path``, on every rank; None where there is no file. Every rank calls it.

    Raises ValueError, on every rank, for a file that is not a checkpoint.
    """
    found = b""
    if replicas.rank == 0 and Path(path).exists():
        found = Path(path).read_bytes()
    data = broadcast(found, replicas)
    if not data:
        return None
    try:
        content: Content = torch.load(io.BytesIO(data), map_location=replicas.device, weights_only=True)
    except Exception as error:  # a damaged file fails in many ways
        raise ValueError(f"invalid checkpoint {path}: {' '.join(str(error).split())[:200]}") from None
    return content


def broadcast(data: bytes, replicas: Replicas) -> bytes:
    """The bytes that rank 0 has, on every rank: their number first, then the bytes, filled up to whole words."""
    size = torch.tensor([len(data)], dtype=WORD, device=replicas.device)
    replicas.broadcast(size)
    count = int(size)
    if not count:
        return b""
    words = -(-count // WORD.itemsize)
    buffer = torch.zeros(words, dtype=WORD)
    if replicas.rank == 0:
        buffer = torch.frombuffer(bytearray(data.ljust(words * WORD.itemsize, b"\0")), dtype=WORD)
    there = buffer.to(replicas.device)
    replicas.broadcast(there)
    return there.cpu().numpy().tobytes()[:count]


def need_same(path: str | Path, made_for: Content, wanted: Content) -> None:
    """Raise ValueError if the parameters that a checkpoint was made with differ from those wanted."""
    for name, value in wanted.items():
        if made_for.get(name) != value:
            raise ValueError(
                f"checkpoint {path} has other parameters: got {name}={made_for.get(name)}, expected {name}={value}"
            )

"""Checkpoints: all that a training needs to resume, in one file that is complete or absent.

Rank 0 writes a checkpoint under another name and moves it to its place, so a rank that dies while
it writes leaves the last checkpoint as it was. Rank 0 reads it and sends its bytes to the others,
which need no common file system. They are loaded with torch's ``weights_only``, which builds
tensors and plain values and runs no code.
"""

from __future__ import annotations

import io
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from collectives.files import replace
from collectives_book.training.replicas import Replicas
from collectives_book.training.step import State, Training

# A checkpoint's bytes travel as integers of this dtype, which every back end sends.
WORD = torch.int64


def save(state: State, training: Training, file: str) -> None:
    """Write all that the next steps depend on: parameters, momentum, the steps so far and what is trained."""
    content = {
        "model": state.model.state_dict(),
        "optimizer": state.optimizer.state_dict(),
    }
    write(file, content | {"losses": state.losses, "training": asdict(training)})


def write(path: str | Path, content: dict[str, Any]) -> None:
    """Write tensors and plain values to ``path``, over what was there.

    A reader sees the old file or the new one.
    """

    def put(partial: Path) -> None:
        # To a file on a full disk it raises what says nothing.
        whole = io.BytesIO()
        torch.save(content, whole)
        with partial.open("wb") as file:
            file.write(whole.getbuffer())
            file.flush()
            os.fsync(file.fileno())  # the bytes are on the disk before the name is

    Path(path).parent.mkdir(parents=True, exist_ok=True)
    replace(Path(path), put)


def resume(state: State, training: Training, replicas: Replicas, file: str) -> None:
    """Resume from the file's checkpoint, if there is one.

    Only the number of steps may differ from its parameters.
    """
    found = load(file, replicas)
    if found is None:
        return
    for name, value in asdict(training).items():
        if name != "steps" and found["training"].get(name) != value:
            got = f"got {name}={found['training'].get(name)}, expected {name}={value}"
            raise ValueError(f"checkpoint {file} has other parameters: {got}")
    state.model.load_state_dict(found["model"])
    state.optimizer.load_state_dict(found["optimizer"])
    state.losses.extend(found["losses"])


def load(path: str | Path, replicas: Replicas) -> dict[str, Any] | None:
    """Return what rank 0 finds at ``path``, on every rank; None where there is no file.

    Every rank calls it.

    Raises ValueError, on every rank, for a file that is not a checkpoint.
    """
    is_here = replicas.rank == 0 and Path(path).exists()
    data = broadcast(Path(path).read_bytes() if is_here else b"", replicas)
    if not data:
        return None
    try:
        content: dict[str, Any] = torch.load(
            io.BytesIO(data), map_location=replicas.device, weights_only=True
        )
    except Exception as error:  # a damaged file fails in many ways
        raise ValueError(
            f"invalid checkpoint {path}: {' '.join(str(error).split())[:200]}"
        ) from None
    return content


def broadcast(data: bytes, replicas: Replicas) -> bytes:
    """Return the bytes of rank 0, on every rank: their number travels first, then the bytes, filled up to words."""
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

"""Hashes that tell whether a result still belongs to what it was made from: a JSON value, and a package's files."""

import hashlib
import json
from pathlib import Path
from typing import Any

SUFFIXES = (".json", ".py", ".toml", ".yaml")


def digest(value: Any) -> str:
    """Return 64 hexadecimal digits that are the same for the same JSON value and for no other.

    The order of a dictionary's keys does not count.

    >>> digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1}), digest([1]) == digest([2])
    (True, False)
    """
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def code(folder: Path) -> str:
    """Return a hash, in 64 hexadecimal digits, of the names and bytes of a package's code and data files."""
    sha256 = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        # An editor's lock is a link to nothing.
        if path.suffix not in SUFFIXES or not path.is_file():
            continue
        data = path.read_bytes()
        sha256.update(f"{path.relative_to(folder)} {len(data)}\n".encode() + data)
    return sha256.hexdigest()

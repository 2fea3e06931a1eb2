"""Files that are written whole or not at all."""

import os
from collections.abc import Callable
from pathlib import Path


def check_new_or_file(path: str | Path) -> None:
    """Raise ValueError unless the path is a regular file, or a new name in an existing folder.

    Writing would replace a device, a pipe or a link by a file.
    """
    path = Path(path)
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise ValueError(f"cannot write {path}: got a folder, link, device or pipe, expected a file or a new name")
    if not path.parent.is_dir():
        raise ValueError(f"cannot write {path}: expected an existing folder, got {path.parent}")


def replace(path: Path, write_to: Callable[[Path], object]) -> None:
    """Write a file next to ``path`` by a function, and move it there when it is whole."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write_to(partial)
        partial.replace(path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None  # a full disk names no file
    finally:
        partial.unlink(missing_ok=True)

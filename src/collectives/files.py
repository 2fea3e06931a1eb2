"""Files that are written whole or not at all."""

import os
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from tempfile import TemporaryDirectory


def check_new_or_file(path: str | Path) -> None:
    """Raise ValueError unless the path is a regular file, or a new name in an existing folder.

    Writing would replace a device, a pipe or a link by a file.
    """
    path = Path(path)
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise ValueError(
            f"cannot write {path}: got a folder, link, device or pipe, expected a file or a new name"
        )
    if not path.parent.is_dir():
        raise ValueError(f"cannot write {path}: expected an existing folder, got {path.parent}")


def replace(path: Path, write_to: Callable[[Path], object]) -> None:
    """Write a file of this name in a new folder beside ``path`` by a function, and move it there when it is whole.

    Raises OSError, which names ``path``, where it cannot be written; what was there is then
    unchanged.
    """
    try:
        with TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
            partial = Path(folder) / path.name
            write_to(partial)
            partial.replace(path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None  # a full disk names no file


def append(path: Path, data: bytes) -> None:
    """Add to the end of a file, which may be new.

    Raises OSError, which names ``path``, where it cannot be written; the file is then as it was.
    """
    before = path.stat().st_size if path.exists() else None
    left = memoryview(data)
    try:
        with FileIO(path, "a") as file:
            while left:
                left = left[file.write(left) :]
    except OSError as error:
        if before is None:
            path.unlink(missing_ok=True)
        else:
            os.truncate(path, before)
        raise OSError(error.errno, error.strerror, str(path)) from None

"""What students have handed in: the folders of a class, and the files of one of them, each read once and without links.

A student may change a folder while it is read. So a file is opened once, no link on the way to it is followed, and what
was read is all that is looked at from then on.
"""

import errno
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePath

MOST_FILE = 1 << 20
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe that nobody writes to does not block
REASONS = {
    errno.ELOOP: "is a symbolic link, expected a file",
    errno.ENOENT: "is missing in the submission",
    errno.ENOTDIR: "is behind a symbolic link or a file, expected folders",
    errno.ENXIO: "is a folder, a pipe or a device, expected a file",
}


class SubmissionError(ValueError):
    """A submission that cannot be graded: a file is missing, empty, too large, a link or not readable."""


@dataclass(frozen=True)
class HandedIn:
    """The files of a submission as they were read; or ``problem``, why they cannot be graded."""

    files: dict[str, bytes] = field(default_factory=dict)
    problem: str = ""


def submissions(folder: Path) -> list[Path]:
    """The folders in a class's folder, by name, a link among them too. Raises ValueError where there is none."""
    found = [each for each in _folders(folder) if not _is_skipped(each.name)]
    if not found:
        raise ValueError(f"submissions: got {folder}, expected a folder with a folder for each student")
    return found


def skipped(folder: Path) -> list[str]:
    """The names of folders that no student handed in: hidden ones, and what macOS puts into a zip."""
    return [each.name for each in _folders(folder) if _is_skipped(each.name)]


def _folders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return sorted(folder / each.name for each in entries if each.is_symlink() or each.is_dir())
    except OSError as error:
        raise ValueError(
            f"submissions: got {folder}, expected a folder with a folder for each: {error.strerror}"
        ) from None


def _is_skipped(name: str) -> bool:
    return name.startswith(".") or name == "__MACOSX"


def read(folder: Path, names: Iterable[str]) -> HandedIn:
    """The files of these names in a submission's folder, which is no link itself."""
    try:
        return HandedIn({name: _read(folder, name) for name in names})
    except SubmissionError as error:
        return HandedIn(problem=str(error))


def _read(folder: Path, name: str) -> bytes:
    try:
        with os.fdopen(_open(folder, name), "rb") as file:
            status = os.fstat(file.fileno())
            data = file.read(MOST_FILE + 1)
    except OSError as error:
        why = REASONS.get(error.errno or 0, f"cannot be read: {error.strerror}")
        raise SubmissionError(f"{name} {why}") from None
    size = max(status.st_size, len(data))
    if size > MOST_FILE:
        raise SubmissionError(f"{name} has {size:,} bytes, expected at most {MOST_FILE:,}")
    if not data.strip():
        raise SubmissionError(f"{name} is empty: begin with the starter's file")
    return data


def _open(folder: Path, name: str) -> int:
    """A descriptor of the file, which is a regular one. Raises OSError."""
    *folders, last = PurePath(name).parts
    inside = os.open(folder, READ | os.O_DIRECTORY)
    try:
        for each in folders:
            outside, inside = inside, os.open(each, READ | os.O_DIRECTORY, dir_fd=inside)
            os.close(outside)
        file = os.open(last, READ, dir_fd=inside)
    finally:
        os.close(inside)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))
    return file

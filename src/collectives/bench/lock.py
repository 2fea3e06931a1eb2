"""A lock on an output, so that one process at a time measures its rows."""

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import LOCK_EX, LOCK_NB, flock
from io import FileIO
from pathlib import Path


@contextmanager
def locked(stem: str | Path, fingerprint: str) -> Iterator[None]:
    """Hold the lock of the output ``stem`` in the block.

    ``fingerprint`` stands for what is measured there.

    If another process measures the same, the block begins when that one has ended, because the rows
    that it makes are the wanted ones; standard error names it. Raises FileExistsError, which names
    it, if it measures something else. A lock ends with its process, even by a kill. It holds on all
    hosts that see the folder, if the file system has locks. On one that has none the block begins
    without, and standard error says so.
    """
    stem = Path(stem)
    stem.parent.mkdir(parents=True, exist_ok=True)
    path = stem.with_name(f".{stem.name}.lock")
    while True:
        with FileIO(path, "a+") as file:
            _acquire(file, stem, fingerprint)
            if not _is_at(path, file):  # the process that held the lock has removed the file
                continue
            try:
                file.truncate(0)
                file.write(f"{fingerprint} {_own_name()}".encode())
                yield
                return
            finally:
                path.unlink(missing_ok=True)


def _acquire(file: FileIO, stem: Path, fingerprint: str) -> None:
    """Lock the file, or return without a lock where there are none.

    Raises FileExistsError as `locked` does.
    """
    try:
        flock(file, LOCK_EX | LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        measured, _, holder = file.read().decode(errors="replace").partition(" ")
        holder = holder or "another process"
        if measured not in (fingerprint, ""):  # empty: it has the lock, and has not written yet
            text = f"{stem}: {holder} is measuring there with other parameters or other code"
            raise FileExistsError(f"{text}; name another output") from None
        print(
            f"{stem}: waiting for {holder}, which is measuring the same",
            file=sys.stderr,
            flush=True,
        )
        flock(file, LOCK_EX)
    except OSError as error:
        why = f"its file system has no locks ({error.strerror})"
        print(
            f"{stem}: {why}, so measure nothing else there meanwhile", file=sys.stderr, flush=True
        )


def _is_at(path: Path, file: FileIO) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _own_name() -> str:
    job = os.environ.get("SLURM_JOB_ID")
    return f"process {os.getpid()} on {socket.gethostname()}{f' (Slurm job {job})' if job else ''}"

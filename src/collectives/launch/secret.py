"""The secret that a launcher shares with its ranks: in the environment, or in a file that only its owner can read.

It is never in a command line, which every user of a machine can read, and never in torch's store,
which every peer can read.
"""

import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

VARIABLE = "COLLECTIVES_SECRET"
FILE_VARIABLE = "COLLECTIVES_SECRET_FILE"
SHORTEST = 32  # characters: 16 bytes in hexadecimal digits


def fresh() -> str:
    """Return a new random secret: 32 bytes in hexadecimal digits."""
    return secrets.token_hex(32)


def given() -> str | None:
    """Return the secret in COLLECTIVES_SECRET or in the file of COLLECTIVES_SECRET_FILE.

    None if neither is set.

    Raises ValueError if the secret is too short, and PermissionError if others than this user can
    read the file.
    """
    path = os.environ.get(FILE_VARIABLE)
    if path:
        return read(Path(path))
    text = os.environ.get(VARIABLE)
    return _long_enough(text, VARIABLE) if text else None


def read(path: Path) -> str:
    """Return the secret in a file of mode 0600 that this user owns.

    Raises PermissionError if others can access it.
    """
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)) as file:
        status = os.fstat(file.fileno())
        mode = stat.S_IMODE(status.st_mode)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or mode & 0o077:
            have = f"owner {status.st_uid}, mode {mode:04o}"
            raise PermissionError(
                f"unsafe {path}: got {have}, expected a file, owner {os.geteuid()}, mode 0600"
            )
        return _long_enough(file.read().strip(), str(path))


def variables(secret: str, path: str = "") -> dict[str, str]:
    """Return the environment that gives ranks the secret itself or, if there is a ``path``, the file that holds it."""
    return {VARIABLE: "" if path else secret, FILE_VARIABLE: path}


@contextmanager
def in_file(secret: str, folder: str | None) -> Iterator[str]:
    """Write the secret into a temporary file, mode 0600.

    In the system's temporary folder if ``folder`` is None.
    """
    descriptor, path = tempfile.mkstemp(prefix=".collectives-", dir=folder)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secret)
        yield path
    finally:
        Path(path).unlink(missing_ok=True)


def own() -> str:
    """Return the secret of this user for ranks on one machine, kept in the home folder.

    Made at its first use.
    """
    path = Path.home() / ".cache" / "collectives" / "secret"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not path.exists():
        with in_file(fresh(), str(path.parent)) as new, suppress(FileExistsError):
            os.link(new, path)  # atomic: of several processes one wins, and none reads half a file
    return read(path)


def _long_enough(secret: str, name: str) -> str:
    if len(secret) < SHORTEST:
        raise ValueError(
            f"{name} too short: got {len(secret)} characters, expected at least {SHORTEST}"
        )
    return secret

"""`compiled`: numba's njit, with a cache on disk that a change of any source in the function's folder empties.

Numba compares the cached code only with the file of the function itself. It would go on running the old code of a
function that this one calls from another file.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """The function as machine code, compiled at its first call; it holds no lock of the interpreter.

    A division by zero gives inf or nan, as in numpy.
    """
    _drop_stale(Path(function.__code__.co_filename).parent)
    return cast("Function", njit(cache=True, nogil=True, error_model="numpy")(function))


@cache
def _drop_stale(folder: Path) -> None:
    """Delete the folder's cache indexes that are older than its newest source; once a process."""
    newest = max((source.stat().st_mtime_ns for source in folder.glob("*.py")), default=0)
    for index in (folder / "__pycache__").glob("*.nbi"):
        with suppress(OSError):  # another process was faster, or the folder is read-only
            if index.stat().st_mtime_ns < newest:
                index.unlink()

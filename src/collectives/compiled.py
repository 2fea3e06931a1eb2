"""Compile functions by numba, with a cache on disk that a change of a source in the function's folder empties.

So does a change in the files of what it calls in other folders. Numba compares the cached code only with the file of
the function itself. It would go on running the old code of a function that this one calls from another file.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from numba import njit
from numba.core.dispatcher import Dispatcher

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Return the function as machine code, which is compiled at its first call and holds no lock of the interpreter.

    A division by zero gives inf or nan, as in numpy. Raises RuntimeError if no folder can keep what is compiled.
    """
    folder = Path(function.__code__.co_filename).parent
    called = [each.py_func for each in function.__globals__.values() if isinstance(each, Dispatcher)]
    for source in (folder, *(Path(each.__code__.co_filename) for each in called)):
        _drop_stale(folder, source if source.parent != folder else folder)
    try:
        return cast("Function", njit(cache=True, nogil=True, error_model="numpy")(function))
    except RuntimeError as error:
        raise RuntimeError(f"no folder for compiled code, set NUMBA_CACHE_DIR to one: {error}") from error


@cache
def _drop_stale(folder: Path, source: Path) -> None:
    """Delete the folder's cache indexes that are older than a source, or the newest of a folder, once a process."""
    sources = source.glob("*.py") if source.is_dir() else [source]
    newest = max((each.stat().st_mtime_ns for each in sources if each.exists()), default=0)
    for index in (folder / "__pycache__").glob("*.nbi"):
        with suppress(OSError):  # another process was faster, or the folder is read-only
            if index.stat().st_mtime_ns < newest:
                index.unlink()

"""Compile functions by numba, with a cache on disk that processes and hosts can share and that no change outlives.

Numba numbers what it keeps of a function for several types. Two processes that compile at once take
the same number, and a third one runs the code for another type. Here a file is named after the
types, processor and sources that it is made of, and is there before the index that names it.
Processes then need no lock; at worst one compiles again.

Numba also compares the cached code only with the date of the function's own file. It would go on
running the old code of a function that this one calls from another file. Here the text of all
sources in the function's folder counts, and of the files of what it calls in others. No date does,
because a host's clock may be wrong.
"""

import glob
import hashlib
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from numba import njit
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.ccallback import CFunc
from numba.core.dispatcher import Dispatcher

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Return the function as machine code, which is compiled at its first call and holds no lock of the interpreter.

    A division by zero gives inf or nan, as in numpy. Raises RuntimeError if no folder can keep what
    is compiled.
    """
    made: Any = njit(nogil=True, error_model="numpy")(function)
    made._cache = _cache(function)  # numba has no other way to it
    return cast("Function", made)


def compiled_callback(function: Callable[..., Any], signature: Any) -> Any:
    """Return the function as machine code for these types, which are compiled now.

    Its ``address`` is C's.

    Its divisions and errors are those of `compiled`.
    """
    types = signature.args, signature.return_type
    made: Any = CFunc(function, types, locals={}, options={"error_model": "numpy"})
    made._cache = _cache(function)
    made.compile()
    return made


def _cache(function: Callable[..., Any]) -> Any:
    try:
        kept: Any = FunctionCache(function)  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        raise RuntimeError(
            f"no folder for compiled code, set NUMBA_CACHE_DIR to one: {error}"
        ) from error
    own = Path(function.__code__.co_filename)
    called = [
        each.py_func for each in function.__globals__.values() if isinstance(each, Dispatcher)
    ]
    files = {own, *(Path(each.__code__.co_filename) for each in called)}
    others = sorted(each for each in files if each.parent != own.parent)
    text = [_digest(own.parent, "*.py"), *(_digest(each.parent, each.name) for each in others)]
    kept._cache_file = CacheFiles(kept.cache_path, kept._impl.filename_base, text)  # type: ignore[no-untyped-call]
    return kept


@cache
def _digest(folder: Path, pattern: str) -> str:
    """Return a hash of the files of a folder, as they are when the process first asks."""
    found = hashlib.sha256()
    for path in sorted(folder.glob(pattern)):
        data = path.read_bytes()
        found.update(f"{path.name} {len(data)}\n".encode() + data)
    return found.hexdigest()


class CacheFiles(IndexDataCacheFile):
    """The files that keep a function's code: an index, and one for each key, which is named after all that makes it."""

    def save(self, key: Any, data: Any) -> None:
        """Keep code, then name it in the index.

        Of other sources or another numba all code is removed before.
        """
        base = self._index_name.removesuffix(".nbi")
        named = hashlib.sha256(repr((self._version, self._source_stamp, key)).encode()).hexdigest()[
            :16
        ]
        index: Any = self._load_index()  # type: ignore[no-untyped-call]
        if not index and Path(self._index_path).exists():
            for path in Path(self._cache_path).glob(f"{glob.escape(base)}.*.nbc"):
                with suppress(OSError):  # another process was faster
                    path.unlink()
        index[key] = f"{base}.{named}.nbc"
        self._save_data(index[key], data)  # type: ignore[no-untyped-call]
        self._save_index(index)  # type: ignore[no-untyped-call]

"""Open MPI's own all-reduces: a communicator for each, made while the library's parameters name that algorithm.

The parameters are those of its component "tuned" (ompi_info --param coll tuned --level 9). A
communicator keeps what they are when it is made. So one and the same launch can take every
algorithm, and COMM_WORLD what the library chooses.

Where a buffer has fewer elements than there are ranks, ring does what recursive_doubling does, and
rabenseifner what basic_linear does (Open MPI 5, coll_base_allreduce.c).
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

# As Open MPI names and numbers them itself, from 1 (ompi_info --param coll tuned --level 9).
ALGORITHMS = (
    "basic_linear",
    "nonoverlapping",
    "recursive_doubling",
    "ring",
    "segmented_ring",
    "rabenseifner",
)


def number(algorithm: str) -> int:
    """Return Open MPI's number of an all-reduce. Raises ValueError for an unknown one.

    >>> number("ring")
    4
    """
    if algorithm not in ALGORITHMS:
        raise ValueError(f"unknown algorithm 'mpi:{algorithm}'; known are {', '.join(ALGORITHMS)}")
    return 1 + ALGORITHMS.index(algorithm)


@cache
def communicator(mpi: Any, algorithm: str) -> Any:
    """Return a communicator of all ranks whose all-reduce takes this algorithm.

    They ask for it all at the same time.

    Raises ValueError for an unknown algorithm, and RuntimeError where the library is not Open MPI.
    """
    wanted = {
        # These are the algorithms of "tuned": no other component may come first.
        "coll_tuned_priority": 100,
        "coll_tuned_use_dynamic_rules": 1,
        "coll_tuned_allreduce_algorithm": number(algorithm),
    }
    with _set(ctypes.CDLL(mpi.__file__), wanted):
        return mpi.COMM_WORLD.Dup()


@contextmanager
def _set(library: ctypes.CDLL, wanted: dict[str, int]) -> Iterator[None]:
    """Set these parameters within a ``with``; afterwards they have the values that they had."""
    _call(library, "MPI_T_init_thread", 0, ctypes.byref(ctypes.c_int()))
    before = {name: exchange(library, name, value) for name, value in wanted.items()}
    try:
        yield
    finally:
        for name, value in before.items():
            exchange(library, name, value)
        _call(library, "MPI_T_finalize")


def exchange(library: ctypes.CDLL, name: str, value: int) -> int:
    """Give a parameter, a number or a truth value, this value; return the one that it had."""
    index, count, handle = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p()
    before, after = ctypes.c_int(), ctypes.c_int(value)
    _call(library, "MPI_T_cvar_get_index", name.encode(), ctypes.byref(index), what=name)
    _call(
        library,
        "MPI_T_cvar_handle_alloc",
        index,
        None,
        ctypes.byref(handle),
        ctypes.byref(count),
        what=name,
    )
    _call(library, "MPI_T_cvar_read", handle, ctypes.byref(before), what=name)
    _call(library, "MPI_T_cvar_write", handle, ctypes.byref(after), what=name)
    _call(library, "MPI_T_cvar_handle_free", ctypes.byref(handle), what=name)
    return before.value


def _call(
    library: ctypes.CDLL, function: str, *arguments: Any, what: str = "its parameters"
) -> None:
    """Call a function of MPI's tool interface, which mpi4py has not."""
    error = getattr(library, function)(*arguments)
    if error:
        raise RuntimeError(
            f"this MPI does not let {what} be set, as Open MPI does: {function} returned {error}"
        )

"""Open MPI's own all-reduces: a communicator for each, made while the library's parameters name that algorithm.

``mpi:COMPONENT`` names a component of Open MPI that performs the all-reduce, and ``mpi:tuned:3`` an
algorithm of its component "tuned", by its number or its name, which may stand alone (``mpi:ring``).
The parameters are those that ``ompi_info --param coll all --level 9`` lists. A communicator keeps
what they are when it is made. So one and the same launch can take every algorithm, and COMM_WORLD
what the library chooses. Only ``mpi:ucx`` needs a launch of its own, because UCX carries all
messages of a process or none.

Where a buffer has fewer elements than there are ranks, ring does what recursive_doubling does, and
rabenseifner what basic_linear does (Open MPI 5, coll_base_allreduce.c).
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

# As Open MPI names and numbers them itself, from 1 (ompi_info --param coll tuned --level 9).
ALGORITHMS = (
    "basic_linear",
    "nonoverlapping",
    "recursive_doubling",
    "ring",
    "segmented_ring",
    "rabenseifner",
)
TUNED, SM, ADAPT, HAN, UCX = "tuned", "sm", "adapt", "han", "ucx"
COMPONENTS = (TUNED, SM, ADAPT, HAN, UCX)
# UCX is left out where it finds none of the devices that Open MPI prefers, unless it may take any.
UCX_VARIABLES = {
    "OMPI_MCA_pml": "ucx",
    "OMPI_MCA_pml_ucx_tls": "any",
    "OMPI_MCA_pml_ucx_devices": "any",
}
PREFERENCE = "ompi_comm_coll_preference"  # the component that a new communicator takes first


class Chosen(NamedTuple):
    """Name a component of Open MPI, and the number of an algorithm of "tuned", 0 for its own choice."""

    component: str
    number: int = 0


def chosen(typed: str) -> Chosen:
    """Return what the text after ``mpi:`` names. Raises ValueError for what Open MPI does not have.

    >>> chosen("ring"), chosen("tuned:3").number, chosen("sm").component
    (Chosen(component='tuned', number=4), 3, 'sm')
    """
    component, _, algorithm = typed.partition(":")
    numbers = {name: number for number, name in enumerate(ALGORITHMS, start=1)}
    if typed in numbers:
        return Chosen(TUNED, numbers[typed])
    if typed in COMPONENTS:
        # "adapt" has a reduce and a broadcast, of which this algorithm makes an all-reduce.
        return Chosen(typed, numbers["nonoverlapping"] if typed == ADAPT else 0)
    if component == TUNED:
        numbers |= {str(number): number for number in numbers.values()}
        if algorithm in numbers:
            return Chosen(TUNED, numbers[algorithm])
    raise ValueError(
        f"unknown algorithm 'mpi:{typed}'; known are {', '.join(ALGORITHMS)}, "
        f"{', '.join(COMPONENTS)}, and tuned:1 to tuned:{len(ALGORITHMS)}"
    )


@cache
def communicator(mpi: Any, typed: str) -> Any:
    """Return a communicator of all ranks whose all-reduce takes this algorithm.

    They ask for it all at the same time.

    Raises ValueError for an unknown algorithm, and RuntimeError where the library is not Open MPI,
    or its component does not serve these ranks.
    """
    component, number = chosen(typed)
    if component == UCX:
        return mpi.COMM_WORLD
    _need_hosts(mpi, component)
    wanted = {"coll_tuned_use_dynamic_rules": 1, "coll_tuned_allreduce_algorithm": number}
    with _set(ctypes.CDLL(mpi.__file__), wanted if number else {}):
        return mpi.COMM_WORLD.Dup_with_info(mpi.Info.Create({PREFERENCE: component}))


def _need_hosts(mpi: Any, component: str) -> None:
    """Raise RuntimeError where Open MPI would leave the component out, and silently take another."""
    if component not in (SM, HAN):
        return
    ranks = mpi.COMM_WORLD.size
    local = mpi.COMM_WORLD.Split_type(mpi.COMM_TYPE_SHARED).size
    if component == SM and local < ranks:
        raise RuntimeError(
            "mpi:sm: got ranks on several hosts, expected one, whose memory they share"
        )
    if component == HAN and local == ranks:
        raise RuntimeError(
            "mpi:han: got ranks on one host, expected several: on one Open MPI takes another component"
        )


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

"""A library's own algorithms, as ``mpi:ring`` and ``nccl:Tree/Simple`` name them.

Open MPI takes another one whenever it is asked (`open_mpi`). NCCL takes what the environment says when its ranks start:
every algorithm of it needs a launch of its own.
"""

from __future__ import annotations

from collectives.backends import BACKENDS

# Open MPI's all-reduces as it names and numbers them itself, from 1 (ompi_info --param coll tuned --level 9).
OPEN_MPI = ("basic_linear", "nonoverlapping", "recursive_doubling", "ring", "segmented_ring", "rabenseifner")

# NCCL's, for NCCL_ALGO and NCCL_PROTO. Which of them a collective has depends on NCCL's version and the machine.
NCCL_ALGORITHMS = ("Ring", "Tree", "CollnetChain", "CollnetDirect", "NVLS", "NVLSTree", "PAT")
NCCL_PROTOCOLS = ("LL", "LL128", "Simple")


def named(backend: str) -> tuple[str, str]:
    """The back end and its algorithm out of what was typed.

    >>> named("mpi:ring"), named("gloo")
    (('mpi', 'ring'), ('gloo', 'default'))
    """
    name, _, algorithm = backend.partition(":")
    return name, algorithm or "default"


def environment(backend: str, collective: str) -> dict[str, str]:
    """What has to be set before the ranks of this algorithm start. Raises ValueError for one that there is not.

    >>> environment("nccl:Tree/Simple", "all_reduce")
    {'NCCL_ALGO': 'Tree', 'NCCL_PROTO': 'Simple'}
    """
    name, algorithm = named(backend)
    if name not in BACKENDS:
        raise ValueError(f"unknown backend {name!r}; known are {', '.join(BACKENDS)}")
    if ":" not in backend:
        return {}
    if name == "mpi" and collective != "all_reduce":
        raise ValueError(f"mpi takes an algorithm for all_reduce only, so not {backend!r} for {collective}")
    if name == "mpi":
        open_mpi(algorithm)
        return {}
    if name == "nccl":
        return _nccl(algorithm)
    raise ValueError(f"{name} has no algorithms to choose from, so not {backend!r}; mpi and nccl have")


def open_mpi(algorithm: str) -> int:
    """Open MPI's number of an all-reduce. Raises ValueError for one that there is not.

    >>> open_mpi("ring")
    4
    """
    if algorithm not in OPEN_MPI:
        raise ValueError(f"unknown algorithm 'mpi:{algorithm}'; known are {', '.join(OPEN_MPI)}")
    return 1 + OPEN_MPI.index(algorithm)


def _nccl(algorithm: str) -> dict[str, str]:
    shape, _, protocol = algorithm.partition("/")
    if shape not in NCCL_ALGORITHMS or protocol not in ("", *NCCL_PROTOCOLS):
        raise ValueError(
            f"unknown algorithm 'nccl:{algorithm}'; it is {'|'.join(NCCL_ALGORITHMS)}, "
            f"and /{'|/'.join(NCCL_PROTOCOLS)} may follow"
        )
    return {"NCCL_ALGO": shape} | ({"NCCL_PROTO": protocol} if protocol else {})

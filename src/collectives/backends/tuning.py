"""A library's own algorithms as parameters: ``mpi:ring``, ``nccl:Tree/Simple``. They are set before the ranks start.

What sets them is the environment, once for each launch, so every one of them needs a launch of its own.
"""

from __future__ import annotations

from collectives.backends import BACKENDS

# Open MPI's all-reduces as it names them itself (ompi_info --param coll tuned --level 9).
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
    """What has to be set for this back end and algorithm. Raises ValueError for one that there is not.

    >>> environment("nccl:Tree/Simple", "all_reduce")
    {'NCCL_ALGO': 'Tree', 'NCCL_PROTO': 'Simple'}
    """
    name, algorithm = named(backend)
    if name not in BACKENDS:
        raise ValueError(f"unknown backend {name!r}; known are {', '.join(BACKENDS)}")
    if ":" not in backend:
        return {}
    if name == "mpi":
        return _open_mpi(algorithm, collective)
    if name == "nccl":
        return _nccl(algorithm)
    raise ValueError(f"{name} has no algorithms to choose from, so not {backend!r}; mpi and nccl have")


def _open_mpi(algorithm: str, collective: str) -> dict[str, str]:
    if collective != "all_reduce":
        raise ValueError(f"mpi takes an algorithm for all_reduce only, so not 'mpi:{algorithm}' for {collective}")
    if algorithm not in OPEN_MPI:
        raise ValueError(f"unknown algorithm 'mpi:{algorithm}'; known are {', '.join(OPEN_MPI)}")
    return {
        "OMPI_MCA_coll_tuned_priority": "100",  # these are the algorithms of "tuned": no other component may come first
        "OMPI_MCA_coll_tuned_use_dynamic_rules": "1",
        "OMPI_MCA_coll_tuned_allreduce_algorithm": algorithm,
    }


def _nccl(algorithm: str) -> dict[str, str]:
    shape, _, protocol = algorithm.partition("/")
    if shape not in NCCL_ALGORITHMS or protocol not in ("", *NCCL_PROTOCOLS):
        raise ValueError(
            f"unknown algorithm 'nccl:{algorithm}'; it is {'|'.join(NCCL_ALGORITHMS)}, "
            f"and /{'|/'.join(NCCL_PROTOCOLS)} may follow"
        )
    return {"NCCL_ALGO": shape} | ({"NCCL_PROTO": protocol} if protocol else {})

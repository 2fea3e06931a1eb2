"""A library's own algorithms, as ``mpi:ring`` and ``nccl:Tree/Simple`` name them."""

from collectives.backends import BACKENDS, Backend, backend


def named(typed: str) -> tuple[str, str]:
    """The back end and its algorithm out of what was typed.

    >>> named("mpi:ring"), named("gloo")
    (('mpi', 'ring'), ('gloo', 'default'))
    """
    name, _, algorithm = typed.partition(":")
    return name, algorithm or "default"


def environment(typed: str, collective: str) -> dict[str, str]:
    """The variables to set before the ranks of this algorithm start. Raises ValueError for an unknown one.

    >>> environment("nccl:Tree/Simple", "all_reduce")
    {'NCCL_ALGO': 'Tree', 'NCCL_PROTO': 'Simple'}
    """
    name, algorithm = named(typed)
    one = backend(name)
    if ":" not in typed:
        return {}
    variables = one.variables(algorithm, collective)
    if variables is None:
        offer = sorted(each for each in BACKENDS if type(backend(each)).variables is not Backend.variables)
        raise ValueError(f"{name} has no algorithms to choose from, so not {typed!r}; {' and '.join(offer)} have")
    return variables

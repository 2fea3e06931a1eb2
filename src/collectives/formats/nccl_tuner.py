"""The fastest algorithm by size, as the file that NCCL's example tuner plugin reads: an analysis, used without code.

The plugin (``plugins/tuner/example`` of NVIDIA/nccl, read at 5067397, version 2.30.7) takes the first line that fits a
call: its collective, its bytes, its nodes and ranks. That line's algorithm then costs nothing, so no other is taken,
not even NVLS, in which the switch adds and which we do not simulate. Where no line fits, NCCL chooses as without a
plugin; so there is no line where NVLS may be faster, or where NCCL's own choice was.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

HEAD = "# collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff"

# How names are written in the file: ours and those of NCCL. Its tree is the double binary tree, a chain inside a node.
COLLECTIVES = {name: name.replace("_", "") for name in ("all_reduce", "all_gather", "reduce_scatter")} | {
    name: name for name in ("broadcast", "reduce")
}
ALGORITHMS = {"ring": "ring", "two_tree": "tree", "hierarchical_tree": "tree", "Ring": "ring", "Tree": "tree"} | {
    "NVLS": "nvls",
    "NVLSTree": "nvls_tree",
    "PAT": "pat",
    "default": "",
}
PROTOCOLS = ("ll", "ll128", "simple")
ANY = -1

# Seconds of NVLS in a node, and of NVLSTree more for each doubling of the nodes: tuning.cc of NCCL 2.20.3.
NVLS, DOUBLING = 23e-6, 28e-6


class Time(NamedTuple):
    """How long an algorithm took; ``nodes`` of -1 stands for any number."""

    collective: str
    algorithm: str  # NCCL's; empty where NCCL chooses, for which there is no line
    protocol: str
    nodes: int
    ranks: int
    bytes: int
    seconds: float


def known(algorithm: str, protocol: str = "simple") -> tuple[str, str] | None:
    """NCCL's names for an algorithm of ours, or for one that a measured row has; None if NCCL has no such algorithm.

    A protocol that NCCL lacks becomes ``simple``, because the file has no sign for "any".

    >>> known("two_tree"), known("ring", "LL"), known("NVLSTree/Simple"), known("halving_doubling")
    (('tree', 'simple'), ('ring', 'll'), ('nvls_tree', 'simple'), None)
    """
    name, _, named = algorithm.partition("/")
    chosen = (named or protocol).lower()
    return (ALGORITHMS[name], chosen if chosen in PROTOCOLS else "simple") if name in ALGORITHMS else None


def nvls(nodes: int, ranks: int, nbytes: int, inside: float, node: float) -> Time:
    """Return the seconds that an all-reduce by NVLS or NVLSTree takes at least, as a time for which NCCL chooses.

    ``inside`` is the rate of a rank's link to the switch, ``node`` that of all network ports of a node, in bytes/s.

    >>> [round(nvls(2, 16, nbytes, 337e9, 400e9).seconds * 1e6) for nbytes in (8, 1 << 20, 1 << 30)]
    [51, 54, 3237]
    """
    moved = max(nbytes / inside, 2 * (nodes - 1) / nodes * nbytes / node)
    return Time("all_reduce", "", "", nodes, ranks, nbytes, NVLS + (nodes.bit_length() - 1) * DOUBLING + moved)


def text(times: Iterable[Time], source: str) -> str:
    """The file: for each size the fastest algorithm, up to the next size that was tried; no line beyond the last one.

    ``source`` is a comment at its head. Raises ValueError if no algorithm of NCCL's is the fastest anywhere.

    >>> ring, tree = (Time("all_reduce", name, "simple", 2, 16, 1024, s) for name, s in (("ring", 2.0), ("tree", 1.0)))
    >>> print(text([ring, tree, ring._replace(bytes=4096)], "an example"), end="")
    # an example
    # collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff
    allreduce,1024,4095,tree,simple,-1,2,16,-1,-1
    allreduce,4096,4096,ring,simple,-1,2,16,-1,-1
    """
    lines = list(_lines(times))
    if not lines:
        raise ValueError(f"times: got none by ring or tree that beat NVLS, expected some of {', '.join(COLLECTIVES)}")
    return "\n".join([f"# {source}"[:250], HEAD, *lines, ""])


def _lines(times: Iterable[Time]) -> Iterator[str]:
    groups: dict[tuple[str, int, int], dict[int, Time]] = defaultdict(dict)
    for each in times:
        fastest = groups[each.collective, each.nodes, each.ranks]
        if each.bytes not in fastest or each.seconds < fastest[each.bytes].seconds:
            fastest[each.bytes] = each
    for (collective, nodes, ranks), fastest in sorted(groups.items()):
        for low, high, best in _ranges([fastest[size] for size in sorted(fastest)]):
            names = f"{COLLECTIVES[collective]},{low},{high},{best.algorithm},{best.protocol}"
            yield f"{names},{ANY},{nodes},{ranks},{ANY},{ANY}"


def _ranges(best: list[Time]) -> Iterator[tuple[int, int, Time]]:
    """Runs of sizes with one winner: the first size, the last byte before the next run, and the winner.

    Where NCCL chooses there is no run, and the one before ends with the last size that was tried.
    """
    starts = [i for i in range(len(best)) if not i or best[i][1:3] != best[i - 1][1:3]]
    for start, after in zip(starts, [*starts[1:], len(best)], strict=True):
        is_followed = after < len(best) and best[after].algorithm
        if best[start].algorithm:
            yield best[start].bytes, best[after].bytes - 1 if is_followed else best[after - 1].bytes, best[start]

"""Write the files of NCCL's example tuner plugin and of NCCLX's tuner, from simulated or measured times.

The plugin (``plugins/tuner/example`` of NVIDIA/nccl, read at 5067397, version 2.30.7) takes the
first line that fits a call: its collective, its bytes, its nodes and ranks. That line's algorithm
then costs nothing, so no other is taken, not even NVLS, in which the switch adds and which we do
not simulate. Where no line fits, NCCL chooses as without a plugin; so there is no line where NVLS
may be faster, or where NCCL's own choice was. RCCL's tuner reads the same columns.

NCCLX's tuner (``comms/ncclx/meta/tuner`` of meta-pytorch/torchcomms, read at 46726f15) also takes
the first line that fits, but by intervals of the bytes of the buffer for each rank, rounded down,
and by the ranks of a node.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collectives.machine import Machine

HEAD = "# collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff"

HEAD_NCCLX = "# collective,bytesPerRank,algorithm,protocol,channels,nNodes,nLocalRanks"

# How the file writes our names and those of NCCL. Its tree is the double binary tree, a chain
# inside a node.
COLLECTIVES = {
    "all_reduce": "allreduce",
    "all_gather": "allgather",
    "reduce_scatter": "reducescatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
}
ALGORITHMS = {
    "ring": "ring",
    "two_tree": "tree",
    "hierarchical_tree": "tree",
    "Ring": "ring",
    "Tree": "tree",
    "NVLS": "nvls",
    "NVLSTree": "nvls_tree",
    "PAT": "pat",
    "default": "",
}
PROTOCOLS = ("ll", "ll128", "simple")
ANY = -1

# Of what NCCL has, these are simulated, the faster one for few bytes first.
SIMULATED = ("hierarchical_tree", "ring")

# Seconds of NVLS in a node, and of NVLSTree more for each doubling of the nodes: tuning.cc of NCCL
# 2.20.3.
NVLS, DOUBLING = 23e-6, 28e-6

# The columns that are read of measured rows.
MEASURED = ["collective", "backend", "algorithm", "ranks", "bytes", "median_us"]


class Time(NamedTuple):
    """The seconds that an algorithm took; ``nodes`` of -1 stands for any number."""

    collective: str
    algorithm: str  # NCCL's; empty where NCCL chooses, for which there is no line
    protocol: str
    nodes: int
    ranks: int
    bytes: int
    seconds: float


def known(algorithm: str, protocol: str = "simple") -> tuple[str, str] | None:
    """Return NCCL's names for an algorithm of ours, or of a measured row.

    None if NCCL has no such algorithm.

    A protocol that NCCL lacks becomes ``simple``, because the file has no sign for "any".

    >>> known("two_tree"), known("ring", "LL"), known("NVLSTree/Simple"), known("halving_doubling")
    (('tree', 'simple'), ('ring', 'll'), ('nvls_tree', 'simple'), None)
    """
    name, _, named_protocol = algorithm.partition("/")
    if name not in ALGORITHMS:
        return None
    chosen = (named_protocol or protocol).lower()
    return ALGORITHMS[name], chosen if chosen in PROTOCOLS else "simple"


def nvls(nodes: int, ranks: int, nbytes: int, inside: float, node: float) -> Time:
    """Return the seconds that an all-reduce by NVLS or NVLSTree takes at least, as a time for which NCCL chooses.

    ``inside`` is the rate of a rank's link to the switch, ``node`` that of all network ports of a
    node, in bytes/s.

    >>> [round(nvls(2, 16, nbytes, 337e9, 400e9).seconds * 1e6) for nbytes in (8, 1 << 20, 1 << 30)]
    [51, 54, 3237]
    """
    through_ports = 2 * (nodes - 1) / nodes * nbytes
    moving = max(nbytes / inside, through_ports / node)
    doublings = nodes.bit_length() - 1
    seconds = NVLS + doublings * DOUBLING + moving
    return Time("all_reduce", "", "", nodes, ranks, nbytes, seconds)


def simulated(machine: "Machine", nodes: Sequence[int], sizes: Sequence[int]) -> list[Time]:
    """Return simulated times of all-reduces in seconds, and where a node has a switch the least ones of NVLS."""
    from collectives.simulator.scaling import regimes

    times: list[Time] = []
    in_switch: list[Time] = []
    for row in regimes([machine], nodes, sizes, SIMULATED):
        named = known(row["algorithm"], _protocol(row, machine))
        if named is None:
            raise RuntimeError(f"NCCL has no {row['algorithm']}")
        ranks, nbytes = row["ranks"], row["bytes"]
        count = ranks // machine.ranks_per_node
        times.append(Time(row["collective"], *named, count, ranks, nbytes, row["seconds"]))
        if machine.inside:
            of_node = machine.ports * machine.network.rate
            in_switch.append(nvls(count, ranks, nbytes, machine.inside.rate, of_node))
    return times + in_switch


def _protocol(row: dict[str, Any], machine: "Machine") -> str:
    """Return the protocol of the machine that the largest message has, which is one chunk for ring and tree."""
    from collectives.simulator.scaling import Case, schedule
    from collectives.simulator.simulation import simulate

    nbytes, name = row["bytes"], row["algorithm"]
    case = Case(row["collective"], name, row["ranks"], nbytes, machine, row["segments"])
    return simulate(schedule(case), machine, nbytes, name).protocol


def measured(path: Path, collective: str) -> list[Time]:
    """Read the times of algorithms that NCCL has, and of its own choice, of one back end: NCCL if it has rows.

    Raises ValueError for a file that has no such rows, and where several back ends have some.
    """
    from collectives.bench.results import table

    if collective not in COLLECTIVES:
        raise ValueError(
            f"--to nccl-tuner: got {collective}, expected one of {', '.join(COLLECTIVES)}"
        )
    try:
        rows = table(path, MEASURED).to_pandas().to_dict("records")
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot read {path}: {' '.join(str(error).split())[:200]}") from None
    times: dict[str, list[Time]] = defaultdict(list)  # by back end
    for row in rows:
        if row.get("collective") != collective or not row.get("median_us", 0) > 0:
            continue
        named = known(str(row.get("algorithm")))
        if named is not None:
            ranks, nbytes, seconds = int(row["ranks"]), int(row["bytes"]), row["median_us"] / 1e6
            time = Time(collective, *named, ANY, ranks, nbytes, seconds)
            times[str(row.get("backend"))].append(time)
    backends = sorted(
        name for name, of_backend in times.items() if any(time.algorithm for time in of_backend)
    )
    if "nccl" in backends:
        return times["nccl"]
    if len(backends) > 1:
        raise ValueError(
            f"back ends of {path}: got {', '.join(backends)}, expected nccl or one alone"
        )
    return times[backends[0]] if backends else []


def tuner(times: Iterable[Time], source: str, to: str = "nccl-tuner") -> str:
    """Return the tuner's file: the fastest algorithm from each size that was tried up to the next.

    There is no line beyond the last size.

    ``source`` is a comment at its head, and ``to`` one of `FORMATS`. Raises ValueError if no
    algorithm of NCCL's is the fastest anywhere, and for NCCLX's tuner where the nodes are not known
    or the ranks do not fill them.

    >>> ring, tree = (Time("all_reduce", name, "simple", 2, 16, 1024, s) for name, s in (("ring", 2.0), ("tree", 1.0)))
    >>> print(tuner([ring, tree, ring._replace(bytes=4096)], "an example"), end="")
    # an example
    # collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff
    allreduce,1024,4095,tree,simple,-1,2,16,-1,-1
    allreduce,4096,4096,ring,simple,-1,2,16,-1,-1
    >>> print(tuner([ring, tree, ring._replace(bytes=4096)], "an example", "ncclx-tuner"), end="")
    # an example
    # collective,bytesPerRank,algorithm,protocol,channels,nNodes,nLocalRanks
    allreduce,256,ring,simple,-1,2,8
    allreduce,[64,255],tree,simple,-1,2,8
    """
    head, line = FORMATS[to]
    lines = [line(low, high, best) for low, high, best in _choices(times)]
    if to == "ncclx-tuner":
        lines.reverse()  # bytes of a rank are rounded down: at a border the size that was tried counts
    if not lines:
        raise ValueError(
            f"times: got none by ring or tree that beat NVLS, expected some of {', '.join(COLLECTIVES)}"
        )
    comment = f"# {source}"[:250]
    return "\n".join([comment, head, *lines, ""])


def _nccl_line(low: int, high: int, best: Time) -> str:
    call = f"{COLLECTIVES[best.collective]},{low},{high}"
    choice = f"{best.algorithm},{best.protocol},{ANY}"
    return f"{call},{choice},{best.nodes},{best.ranks},{ANY},{ANY}"


def _ncclx_line(low: int, high: int, best: Time) -> str:
    if best.nodes < 1 or best.ranks % best.nodes:
        nodes = "unknown" if best.nodes < 1 else best.nodes
        raise ValueError(
            f"nodes of {best.ranks} ranks: got {nodes}, expected a number that the ranks fill (--nodes)"
        )
    first, last = low // best.ranks, high // best.ranks
    interval = f"[{first},{last}]" if first < last else f"{first}"
    choice = f"{best.algorithm},{best.protocol},{ANY}"
    local = best.ranks // best.nodes
    return f"{COLLECTIVES[best.collective]},{interval},{choice},{best.nodes},{local}"


FORMATS = {"nccl-tuner": (HEAD, _nccl_line), "ncclx-tuner": (HEAD_NCCLX, _ncclx_line)}


def _choices(times: Iterable[Time]) -> Iterator[tuple[int, int, Time]]:
    """Yield ranges of sizes with their winners: of each collective, number of nodes and number of ranks."""
    fastest: dict[tuple[str, int, int], dict[int, Time]] = defaultdict(dict)
    for time in times:
        by_size = fastest[time.collective, time.nodes, time.ranks]
        best = by_size.setdefault(time.bytes, time)
        if time.seconds < best.seconds:
            by_size[time.bytes] = time
    for group in sorted(fastest):
        by_size = fastest[group]
        ascending = [by_size[size] for size in sorted(by_size)]
        yield from _ranges(ascending)


def _ranges(best: list[Time]) -> Iterator[tuple[int, int, Time]]:
    """Yield runs of sizes with one winner: the first size, the last byte before the next run, and the winner.

    Where NCCL chooses there is no run, and the one before ends with the last size that was tried.
    """
    start = 0
    while start < len(best):
        winner = best[start]
        after = start + 1
        while after < len(best) and _same_choice(best[after], winner):
            after += 1
        if winner.algorithm:
            is_followed = after < len(best) and best[after].algorithm
            last = best[after].bytes - 1 if is_followed else best[after - 1].bytes
            yield winner.bytes, last, winner
        start = after


def _same_choice(one: Time, other: Time) -> bool:
    return one.algorithm == other.algorithm and one.protocol == other.protocol

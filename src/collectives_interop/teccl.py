"""Read schedules that TE-CCL writes, in JSON, as schedules of ours.

A line says which chunk travels over which link in which epoch. An all-gather is a list of flows of
whole chunks. An all-to-all cuts a chunk into pieces: its flows have volumes, and its "chunk paths"
say which piece takes which way. A flow via a switch is one line: the switch passes the chunk on in
the next epoch and keeps nothing. Source: microsoft/TE-CCL at c128bf2, of Liu et al., SIGCOMM 2024,
`teccl/solvers`.

The file is untrusted: it is parsed as data, and oversized input is refused before anything is
computed.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, NamedTuple, NoReturn

import numpy as np

from collectives.core.schedule import Schedule, ScheduleError, Step
from collectives.errors import short
from collectives.units import runs

# The largest files that are published have 2.4 MB, 12,000 flows, 34 nodes, 4,006 epochs.
MAX_BYTES, MAX_FLOWS = 1 << 24, 1 << 18
MAX_NODE, MAX_CHUNK, MAX_EPOCH = (1 << 10) - 1, 1 << 16, 1 << 16
# Nodes times chunks of the schedule: `verify` keeps 16 bytes for each. The largest published
# product is 522,240.
MAX_CELLS = 1 << 24
MAX_DIGITS = 300  # of a whole number, which a float can still hold

# Volumes are rounded to six digits, and the solver itself is exact to four.
ROUNDED = 1e-4

# Two versions of TE-CCL have two names for the list of flows, and for the paths.
FLOWS, PATHS = ("7-Flows", "6-Flows"), ("8-Chunk paths", "7-chunk paths")

FLOW = re.compile(
    r"Chunk (?P<chunk>\d{1,9}) from (?P<origin>\d{1,9})"
    r" traveled over (?P<src>\d{1,9})->(?P<dst>\d{1,9})"
    r"(?: with volume (?P<volume>\d(?:\.\d{1,24})?(?:e-\d{1,3})?))?"
    r" in epoch (?P<epoch>\d{1,9})"
    r"(?: via switches (?P<via>\d{1,9}(?: ?-> ?\d{1,9}){0,3}))?",
    re.ASCII,
)
DEMAND = re.compile(
    r"Demand at (?P<to>\d{1,9}) for chunk (?P<chunk>\d{1,9}) from (?P<origin>\d{1,9})"
    r" met by epoch \d{1,9}",
    re.ASCII,
)
GPU = re.compile(r"GPU (\d{1,9})", re.ASCII)


class Flow(NamedTuple):
    """One line of the file: a chunk of ``origin``, from node to node.

    ``volume`` is a share of it, None for all. The schedule moves ``width`` of its own chunks for
    it, from ``first`` on.
    """

    chunk: int
    origin: int
    src: int
    dst: int
    volume: float | None
    epoch: int
    via: tuple[int, ...]
    first: int = 0
    width: int = 1

    @property
    def nodes(self) -> tuple[int, ...]:
        """Return all nodes on the way, in order."""
        return self.src, *self.via, self.dst

    def __str__(self) -> str:
        way = "->".join(str(node) for node in self.nodes)
        return f"chunk {self.chunk} from {self.origin} over {way} in epoch {self.epoch}"


class Flows(NamedTuple):
    """The contents of a file: the collective, nodes by their numbers there, chunks of the schedule."""

    collective: str
    gpus: tuple[int, ...]
    switches: tuple[int, ...]
    k: int
    flows: tuple[Flow, ...]

    @property
    def epochs(self) -> int:
        """Count epochs up to the last in which anything is sent."""
        return 1 + max((flow.epoch for flow in self.flows), default=-1)


def read(data: bytes) -> Flows:
    """Return the flows in the text of a file.

    Raises ValueError, one line, for any other text. Raises ScheduleError if the pieces of a chunk
    do not add up to the whole, or if the list of flows and the paths differ. Cost: linear in the
    length of the text.

    >>> swap = [f"Chunk 0 from {a} traveled over {a}->{b} in epoch 0" for a, b in ((0, 1), (1, 0))]
    >>> met = {"GPU 0": {"GPU 1": {}}, "GPU 1": {"GPU 0": {}}}
    >>> top = {"6-Demand_Met": met, "7-Flows": swap}
    >>> flows = read(json.dumps(top).encode())
    >>> flows.collective, flows.gpus, flows.switches, flows.epochs
    ('all_gather', (0, 1), (), 1)
    """
    top = _dict(_parsed(data), "the file")
    name = _present(top, FLOWS)
    if name not in top:
        raise ValueError(
            f"keys of the file: got {short(list(top)[:8])}, expected 7-Flows among them"
        )
    flows = [_flow(text) for text in _list(top[name], name)]
    pieces = sum(flow.volume is not None for flow in flows)
    if not flows or pieces not in (0, len(flows)):
        got = "flows with and without a volume" if flows else "none"
        raise ValueError(f"{name}: got {got}, expected one kind")
    return _all_to_all(top, flows) if pieces else _all_gather(top, flows)


def _placed(collective: str, gpus: tuple[int, ...], k: int, flows: list[Flow]) -> Flows:
    """Return flows that have their chunks of the schedule. Raises ValueError for too many chunks."""
    switches: set[int] = set()
    for flow in flows:
        switches.update(flow.via)
    nodes = len(gpus) + len(switches)
    if nodes * k > MAX_CELLS:
        raise ValueError(
            f"chunks: got {k:,} on {nodes:,} nodes, expected a product of at most {MAX_CELLS:,}"
        )
    return Flows(collective, gpus, tuple(sorted(switches)), k, tuple(flows))


def _parsed(data: bytes) -> Any:
    """Return the value that a text in JSON stands for."""
    if len(data) > MAX_BYTES:
        raise ValueError(
            f"size of the file: got more than {MAX_BYTES:,} bytes, expected at most that"
        )
    try:
        return json.loads(data.decode("utf-8-sig"), parse_constant=_refuse, parse_int=_whole)
    except RecursionError:
        raise ValueError("levels of the file: got hundreds, expected at most 5") from None
    except ValueError as error:  # also bytes that are not UTF-8
        raise ValueError(f"not JSON: {str(error).splitlines()[0][:200]}") from None


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"got {word}, expected a number")


def _whole(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"got a number of {len(digits):,} digits, expected at most {MAX_DIGITS}")
    return int(digits)


def _present(top: dict[str, Any], names: tuple[str, ...]) -> str:
    """Return the name that the file has, or the first one if it has none."""
    return next((name for name in names if name in top), names[0])


def _dict(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{name}: got {short(value)}, expected an object with names")
    return value


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list) or len(value) > MAX_FLOWS:
        got = f"{len(value):,} entries" if isinstance(value, list) else short(value)
        raise ValueError(f"{name}: got {got}, expected a list of at most {MAX_FLOWS:,}")
    return value


def _match(pattern: re.Pattern[str], text: Any, example: str) -> re.Match[str]:
    match = pattern.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"got {short(text)}, expected {example!r}")
    return match


def _flow(text: Any) -> Flow:
    """Read one line of the list of flows."""
    match = _match(FLOW, text, "Chunk C from O traveled over A->B in epoch E")
    via = match["via"].split("->") if match["via"] else []
    flow = Flow(
        chunk=int(match["chunk"]),
        origin=int(match["origin"]),
        src=int(match["src"]),
        dst=int(match["dst"]),
        volume=float(match["volume"]) if match["volume"] else None,
        epoch=int(match["epoch"]),
        via=tuple(int(node) for node in via),
    )
    is_large = flow.chunk > MAX_CHUNK or flow.epoch > MAX_EPOCH
    largest = max(flow.origin, max(flow.nodes))
    if flow.src == flow.dst or is_large or largest > MAX_NODE:
        limits = f"a chunk up to {MAX_CHUNK:,}, an epoch up to {MAX_EPOCH:,}"
        raise ValueError(f"got {short(text)}, expected two nodes up to {MAX_NODE:,}, {limits}")
    return flow


def _all_gather(top: dict[str, Any], flows: list[Flow]) -> Flows:
    """Read an all-gather.

    Its GPUs are those of the file's demand, each with the same number of chunks.
    """
    met = _dict(top.get("6-Demand_Met"), "6-Demand_Met")
    names = list(met)
    for receiver, senders in met.items():
        names += _dict(senders, f"6-Demand_Met, {receiver}")
    gpus = _gpus({int(_match(GPU, name, "GPU N")[1]) for name in names}, flows)
    rank = {gpu: number for number, gpu in enumerate(gpus)}
    chunks = 1 + max(flow.chunk for flow in flows)
    placed = [flow._replace(first=rank[flow.origin] * chunks + flow.chunk) for flow in flows]
    return _placed("all_gather", gpus, len(gpus) * chunks, placed)


class Demand(NamedTuple):
    """A chunk that one GPU of an all-to-all has for another, and the flows of each of its paths."""

    origin: int
    to: int
    chunk: int
    paths: list[list[Flow]]


def _all_to_all(top: dict[str, Any], flows: list[Flow]) -> Flows:
    """Read an all-to-all.

    A piece of a pair is a chunk of the schedule, and its last piece fills the pair up.
    """
    name = _present(top, PATHS)
    demands = [_demand(key, paths) for key, paths in _dict(top.get(name), name).items()]
    ends: set[int] = set()
    pieces: list[Flow] = []
    for demand in demands:
        ends |= {demand.origin, demand.to}
        for path in demand.paths:
            pieces += path
    gpus = _gpus(ends, pieces)
    p = len(gpus)
    rank = {gpu: number for number, gpu in enumerate(gpus)}
    pairs: dict[int, list[list[Flow]]] = defaultdict(list)
    for demand in demands:
        _check_demand(demand, rank)
        pairs[rank[demand.origin] * p + rank[demand.to]] += demand.paths
    odd = set(flows) ^ set(pieces)
    if odd:
        raise ScheduleError(
            f"flows and {name}: got {min(odd, key=repr)} in one of them, "
            "expected the same flows in both"
        )
    most = max(len(paths) for paths in pairs.values())
    placed: list[Flow] = []
    for pair, paths in pairs.items():
        for piece, path in enumerate(paths):
            width = most - piece if piece == len(paths) - 1 else 1
            placed += [flow._replace(first=pair * most + piece, width=width) for flow in path]
    return _placed("all_to_all", gpus, p * p * most, placed)


def _demand(key: str, paths: Any) -> Demand:
    """Read one entry of the paths: its name is the demand."""
    match = _match(DEMAND, key, "Demand at D for chunk C from O met by epoch E")
    to = int(match["to"])
    chunk = int(match["chunk"])
    origin = int(match["origin"])
    read_paths = []
    for path in _list(paths, key):
        flows = []
        for entry in _list(path, key):
            # A link stands alone, or behind its number on the path.
            link = entry[1] if isinstance(entry, list) and len(entry) == 2 else entry
            flows.append(_flow(f"Chunk {chunk} from {origin} traveled over {link}"))
        if not flows or any(flow.volume is None for flow in flows):
            raise ValueError(
                f"{key}: got a path without flows or volumes, expected flows with volumes"
            )
        read_paths.append(flows)
    return Demand(origin, to, chunk, read_paths)


def _check_demand(demand: Demand, rank: dict[int, int]) -> None:
    """Raise unless the chunk is the receiver's, and its paths bring all of it."""
    to, chunk = demand.to, demand.chunk
    if chunk % len(rank) != rank[to]:
        raise ValueError(
            f"demand at {to}: got chunk {chunk}, expected {rank[to]} modulo {len(rank)} GPUs"
        )
    volume = sum(min(flow.volume or 0 for flow in path) for path in demand.paths)
    if abs(volume - 1) > ROUNDED:
        raise ScheduleError(
            f"GPU {to}: got {volume:g} of chunk {chunk} from {demand.origin}, expected all of it, 1"
        )


def _gpus(known: set[int], flows: Iterable[Flow]) -> tuple[int, ...]:
    """Return the GPUs of the demand in order.

    Flows begin and end there, and the nodes between them are switches.
    """
    gpus = tuple(sorted(known))
    if not gpus or gpus[-1] > MAX_NODE:
        raise ValueError(
            f"GPUs of the demand: got {short(list(gpus[-1:]))}, expected numbers up to {MAX_NODE:,}"
        )
    for flow in flows:
        others = [node for node in (flow.origin, flow.src, flow.dst) if node not in known]
        if others or known.intersection(flow.via):
            got = f"node {others[0]}" if others else "a GPU as a switch"
            raise ValueError(
                f"{flow}: got {got}, expected one of the {len(gpus)} GPUs of the demand "
                f"({runs(gpus)}), and switches with other numbers"
            )
    return gpus


def schedule(flows: Flows) -> Schedule:
    """Return the flows as a schedule: an epoch is a step, or several with switches on the way, one for each link.

    GPUs are the ranks, in the order of their numbers, and switches follow them. A switch that sends
    one chunk to many receives it once. What takes longer than an epoch is not seen here, because
    links have no rates; pieces of a chunk have names, but no sizes.

    >>> one = Flow(0, 4, 4, 7, None, epoch=0, via=(9,), first=0)
    >>> other = Flow(0, 7, 7, 4, None, epoch=0, via=(9,), first=1)
    >>> swap = Flows("all_gather", gpus=(4, 7), switches=(9,), k=2, flows=(one, other))
    >>> list(schedule(swap).steps())
    [Step(0->2:=0, 1->2:=1), Step(2->0:=1, 2->1:=0)]
    """
    number = {node: rank for rank, node in enumerate([*flows.gpus, *flows.switches])}
    legs = max((len(flow.nodes) - 1 for flow in flows.flows), default=1)  # of the longest flow
    rows: set[tuple[int, ...]] = set()
    for flow in flows.flows:
        for leg, (a, b) in enumerate(pairwise(flow.nodes)):
            rows.add((flow.epoch * legs + leg, number[a], number[b], flow.first, flow.width))
    table = np.array(sorted(rows), dtype=np.int64).reshape(-1, 5)
    nsteps = flows.epochs * legs
    # The rows of a step stand together, from its entry on.
    begin = np.searchsorted(table[:, 0], np.arange(nsteps + 1))

    def make(t: int) -> Step:
        _, src, dst, first, width = table[begin[t] : begin[t + 1]].T
        return Step(src, dst, first, width)

    p, switches = len(flows.gpus), len(flows.switches)
    return Schedule(flows.collective, p, flows.k, nsteps, make, one_port=False, switches=switches)

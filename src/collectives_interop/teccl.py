"""Read schedules that TE-CCL writes, in JSON, prove them, and compare them with the links of their network.

A line says which chunk travels over which link in which epoch. An all-gather is a list of flows of
whole chunks. An all-to-all cuts a chunk into pieces: its flows have volumes, and its "chunk paths"
say which piece takes which way. A flow via a switch is one line: the switch passes the chunk on in
the next epoch and keeps nothing. Source: microsoft/TE-CCL at c128bf2, of Liu et al., SIGCOMM 2024:
`teccl/solvers` for the format and the model of time, `teccl/topologies` and
`teccl/examples/json_gen.py` for networks and sizes, which are not measurements.

In that model a chunk on a link takes the epochs that its bytes take, at least one, and the link's
latency, rounded up to epochs. A latency below a tenth of an epoch counts as 0. In an all-gather the
link from a switch takes no time beyond its latency. In an all-to-all a piece takes one epoch,
however large the chunk is, because its volume fits the epoch.

The file is untrusted: it is parsed as data, and oversized input is refused before anything is
computed.
"""

import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from collectives.core.contracts import where
from collectives.core.schedule import Ints, Schedule, ScheduleError, Step, owner
from collectives.errors import short, unknown
from collectives.units import runs

# The largest files that are published have 2.4 MB, 12,000 flows, 34 nodes, 4,006 epochs.
MAX_BYTES, MAX_FLOWS, MAX_NODE, MAX_CHUNK, MAX_EPOCH = (
    1 << 24,
    1 << 18,
    (1 << 10) - 1,
    1 << 16,
    1 << 16,
)
# Nodes times chunks of the schedule: `verify` keeps 16 bytes for each. The largest published
# product is 522,240.
MAX_CELLS = 1 << 24
MAX_DIGITS = 300  # of a whole number, which a float can still hold

FLOW = re.compile(
    r"Chunk (\d{1,9}) from (\d{1,9}) traveled over (\d{1,9})->(\d{1,9})"
    r"(?: with volume (\d(?:\.\d{1,24})?(?:e-\d{1,3})?))? in epoch (\d{1,9})"
    r"(?: via switches (\d{1,9}(?: ?-> ?\d{1,9}){0,3}))?",
    re.ASCII,
)
DEMAND = re.compile(
    r"Demand at (\d{1,9}) for chunk (\d{1,9}) from (\d{1,9}) met by epoch (\d{1,9})", re.ASCII
)
GPU = re.compile(r"GPU (\d{1,9})", re.ASCII)

# Volumes are rounded to six digits, and the solver itself is exact to four.
ROUNDED = 1e-4

GB = 10**9
UNIT = 12.5 * GB  # bytes per second: one port between chassis. `capacities` counts in it.

# Seconds until the first byte is there: over a port between chassis, and over any other link.
LATENCY = {"NDv2": (1.3e-6, 0.7e-6), "DGX2": (2.6e-6, 0.35e-6)}
LATENCY_COUNTS = 0.1  # of an epoch

# The nodes that are switches. In two NDv2 chassis there is none: node 0 of that matrix is a GPU.
NETWORKS: dict[str, tuple[int, ...]] = {
    "DGX2 2 chassis": (0, 17),
    "NDv2 2 chassis": (),
    "NDv2 4 chassis": (0,),
}

FACTORS = {"KB": 10**3, "MB": 10**6, "GB": GB}
SIZES = ("1KB", "4KB", "16KB", "64KB", "256KB", "1MB", "4MB", "16MB", "64MB", "256MB", "1GB")
PLACE = re.compile(
    r"(?:.*/)?(NDv2|DGX2)_output/([24])_chassis/(?:AllGather|AlltoAll)/(\w+)/(\w+)\.json"
)


class Flow(NamedTuple):
    """One line of the file: a chunk of ``origin``, from node to node.

    ``volume`` is a share of it, None for all.
    """

    chunk: int
    origin: int
    src: int
    dst: int
    volume: float | None
    epoch: int
    via: tuple[int, ...]

    @property
    def nodes(self) -> tuple[int, ...]:
        """Return all nodes on the way, in order."""
        return self.src, *self.via, self.dst

    def __str__(self) -> str:
        return f"chunk {self.chunk} from {self.origin} over {'->'.join(map(str, self.nodes))} in epoch {self.epoch}"


class Hop(NamedTuple):
    """A flow with the ``width`` chunks of the schedule, from ``first`` on, that it moves."""

    flow: Flow
    first: int
    width: int = 1


class Flows(NamedTuple):
    """The contents of a file: nodes by their numbers there, seconds of an epoch, GB/s of algorithm bandwidth."""

    collective: str
    gpus: tuple[int, ...]
    switches: tuple[int, ...]
    k: int
    hops: tuple[Hop, ...]
    epoch_seconds: float
    stated: float

    @property
    def epochs(self) -> int:
        """Count epochs up to the last in which anything is sent."""
        return 1 + max((hop.flow.epoch for hop in self.hops), default=-1)

    @property
    def legs(self) -> int:
        """Count the links that the longest flow uses."""
        return max((len(hop.flow.nodes) - 1 for hop in self.hops), default=1)

    def chunk(self, cell: int) -> str:
        """Name a chunk of the schedule as the file does."""
        p, origin = len(self.gpus), int(owner(cell, len(self.gpus), self.k))
        number = (
            cell % (self.k // p) if self.collective == "all_gather" else cell * p * p // self.k % p
        )
        return f"chunk {number} from {self.gpus[origin]}"


def read(data: bytes) -> Flows:
    """Return the flows in the text of a file.

    Raises ValueError, one line, for any other text. Raises ScheduleError if the pieces of a chunk
    do not add up to the whole, or if the list of flows and the paths differ. Cost: linear in the
    length of the text.

    >>> swap = [f"Chunk 0 from {a} traveled over {a}->{b} in epoch 0" for a, b in ((0, 1), (1, 0))]
    >>> top = {"1-Epoch_Duration": 1, "5-Algo_Bandwidth": 2, "6-Demand_Met": {"GPU 0": {"GPU 1": {}}}, "7-Flows": swap}
    >>> flows = read(json.dumps(top).encode())
    >>> flows.collective, flows.gpus, flows.switches, flows.epochs
    ('all_gather', (0, 1), (), 1)
    """
    if len(data) > MAX_BYTES:
        raise ValueError(
            f"size of the file: got more than {MAX_BYTES:,} bytes, expected at most that"
        )
    try:
        parsed = json.loads(data.decode("utf-8-sig"), parse_constant=_refuse, parse_int=_whole)
    except RecursionError:
        raise ValueError("levels of the file: got hundreds, expected at most 5") from None
    except ValueError as error:  # also bytes that are not UTF-8
        raise ValueError(f"not JSON: {str(error).splitlines()[0][:200]}") from None
    top = _dict(parsed, "the file")
    name = next((name for name in ("7-Flows", "6-Flows") if name in top), None)
    if name is None:
        raise ValueError(
            f"keys of the file: got {short(list(top)[:8])}, expected 7-Flows among them"
        )
    flows = [_flow(text) for text in _list(top[name], name)]
    whole = {flow.volume is None for flow in flows}
    if len(whole) != 1:
        raise ValueError(
            f"{name}: got {'flows with and without a volume' if whole else 'none'}, expected one kind"
        )
    collective, gpus, k, hops = (_all_gather if whole.pop() else _all_to_all)(top, flows)
    switches = tuple(sorted({node for hop in hops for node in hop.flow.via}))
    if (nodes := len(gpus) + len(switches)) * k > MAX_CELLS:
        raise ValueError(
            f"chunks: got {k:,} on {nodes:,} nodes, expected a product of at most {MAX_CELLS:,}"
        )
    numbers = _positive(top, "1-Epoch_Duration"), _positive(top, "5-Algo_Bandwidth")
    return Flows(collective, gpus, switches, k, tuple(hops), *numbers)


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"got {word}, expected a number")


def _whole(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"got a number of {len(digits):,} digits, expected at most {MAX_DIGITS}")
    return int(digits)


def _dict(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{name}: got {short(value)}, expected an object with names")
    return value


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list) or len(value) > MAX_FLOWS:
        got = f"{len(value):,} entries" if isinstance(value, list) else short(value)
        raise ValueError(f"{name}: got {got}, expected a list of at most {MAX_FLOWS:,}")
    return value


def _positive(top: dict[str, Any], name: str) -> float:
    value = top.get(name)
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 0 < value <= sys.float_info.max
    ):
        raise ValueError(f"{name}: got {short(value)}, expected a number above 0")
    return float(value)


def _match(pattern: re.Pattern[str], text: Any, example: str) -> re.Match[str]:
    found = pattern.fullmatch(text) if isinstance(text, str) else None
    if not found:
        raise ValueError(f"got {short(text)}, expected {example!r}")
    return found


def _flow(text: Any) -> Flow:
    found = _match(FLOW, text, "Chunk C from O traveled over A->B in epoch E")
    chunk, origin, src, dst, epoch = (int(found[group]) for group in (1, 2, 3, 4, 6))
    via = tuple(int(each) for each in (found[7] or "").split("->") if each)
    if (
        src == dst
        or chunk > MAX_CHUNK
        or epoch > MAX_EPOCH
        or max(origin, src, dst, *via) > MAX_NODE
    ):
        limits = f"two nodes up to {MAX_NODE:,}, a chunk up to {MAX_CHUNK:,}, an epoch up to {MAX_EPOCH:,}"
        raise ValueError(f"got {short(text)}, expected {limits}")
    return Flow(chunk, origin, src, dst, float(found[5]) if found[5] else None, epoch, via)


# The collective, its GPUs, chunks of the schedule, hops.
Content = tuple[str, tuple[int, ...], int, list[Hop]]


def _all_gather(top: dict[str, Any], flows: list[Flow]) -> Content:
    """Read an all-gather.

    Its GPUs are those of the file's demand, each with the same number of chunks.
    """
    met = _dict(top.get("6-Demand_Met"), "6-Demand_Met")
    names = [
        *met,
        *(name for to, each in met.items() for name in _dict(each, f"6-Demand_Met, {to}")),
    ]
    gpus = _gpus({int(_match(GPU, name, "GPU N")[1]) for name in names}, flows)
    rank, chunks = {gpu: r for r, gpu in enumerate(gpus)}, 1 + max(flow.chunk for flow in flows)
    hops = [Hop(flow, rank[flow.origin] * chunks + flow.chunk) for flow in flows]
    return "all_gather", gpus, len(gpus) * chunks, hops


def _all_to_all(top: dict[str, Any], flows: list[Flow]) -> Content:
    """Read an all-to-all.

    A piece of a pair is a chunk of the schedule, and its last piece fills the pair up.
    """
    name = next(
        (name for name in ("8-Chunk paths", "7-chunk paths") if name in top), "8-Chunk paths"
    )
    demands = [_demand(*each) for each in _dict(top.get(name), name).items()]
    pieces = [flow for *_, paths in demands for path in paths for flow in path]
    gpus = _gpus({gpu for origin, to, *_ in demands for gpu in (origin, to)}, pieces)
    rank = {gpu: r for r, gpu in enumerate(gpus)}
    pairs: dict[int, list[list[Flow]]] = defaultdict(list)
    for origin, to, chunk, paths in demands:
        if chunk % len(gpus) != rank[to]:
            raise ValueError(
                f"demand at {to}: got chunk {chunk}, expected {rank[to]} modulo {len(gpus)} GPUs"
            )
        volume = sum(min(flow.volume or 0 for flow in path) for path in paths)
        if abs(volume - 1) > ROUNDED:
            raise ScheduleError(
                f"GPU {to}: got {volume:g} of chunk {chunk} from {origin}, expected all of it, 1"
            )
        pairs[rank[origin] * len(gpus) + rank[to]] += paths
    if odd := set(flows) ^ set(pieces):
        raise ScheduleError(
            f"flows and {name}: got {min(odd, key=repr)} in one of them, expected the same flows in both"
        )
    most = max(map(len, pairs.values()))
    hops = [
        Hop(flow, pair * most + piece, most - piece if piece == len(paths) - 1 else 1)
        for pair, paths in pairs.items()
        for piece, path in enumerate(paths)
        for flow in path
    ]
    return "all_to_all", gpus, len(gpus) ** 2 * most, hops


def _demand(key: str, paths: Any) -> tuple[int, int, int, list[list[Flow]]]:
    """Return origin, receiver and number of the chunk, and the flows of each of its paths."""
    to, chunk, origin, _ = map(
        int, _match(DEMAND, key, "Demand at D for chunk C from O met by epoch E").groups()
    )
    found = []
    for path in _list(paths, key):
        texts = [
            each[1] if isinstance(each, list) and len(each) == 2 else each
            for each in _list(path, key)
        ]
        found.append([_flow(f"Chunk {chunk} from {origin} traveled over {text}") for text in texts])
        if not found[-1] or any(flow.volume is None for flow in found[-1]):
            raise ValueError(
                f"{key}: got a path without flows or volumes, expected flows with volumes"
            )
    return origin, to, chunk, found


def _gpus(known: set[int], flows: Iterable[Flow]) -> tuple[int, ...]:
    """Return the GPUs of the demand in order.

    Flows begin and end there, and the nodes between them are switches.
    """
    if not known or max(known) > MAX_NODE:
        raise ValueError(
            f"GPUs of the demand: got {short(sorted(known)[-1:])}, expected numbers up to {MAX_NODE:,}"
        )
    for flow in flows:
        others = [node for node in (flow.origin, flow.src, flow.dst) if node not in known]
        if others or known.intersection(flow.via):
            got = f"node {others[0]}" if others else "a GPU as a switch"
            asked = f"one of the {len(known)} GPUs of the demand ({runs(tuple(sorted(known)))})"
            raise ValueError(
                f"{flow}: got {got}, expected {asked}, and switches with other numbers"
            )
    return tuple(sorted(known))


def schedule(flows: Flows) -> Schedule:
    """Return the flows as a schedule: an epoch is a step, or several with switches on the way, one for each link.

    GPUs are the ranks, in the order of their numbers, and switches follow them. A switch that sends
    one chunk to many receives it once. What takes longer than an epoch is not seen here, because
    links have no rates; pieces of a chunk have names, but no sizes.

    >>> one, other = (Hop(Flow(0, a, a, b, None, 0, (9,)), rank) for rank, (a, b) in enumerate([(4, 7), (7, 4)]))
    >>> swap = Flows("all_gather", gpus=(4, 7), switches=(9,), k=2, hops=(one, other), epoch_seconds=1, stated=1)
    >>> list(schedule(swap).steps())
    [Step(0->2:=0, 1->2:=1), Step(2->0:=1, 2->1:=0)]
    """
    place = {node: number for number, node in enumerate([*flows.gpus, *flows.switches])}
    legs = flows.legs  # reads all hops
    rows = {
        (flow.epoch * legs + leg, place[a], place[b], first, width)
        for flow, first, width in flows.hops
        for leg, (a, b) in enumerate(pairwise(flow.nodes))
    }
    table = np.array(sorted(rows), dtype=np.int64).reshape(-1, 5)
    nsteps = flows.epochs * legs
    begin = np.searchsorted(table[:, 0], np.arange(nsteps + 1))

    def make(t: int) -> Step:
        return Step(*table[begin[t] : begin[t + 1], 1:].T)

    p, switches = len(flows.gpus), len(flows.switches)
    return Schedule(flows.collective, p, flows.k, nsteps, make, one_port=False, switches=switches)


def check_complete(flows: Flows) -> None:
    """Raise a ScheduleError, one line in the file's own numbers, if a node sends what it lacks or misses a chunk.

    Cost: participants * k bytes. `verify` proves the same schedule and more; it numbers nodes as
    ranks.
    """
    made, nodes = schedule(flows), [*flows.gpus, *flows.switches]
    held = np.zeros((made.participants, made.k), dtype=np.bool_)
    held[owner(np.arange(made.k), made.p, made.k), np.arange(made.k)] = True
    for t, step in enumerate(made.steps()):
        row, chunk = step.cells()
        early = np.flatnonzero(~held[step.src[row], chunk])
        if early.size:
            node, what = nodes[step.src[row[early[0]]]], flows.chunk(int(chunk[early[0]]))
            sender = (
                f"epoch {t // flows.legs}: {'switch' if node in flows.switches else 'GPU'} {node}"
            )
            raise ScheduleError(
                f"{sender} sends {what}: got none there, expected it before that epoch"
            )
        held[step.dst[row], chunk] = True
    missing = np.argwhere(where(made) & ~held)
    if missing.size:
        rank, cell = map(int, missing[0])
        pieces = 1 if flows.collective == "all_gather" else made.k // made.p**2
        others = len(np.unique(missing[:, 0] * made.k + missing[:, 1] // pieces)) - 1
        more = f" ({others:,} more are missing)" if others else ""
        raise ScheduleError(
            f"GPU {flows.gpus[rank]}: got no {flows.chunk(cell)}, expected it at the end{more}"
        )


def capacities(name: str) -> Ints:
    """Return the links of a network: entry [a, b] is the rate from node a to node b in units of 12.5 GB/s.

    Nodes have the numbers of TE-CCL. The rate of a link between chassis is 1. Raises ValueError for
    an unknown name.

    >>> capacities("NDv2 2 chassis").shape, capacities("NDv2 2 chassis")[0, :10].tolist()
    ((16, 16), [0, 4, 2, 2, 4, 0, 0, 0, 0, 1])
    """
    if name not in NETWORKS:
        raise ValueError(unknown("network", name, NETWORKS))
    return _dgx2() if name.startswith("DGX2") else _ndv2(int(name.split()[1]))


def _ndv2(chassis: int) -> Ints:
    """Join two chassis by a cable each way.

    More by a switch, node 0, from GPU 0 of each and to GPU 1 of each.
    """
    from collectives.machine import machine  # needs pydantic

    wired = machine("ndv2").links
    inside = 2 * np.array(wired.matrix if wired else ())  # a link of 25 GB/s is two units
    first = int(chassis > 2)
    links = np.zeros((first + 8 * chassis,) * 2, dtype=np.int64)
    for base in range(first, len(links), 8):
        links[base : base + 8, base : base + 8] = inside
        if first:
            links[base, 0] = links[0, base + 1] = 1
    if not first:
        links[0, 9] = links[8, 1] = 1
    return links


def _dgx2() -> Ints:
    """Join 16 GPUs each by nodes 0 and 17, and both chassis by cables from the 2nd, 4th … GPU."""
    links = np.zeros((34, 34), dtype=np.int64)
    for switch, other in ((0, 17), (17, 0)):
        links[switch, switch + 1 : switch + 17] = links[switch + 1 : switch + 17, switch] = 10
        cables = np.arange(1, 17, 2)
        links[switch + cables + 1, other + cables] = 1
    return links


def published(path: str) -> tuple[str, float] | None:
    """Return the network of a published file and the bytes of one GPU's chunk, or None if the path is none of theirs.

    A name such as 1GB is the size of all GPUs' chunks. The input of DGX2's Fast_Early_Stop divides
    it by 16, not by the 32 GPUs.

    >>> published("DGX2_output/2_chassis/AllGather/Fast_Early_Stop/1GB.json")
    ('DGX2 2 chassis', 62500000.0)
    """
    found = PLACE.fullmatch(path)
    if not found or found[4] not in SIZES:
        return None
    name, chassis, kind, size = found.groups()
    per_chassis = 16 if name == "DGX2" and kind != "Fast_Early_Stop" else 8
    return f"{name} {chassis} chassis", int(size[:-2]) * FACTORS[size[-2:]] / (
        int(chassis) * per_chassis
    )


class Fit(NamedTuple):
    """The result of a comparison: the faults found ("" if none), the time in seconds, and bytes per second."""

    missing: str
    seconds: float
    bandwidth: float


class Model(NamedTuple):
    """Times of each pair of nodes: epochs of latency, epochs beyond the first for a chunk's bytes, chunks per epoch."""

    latency: Ints
    extra: Ints
    per_epoch: NDArray[np.float64]


def fit(flows: Flows, network: str, chunk: float) -> Fit:
    """Compare flows with the links of a network.

    ``chunk`` is the size in bytes of one GPU's chunk; in an all-to-all, of the chunk that it has
    for one other GPU.

    The bandwidth is the algorithm bandwidth of TE-CCL: all GPUs' chunks, divided by the time. It
    counts the GPUs that take part. Raises ValueError for an unknown network or a node that it
    lacks. Cost: linear in the flows, nearly.

    >>> flow = Hop(Flow(0, 8, 8, 1, None, epoch=0, via=()), 1)
    >>> flows = Flows("all_gather", (1, 8), (), k=2, hops=(flow,), epoch_seconds=1e-3, stated=1)
    >>> fit(flows, "NDv2 2 chassis", 50e6)
    Fit(missing='GPU 0, 2–7, 9–15 of 16 takes no part', seconds=0.004, bandwidth=25000000000.0)
    """
    links, epoch = capacities(network), flows.epoch_seconds
    most = max(max(hop.flow.nodes) for hop in flows.hops)
    if most >= len(links):
        raise ValueError(
            f"nodes of the flows: got {most}, expected at most {len(links) - 1} on {network}"
        )
    between, other = LATENCY[network.split()[0]]
    share = np.where(links == 1, between, other) / epoch
    per_epoch = np.asarray(links * UNIT * epoch / chunk, dtype=np.float64)
    extra = _rounded_up(1 / np.where(links > 0, per_epoch, 1)) - 1
    extra = np.where((links > 0) & (flows.collective == "all_gather"), extra, 0)
    model = Model(np.where(share > LATENCY_COUNTS, _rounded_up(share), 0), extra, per_epoch)
    absent = tuple(sorted(set(range(len(links))) - set(NETWORKS[network]) - set(flows.gpus)))
    found = (
        [f"GPU {runs(absent)} of {len(links) - len(NETWORKS[network])} takes no part"]
        if absent
        else []
    )
    end, faults = _played(flows, model)
    seconds = end * epoch
    return Fit("; ".join([*found, *faults]), seconds, len(flows.gpus) * chunk / seconds)


def _rounded_up(values: NDArray[np.float64]) -> Ints:
    """Round up to whole numbers, 2.0000000001 to 2."""
    return np.ceil(np.round(values, 6)).astype(np.int64)


def _played(flows: Flows, model: Model) -> tuple[int, list[str]]:
    """Return the epoch after the last arrival, and the first fault of each kind."""
    ready: dict[tuple[int, int], int] = {}
    sent: dict[tuple[int, int, int, int], float] = {}
    faults: dict[str, str] = {}
    for hop in sorted(flows.hops, key=lambda hop: hop.flow.epoch):
        flow, epoch = hop.flow, hop.flow.epoch
        since = 0 if flow.src == flow.origin else ready.get((flow.src, hop.first), epoch + 1)
        if since > epoch:
            what = f"GPU {flow.src} sends {flows.chunk(hop.first)}: got it in epoch {since}, expected it before"
            faults.setdefault("early", f"epoch {epoch}: {what}")
        for a, b in pairwise(flow.nodes):
            sent[a, b, epoch, hop.first] = 1.0 if flow.volume is None else flow.volume
            epoch += int(model.latency[a, b] + model.extra[a, b]) + 1
        if flow.via and flows.collective == "all_gather":
            epoch -= int(model.extra[a, b]) + 1
        ready[flow.dst, hop.first] = min(epoch, ready.get((flow.dst, hop.first), epoch))
    for kind, fault in _overloads(sent, model):
        faults.setdefault(kind, fault)
    return max(ready.values()), list(faults.values())


def _overloads(
    sent: dict[tuple[int, int, int, int], float], model: Model
) -> Iterator[tuple[str, str]]:
    """Yield flows over a missing link, and loads above a link's capacity in the epochs that one chunk takes."""
    loads: dict[tuple[int, int], dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for (a, b, epoch, _), volume in sent.items():
        loads[a, b][epoch] += volume
    for (a, b), load in sorted(loads.items()):
        if not model.per_epoch[a, b]:
            yield (
                "link",
                f"link {a}->{b}: got flows, expected none, because the network has no such link",
            )
            continue
        window = int(model.extra[a, b]) + 1
        most = window * float(model.per_epoch[a, b])
        for epoch in sorted(load):
            carried = sum(load.get(each, 0) for each in range(epoch - window + 1, epoch + 1))
            if carried > most + ROUNDED:
                yield (
                    "load",
                    f"link {a}->{b}, epoch {epoch}: got {carried:g} chunks, expected at most {most:g}",
                )

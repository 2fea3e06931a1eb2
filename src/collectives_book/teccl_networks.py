"""The networks for which TE-CCL's schedules were published, and a comparison of a schedule with its network's links.

Source: microsoft/TE-CCL at c128bf2: `teccl/topologies` and `teccl/examples/json_gen.py` for
networks and sizes, which are not measurements, `teccl/solvers` for the model of time. In that model
a chunk on a link takes the epochs that its bytes take, at least one, and the link's latency,
rounded up to epochs. A latency below a tenth of an epoch counts as 0. In an all-gather the link
from a switch takes no time beyond its latency. In an all-to-all a piece takes one epoch, however
large the chunk is, because its volume fits the epoch.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives.core.schedule import Ints
from collectives.errors import unknown
from collectives.machine import machine
from collectives.units import runs
from collectives_interop.teccl import ROUNDED, Flows

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


def capacities(name: str) -> Ints:
    """Return the links of a network: entry [a, b] is the rate from node a to node b in units of 12.5 GB/s.

    Nodes have the numbers of TE-CCL. The rate of a link between chassis is 1. Raises ValueError for
    an unknown name.

    >>> capacities("NDv2 2 chassis").shape, capacities("NDv2 2 chassis")[0, :10].tolist()
    ((16, 16), [0, 4, 2, 2, 4, 0, 0, 0, 0, 1])
    """
    if name not in NETWORKS:
        raise ValueError(unknown("network", name, NETWORKS))
    if name.startswith("DGX2"):
        return _dgx2()
    chassis = int(name.split()[1])
    return _ndv2(chassis)


def _ndv2(chassis: int) -> Ints:
    """Join two chassis by a cable each way.

    More by a switch, node 0, from GPU 0 of each and to GPU 1 of each.
    """
    wired = machine("ndv2").links
    inside = 2 * np.array(wired.matrix if wired else ())  # a link of 25 GB/s is two units
    first = 1 if chassis > 2 else 0  # the first GPU, behind the switch
    nodes = first + 8 * chassis
    links = np.zeros((nodes, nodes), dtype=np.int64)
    for base in range(first, nodes, 8):
        links[base : base + 8, base : base + 8] = inside
        if chassis > 2:
            links[base, 0] = 1
            links[0, base + 1] = 1
    if chassis == 2:
        links[0, 9] = 1
        links[8, 1] = 1
    return links


def _dgx2() -> Ints:
    """Join 16 GPUs each by nodes 0 and 17, and both chassis by cables from the 2nd, 4th … GPU."""
    links = np.zeros((34, 34), dtype=np.int64)
    for switch, other in ((0, 17), (17, 0)):
        gpus = slice(switch + 1, switch + 17)
        links[switch, gpus] = 10
        links[gpus, switch] = 10
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
    match = PLACE.fullmatch(path)
    if match is None or match[4] not in SIZES:
        return None
    name, chassis, kind, size = match.groups()
    per_chassis = 16 if name == "DGX2" and kind != "Fast_Early_Stop" else 8
    nbytes = int(size[:-2]) * FACTORS[size[-2:]]
    return f"{name} {chassis} chassis", nbytes / (int(chassis) * per_chassis)


class Stated(NamedTuple):
    """The numbers that a file states: seconds of an epoch, and GB/s of algorithm bandwidth."""

    epoch_seconds: float
    bandwidth: float


def stated(data: bytes) -> Stated:
    """Return the numbers in the text of a file that `collectives_interop.teccl` reads."""
    top = json.loads(data)
    return Stated(float(top["1-Epoch_Duration"]), float(top["5-Algo_Bandwidth"]))


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


def fit(flows: Flows, epoch: float, network: str, chunk: float) -> Fit:
    """Compare flows with the links of a network.

    ``epoch`` is in seconds, ``chunk`` the size in bytes of one GPU's chunk; in an all-to-all, of
    the chunk that it has for one other GPU.

    The bandwidth is the algorithm bandwidth of TE-CCL: all GPUs' chunks, divided by the time. It
    counts the GPUs that take part. Raises ValueError for an unknown network or a node that it
    lacks. Cost: linear in the flows, nearly.

    >>> from collectives_interop.teccl import Flow
    >>> flow = Flow(0, 8, 8, 1, None, epoch=0, via=(), first=1)
    >>> flows = Flows("all_gather", (1, 8), (), k=2, flows=(flow,))
    >>> fit(flows, 1e-3, "NDv2 2 chassis", 50e6)
    Fit(missing='GPU 0, 2–7, 9–15 of 16 takes no part', seconds=0.004, bandwidth=25000000000.0)
    """
    links = capacities(network)
    most = max(max(flow.nodes) for flow in flows.flows)
    if most >= len(links):
        raise ValueError(
            f"nodes of the flows: got {most}, expected at most {len(links) - 1} on {network}"
        )
    gpus = set(range(len(links))) - set(NETWORKS[network])
    absent = tuple(sorted(gpus - set(flows.gpus)))
    faults = [f"GPU {runs(absent)} of {len(gpus)} takes no part"] if absent else []
    end, found = _played(flows, _model(flows, links, epoch, network, chunk))
    seconds = end * epoch
    return Fit("; ".join(faults + found), seconds, len(flows.gpus) * chunk / seconds)


def _model(flows: Flows, links: Ints, epoch: float, network: str, chunk: float) -> Model:
    between, other = LATENCY[network.split()[0]]
    late = np.where(links == 1, between, other) / epoch
    latency = np.where(late > LATENCY_COUNTS, _rounded_up(late), 0)
    per_epoch = np.asarray(links * UNIT * epoch / chunk, dtype=np.float64)
    if flows.collective == "all_gather":
        extra = np.where(links > 0, _rounded_up(1 / np.where(links > 0, per_epoch, 1)) - 1, 0)
    else:
        extra = np.zeros_like(links)
    return Model(latency, extra, per_epoch)


def _rounded_up(values: NDArray[np.float64]) -> Ints:
    """Round up to whole numbers, 2.0000000001 to 2."""
    return np.ceil(np.round(values, 6)).astype(np.int64)


def _played(flows: Flows, model: Model) -> tuple[int, list[str]]:
    """Return the epoch after the last arrival, and the first fault of each kind."""
    ready: dict[tuple[int, int], int] = {}  # by node and chunk of the schedule
    loads: dict[tuple[int, int], dict[tuple[int, int], float]] = defaultdict(dict)
    faults: dict[str, str] = {}
    for flow in sorted(flows.flows, key=lambda flow: flow.epoch):
        epoch = flow.epoch
        since = 0 if flow.src == flow.origin else ready.get((flow.src, flow.first), epoch + 1)
        if since > epoch and "early" not in faults:
            faults["early"] = (
                f"epoch {epoch}: GPU {flow.src} sends chunk {flow.chunk} from {flow.origin}: "
                f"got it in epoch {since}, expected it before"
            )
        for link in pairwise(flow.nodes):
            # A switch that sends a chunk to many receives it once.
            loads[link][epoch, flow.first] = 1.0 if flow.volume is None else flow.volume
            epoch += int(model.latency[link] + model.extra[link]) + 1
        if flow.via and flows.collective == "all_gather":
            epoch -= int(model.extra[link]) + 1
        arrived = flow.dst, flow.first
        ready[arrived] = min(epoch, ready.get(arrived, epoch))
    for link, sent in sorted(loads.items()):
        for kind, fault in _overloads(link, sent, model):
            faults.setdefault(kind, fault)
    return max(ready.values()), list(faults.values())


def _overloads(
    link: tuple[int, int], sent: dict[tuple[int, int], float], model: Model
) -> Iterator[tuple[str, str]]:
    """Yield flows over a missing link, and loads above its capacity in the epochs that one chunk takes.

    ``sent`` has the volume by epoch and chunk.
    """
    name = f"link {link[0]}->{link[1]}"
    if not model.per_epoch[link]:
        yield "link", f"{name}: got flows, expected none, because the network has no such link"
        return
    load: dict[int, float] = defaultdict(float)
    for (epoch, _), volume in sent.items():
        load[epoch] += volume
    window = int(model.extra[link]) + 1
    most = window * float(model.per_epoch[link])
    for epoch in sorted(load):
        carried = sum(load.get(before, 0) for before in range(epoch - window + 1, epoch + 1))
        if carried > most + ROUNDED:
            yield (
                "load",
                f"{name}, epoch {epoch}: got {carried:g} chunks, expected at most {most:g}",
            )

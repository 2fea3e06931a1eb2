"""Whether flows keep to the links of their network, and when they end, by TE-CCL's model of time.

A chunk on a link takes the epochs that its bytes take, at least one, and the link's latency, rounded up to epochs. A
latency below a tenth of an epoch counts as 0. In an all-gather the link from a switch takes no time beyond its latency.
In an all-to-all a piece takes one epoch, however large the chunk is, because its volume fits the epoch. All this is in
`teccl/solvers` of microsoft/TE-CCL; here it is computed from the flows alone.
"""

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives.formats.teccl_flows import ROUNDED, Flows, Hop
from collectives.formats.teccl_network import NETWORKS, UNIT, capacities, latencies
from collectives.schedule import Ints
from collectives.units import runs

LATENCY_COUNTS = 0.1  # of an epoch

Loads = dict[tuple[int, int], dict[int, float]]


class Fit(NamedTuple):
    """The result of a comparison: the faults found ("" if none), the time in seconds, and bytes per second."""

    missing: str
    seconds: float
    bandwidth: float


class Model(NamedTuple):
    """For each pair of nodes: epochs of latency, epochs beyond the first for a chunk's bytes, chunks per epoch."""

    latency: Ints
    extra: Ints
    per_epoch: NDArray[np.float64]


def fit(flows: Flows, network: str, chunk: float) -> Fit:
    """Compare flows with the links of a network.

    ``chunk`` is the size in bytes of one GPU's chunk; in an all-to-all, of the chunk that it has for one other GPU.

    The bandwidth is the algorithm bandwidth of TE-CCL: all GPUs' chunks, divided by the time. It counts the GPUs that
    take part. Raises ValueError for an unknown network or a node that it lacks. Cost: linear in the flows, nearly.

    >>> from collectives.formats.teccl_flows import Flow
    >>> flow = Hop(Flow(0, 8, 8, 1, None, epoch=0, via=()), 1)
    >>> flows = Flows("all_gather", (1, 8), (), k=2, hops=(flow,), epoch_seconds=1e-3, stated=1)
    >>> fit(flows, "NDv2 2 chassis", 50e6)
    Fit(missing='GPU 0, 2–7, 9–15 of 16 takes no part', seconds=0.004, bandwidth=25000000000.0)
    """
    model = _model(flows, network, chunk)
    most = max(max(hop.flow.nodes) for hop in flows.hops)
    if most >= len(model.latency):
        raise ValueError(f"nodes of the flows: got {most}, expected at most {len(model.latency) - 1} on {network}")
    absent = tuple(sorted(set(range(len(model.latency))) - set(NETWORKS[network]) - set(flows.gpus)))
    gpus = len(model.latency) - len(NETWORKS[network])
    found = [f"GPU {runs(absent)} of {gpus} takes no part"] if absent else []
    end, faults = _played(flows, model)
    seconds = end * flows.epoch_seconds
    return Fit("; ".join([*found, *faults]), seconds, len(flows.gpus) * chunk / seconds)


def _model(flows: Flows, network: str, chunk: float) -> Model:
    links, epoch = capacities(network), flows.epoch_seconds
    share = latencies(network) / epoch
    per_epoch = np.asarray(links * UNIT * epoch / chunk, dtype=np.float64)
    whole = flows.collective == "all_gather"
    extra = np.where((links > 0) & whole, _up(1 / np.where(links > 0, per_epoch, 1)) - 1, 0)
    return Model(np.where(share > LATENCY_COUNTS, _up(share), 0), extra, per_epoch)


def _up(values: NDArray[np.float64]) -> Ints:
    """Rounded up, where 2.0000000001 is 2."""
    return np.ceil(np.round(values, 6)).astype(np.int64)


def _played(flows: Flows, model: Model) -> tuple[int, list[str]]:
    """The epoch after the last arrival, and the first fault of each kind."""
    ready: dict[tuple[int, int], int] = {}
    sent: dict[tuple[int, int, int, int], float] = {}
    faults: dict[str, str] = {}
    for hop in sorted(flows.hops, key=lambda hop: hop.flow.epoch):
        flow, (legs, arrives) = hop.flow, _legs(hop, model, flows.collective == "all_gather")
        since = 0 if flow.src == flow.origin else ready.get((flow.src, hop.first), flow.epoch + 1)
        if since > flow.epoch:
            what = f"GPU {flow.src} sends {flows.chunk(hop.first)}: got it in epoch {since}, expected it before"
            faults.setdefault("early", f"epoch {flow.epoch}: {what}")
        ready[flow.dst, hop.first] = min(arrives, ready.get((flow.dst, hop.first), arrives))
        sent |= {(a, b, epoch, hop.first): 1.0 if flow.volume is None else flow.volume for a, b, epoch in legs}
    for kind, told in _overloads(sent, model):
        faults.setdefault(kind, told)
    return max(ready.values()), list(faults.values())


def _legs(hop: Hop, model: Model, whole: bool) -> tuple[list[tuple[int, int, int]], int]:
    """Each link that a flow uses, with its epoch there; and the first epoch in which its receiver can send."""
    legs, epoch = [], hop.flow.epoch
    for a, b in pairwise(hop.flow.nodes):
        legs.append((a, b, epoch))
        epoch += int(model.latency[a, b] + model.extra[a, b]) + 1
    return legs, epoch - (int(model.extra[a, b]) + 1 if hop.flow.via and whole else 0)


def _overloads(sent: dict[tuple[int, int, int, int], float], model: Model) -> Iterator[tuple[str, str]]:
    """Flows over a missing link, and loads above a link's capacity in the epochs that one chunk takes."""
    loads: Loads = defaultdict(lambda: defaultdict(float))
    for (a, b, epoch, _), volume in sent.items():
        loads[a, b][epoch] += volume
    for (a, b), load in sorted(loads.items()):
        if not model.per_epoch[a, b]:
            yield "link", f"link {a}->{b}: got flows, expected none, because the network has no such link"
            continue
        window = int(model.extra[a, b]) + 1
        most = window * float(model.per_epoch[a, b])
        for epoch in sorted(load):
            carried = sum(load.get(each, 0) for each in range(epoch - window + 1, epoch + 1))
            if carried > most + ROUNDED:
                yield "load", f"link {a}->{b}, epoch {epoch}: got {carried:g} chunks, expected at most {most:g}"

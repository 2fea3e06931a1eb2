"""The networks for which TE-CCL publishes schedules: links, switches, latencies, and which file is for which.

All facts are from microsoft/TE-CCL at c128bf2: `teccl/topologies/ndv2.py` and `dgx2.py`, and the sizes of
`teccl/examples/json_gen.py`. They are the numbers of its model, not measurements.
"""

import re

import numpy as np
from numpy.typing import NDArray

from collectives.errors import unknown
from collectives.machine import machine
from collectives.schedule import Ints

GB = 10**9
UNIT = 12.5 * GB  # bytes per second: one port between chassis. `capacities` counts in it.

# Seconds until the first byte is there: over a port between chassis, and over any other link.
LATENCY = {"NDv2": (1.3e-6, 0.7e-6), "DGX2": (2.6e-6, 0.35e-6)}

# The nodes that are switches. In two NDv2 chassis there is none: node 0 of that matrix is a GPU.
NETWORKS: dict[str, tuple[int, ...]] = {"DGX2 2 chassis": (0, 17), "NDv2 2 chassis": (), "NDv2 4 chassis": (0,)}

FACTORS = {"KB": 10**3, "MB": 10**6, "GB": GB}
SIZES = ("1KB", "4KB", "16KB", "64KB", "256KB", "1MB", "4MB", "16MB", "64MB", "256MB", "1GB")
PLACE = re.compile(r"(?:.*/)?(NDv2|DGX2)_output/([24])_chassis/(?:AllGather|AlltoAll)/(\w+)/(\w+)\.json")


def capacities(name: str) -> Ints:
    """The links of a network: entry [a, b] is the rate from node a to node b in units of 12.5 GB/s.

    Nodes have the numbers of TE-CCL. The rate of a link between chassis is 1. Raises ValueError for an unknown name.

    >>> capacities("NDv2 2 chassis").shape, capacities("NDv2 2 chassis")[0, :10].tolist()
    ((16, 16), [0, 4, 2, 2, 4, 0, 0, 0, 0, 1])
    """
    if name not in NETWORKS:
        raise ValueError(unknown("network", name, NETWORKS))
    return _dgx2() if name.startswith("DGX2") else _ndv2(int(name.split()[1]))


def latencies(name: str) -> NDArray[np.float64]:
    """Seconds until the first byte has crossed a link, for each pair of nodes; raises ValueError for an unknown name.

    >>> float(latencies("NDv2 2 chassis")[0, 9])
    1.3e-06
    """
    links = capacities(name)
    slow, fast = LATENCY[name.split()[0]]
    return np.where(links == 1, slow, fast)


def _ndv2(chassis: int) -> Ints:
    """Two chassis have a cable each way; more have a switch, node 0, that GPU 0 of each sends to and GPU 1 hears."""
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
    """Nodes 0 and 17 are the switches of 16 GPUs each; from the 2nd, 4th … GPU a cable leads to the other chassis."""
    links = np.zeros((34, 34), dtype=np.int64)
    for switch, other in ((0, 17), (17, 0)):
        links[switch, switch + 1 : switch + 17] = links[switch + 1 : switch + 17, switch] = 10
        cables = np.arange(1, 17, 2)
        links[switch + cables + 1, other + cables] = 1
    return links


def published(path: str) -> tuple[str, float] | None:
    """The network of a published file and the bytes of one GPU's chunk, or None if the path is none of theirs.

    A name such as 1GB is the size of all GPUs' chunks. The input of DGX2's Fast_Early_Stop divides it by 16, not by the
    32 GPUs.

    >>> published("DGX2_output/2_chassis/AllGather/Fast_Early_Stop/1GB.json")
    ('DGX2 2 chassis', 62500000.0)
    """
    found = PLACE.fullmatch(path)
    if not found or found[4] not in SIZES:
        return None
    machine, chassis, kind, size = found.groups()
    per_chassis = 16 if machine == "DGX2" and kind != "Fast_Early_Stop" else 8
    return f"{machine} {chassis} chassis", int(size[:-2]) * FACTORS[size[-2:]] / (int(chassis) * per_chassis)

"""What two ranks do to measure a link: a message there and back, and a burst of messages one way."""

from collections.abc import Callable

import torch
from torch import distributed as dist

from collectives.backends.p2p.communicator import communicator
from collectives.backends.p2p.measured import Pair
from collectives.backends.p2p.mesh import Mesh
from collectives.bench.settings import Row

BURST = 16


def run(settings: Row, report: Callable[[Row], None]) -> None:
    """Measure every size in turn, again and again; rank 0 reports the medians of the first and the last rank.

    ``one_way`` is half the time of a message there and back; ``each`` is by how much longer a burst takes for each
    message more. Seconds. Messages are those that our own back end sends.
    """
    torch.set_num_threads(1)
    sizes, repetitions = settings["bytes"], settings["repetitions"]
    joined, last = communicator(dist.group.WORLD).mesh(), dist.get_world_size() - 1  # type: ignore[arg-type]
    there, single, burst = (torch.zeros(repetitions, len(sizes), dtype=torch.float64) for _ in range(3))
    for i in range(-2, repetitions):  # two rounds to warm up
        for nth, nbytes in enumerate(sizes):
            dist.barrier()
            if joined.rank in (0, last):
                seconds = _there_and_back(joined, nbytes), _burst(joined, nbytes, 1), _burst(joined, nbytes, BURST)
                for times, measured in zip((there, single, burst), seconds, strict=True):
                    times[max(i, 0), nth] = measured
    each = (burst - single) / (BURST - 1)
    one_way = (there.median(dim=0).values / 2).tolist()
    columns = zip(sizes, one_way, each.median(dim=0).values.tolist(), strict=True)
    report({"rows": [{"bytes": nbytes, "one_way": trip, "each": more} for nbytes, trip, more in columns]})


def _there_and_back(joined: Mesh, nbytes: int) -> float:
    return _exchange(joined, nbytes, 1, nbytes)


def _burst(joined: Mesh, nbytes: int, count: int) -> float:
    """So many messages to the last rank, and a byte back when all are in."""
    return _exchange(joined, nbytes, count, 1)


def _exchange(joined: Mesh, nbytes: int, count: int, answer: int) -> float:
    """The first rank's seconds from its first message until the answer is in; the last rank's are of no use."""
    asks = joined.rank == 0
    with joined.begin():
        return Pair(joined, joined.size - 1 if asks else 0, asks).seconds(1, count, nbytes, answer)

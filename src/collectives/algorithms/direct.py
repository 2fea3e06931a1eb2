r"""Each rank that has data sends it directly to each rank that needs it: one step, and often one busy port.

        0            flat broadcast from rank 0: three messages leave one port
      / | \
     1  2  3

Simple, and the reason why everything else in this folder exists. The pairwise forms send the same
messages one at a time, so that no port is ever wanted twice.
"""

import numpy as np

from collectives.algorithms.bruck import all_to_all_by_digits
from collectives.algorithms.compose import scatter_and_gather
from collectives.core.schedule import Ints, Schedule, Step, column, reverse, then


def broadcast(p: int, root: int = 0) -> Schedule:
    """Send the whole buffer from the root to every other rank.

    Steps: 1 (p > 1). Messages: p-1, all of them the root's. Bytes the root sends: (p-1) n.

    >>> list(broadcast(4).steps())
    [Step(0->1:=0, 0->2:=0, 0->3:=0)]
    """
    return _at_once("broadcast", p, 1, Step(root, _others(p, root), 0), root)


def reduce(p: int, root: int = 0) -> Schedule:
    """Send every rank's whole buffer to the root, which adds them up: the flat broadcast in reverse.

    Steps: 1 (p > 1). Messages: p-1, all into the root. Bytes the root receives: (p-1) n.

    >>> list(reduce(4).steps())
    [Step(1->0:+0, 2->0:+0, 3->0:+0)]
    """
    return reverse(broadcast(p, root), "reduce", add=True)


def scatter(p: int, root: int = 0) -> Schedule:
    """Send every other rank its part from the root.

    Steps: 1 (p > 1). Messages: p-1. Bytes the root sends: (p-1)/p n, the least there is.

    >>> list(scatter(3).steps())
    [Step(0->1:=1, 0->2:=2)]
    """
    others = _others(p, root)
    return _at_once("scatter", p, p, Step(root, others, others), root)


def gather(p: int, root: int = 0) -> Schedule:
    """Send every rank's part to the root: the flat scatter in reverse, replacing.

    >>> list(gather(3).steps())
    [Step(1->0:=1, 2->0:=2)]
    """
    return reverse(scatter(p, root), "gather", add=False)


def all_gather(p: int) -> Schedule:
    """Send every rank's part to every other rank.

    Steps: 1 (p > 1). Messages: p (p-1). Bytes each rank sends: (p-1)/p n.

    >>> list(all_gather(3).steps())
    [Step(0->1:=0, 0->2:=0, 1->0:=1, 1->2:=1, 2->0:=2, 2->1:=2)]
    """
    src, dst = _pairs(p)
    return _at_once("all_gather", p, p, Step(src, dst, src))


def pairwise_reduce_scatter(p: int) -> Schedule:
    """Send one contribution in each step: at step t rank r sends it to the rank of that part, which adds it.

    An all-gather in reverse, in which each rank sends its part to the rank t+1 further on.

    Steps: p-1. Messages each rank sends: p-1. Bytes each rank sends: (p-1)/p n.

    >>> list(pairwise_reduce_scatter(3).steps())
    [Step(2->0:+0, 0->1:+1, 1->2:+2), Step(1->0:+0, 2->1:+1, 0->2:+2)]
    """
    rank = np.arange(p)
    paced = Schedule("all_gather", p, p, p - 1, lambda t: Step(rank, (rank + t + 1) % p, rank))
    return reverse(paced, "reduce_scatter", add=True)


def all_to_all(p: int) -> Schedule:
    """Send every rank its part from every other, all at once.

    Steps: 1 (p > 1). Messages: p (p-1). Bytes each rank sends: (p-1)/p n, where n is what one rank
    holds.

    >>> list(all_to_all(2).steps())
    [Step(0->1:=1, 1->0:=2)]
    """
    src, dst = _pairs(p)
    return _at_once("all_to_all", p, p * p, Step(src, dst, src * p + dst))


def pairwise_all_to_all(p: int) -> Schedule:
    """Send one part in each step: at step t rank r sends rank r+t+1 its part.

    It is Bruck's all-to-all with radix p: each distance is one digit. Steps: p-1. Messages each
    rank sends: p-1. Bytes each rank sends: (p-1)/p n.

    >>> list(pairwise_all_to_all(3).steps())
    [Step(0->1:=1, 1->2:=5, 2->0:=6), Step(0->2:=2, 1->0:=3, 2->1:=7)]
    """
    return all_to_all_by_digits(p, radix=p)


def one_shot(p: int) -> Schedule:
    """Send every rank's whole buffer to every other rank, which adds up what it receives in rank order.

    Steps: 1 (p > 1). Messages: p (p-1). Bytes in all: p (p-1) n, each rank sending (p-1) n.

    >>> len(one_shot(4).step(0))
    12
    """
    src, dst = _pairs(p)
    return _at_once("all_reduce", p, 1, Step(src, dst, 0, add=True))


def reduce_broadcast(p: int, root: int = 0) -> Schedule:
    """Reduce to the root, then broadcast from it, each in one step.

    Steps: 2 (p > 1). Messages: 2 (p-1). Bytes in all: 2 (p-1) n, every one of them through the
    root's port.

    >>> list(reduce_broadcast(3).steps())
    [Step(1->0:+0, 2->0:+0), Step(0->1:=0, 0->2:=0)]
    """
    return then(reduce(p, root), broadcast(p, root), "all_reduce")


def two_shot(p: int) -> Schedule:
    """Reduce and scatter in one step, then gather in one: every rank adds up its own part and sends the sum to all.

    Steps: 2 (p > 1). Messages each rank sends: 2 (p-1), all into different ports. Bytes each rank
    sends: 2 (p-1)/p n.

    >>> list(two_shot(2).steps())
    [Step(1->0:+0, 0->1:+1), Step(0->1:=0, 1->0:=1)]
    """
    return scatter_and_gather(all_gather(p))


def _at_once(collective: str, p: int, k: int, step: Step, root: int | None = None) -> Schedule:
    """Return a schedule of one step, which breaks the rule of one message a port.

    A single rank has nothing to do.
    """
    return Schedule(collective, p, k, min(1, p - 1), lambda _: step, root, one_port=False)


def _others(p: int, root: int) -> Ints:
    return np.flatnonzero(np.arange(p) != root)


def _pairs(p: int) -> tuple[Ints, Ints]:
    """Return all (sender, receiver), without a rank and itself."""
    src, dst = np.nonzero(~np.eye(p, dtype=np.bool_))
    return src, dst


def in_network(p: int, segments: int = 1) -> Schedule:
    r"""Send segment t to the switch at step t from every rank, while the switch sends the sum of segment t-1 to all.

    Steps: s + 1 for s segments (p > 1). Messages each rank sends: s. Bytes each rank sends: n, and
    it receives n, where ranks that add by themselves must send 2 (p-1)/p n. So the bus bandwidth,
    which counts 2 (p-1)/p n, may be almost twice the link's rate. Graham et al. 2016 describe
    SHARP.

        ranks     0    1    2    3
                   \    \  /    /       each link carries the buffer once up and once down,
        switch      ----- 4 -----       however many ranks there are

    Switches of NVLink (NVLS) and of InfiniBand (SHARP) do this. The switch is a participant that
    contributes nothing, needs no result, and has a port for each rank. Our back ends cannot control
    a switch: this schedule is proved, drawn and simulated, but not executed.

    >>> list(in_network(2).steps())
    [Step(0->2:+0, 1->2:+0), Step(2->0:=0, 2->1:=0)]
    """
    rank, switch = np.arange(p), np.full(p, p)
    src, dst = column(np.concatenate([rank, switch])), column(np.concatenate([switch, rank]))
    late, add = column(np.repeat([0, 1], p)), column(np.repeat([True, False], p), np.bool_)

    def make(t: int) -> Step:
        rows = slice(p if t == segments else 0, p if t == 0 else 2 * p)
        return Step(src[rows], dst[rows], t - late[rows], add=add[rows])

    return Schedule("all_reduce", p, segments, segments + 1 if p > 1 else 0, make, switches=1)

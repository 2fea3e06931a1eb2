r"""The switch adds: every rank sends to it, and it sends the sum to all of them.

    ranks     0    1    2    3
               \\    \\  /    /      each link carries the buffer once up and once down,
    switch      ----- 4 -----       however many ranks there are

Switches of NVLink (NVLS) and of InfiniBand (SHARP) do this. The switch is a participant that contributes nothing, needs
no result, and has a port for each rank.
"""

import numpy as np

from collectives.schedule import Schedule, Step, column


def all_reduce(p: int, segments: int = 1) -> Schedule:
    """Step t: every rank sends segment t to the switch, which adds; the switch sends the sum of segment t-1 to all.

    Steps: s + 1 for s segments (p > 1). Messages each rank sends: s. Bytes each rank sends: n, and it receives n, where
    ranks that add by themselves must send 2 (p-1)/p n. So the bus bandwidth, which counts 2 (p-1)/p n, may be almost
    twice the link's rate. Graham et al. 2016 describe SHARP.

    Our back ends cannot control a switch: this schedule is proved, drawn and simulated, but not executed.

    >>> list(all_reduce(2).steps())
    [Step(0->2:+0, 1->2:+0), Step(2->0:=0, 2->1:=0)]
    """
    rank, switch = np.arange(p), np.full(p, p)
    src, dst = column(np.concatenate([rank, switch])), column(np.concatenate([switch, rank]))
    late, add = column(np.repeat([0, 1], p)), column(np.repeat([True, False], p), np.bool_)

    def make(t: int) -> Step:
        rows = slice(p if t == segments else 0, p if t == 0 else 2 * p)
        return Step(src[rows], dst[rows], t - late[rows], add=add[rows])

    return Schedule("all_reduce", p, segments, segments + 1 if p > 1 else 0, make, switches=1)

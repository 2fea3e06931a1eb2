r"""Straight from whoever has it to whoever needs it: one step, and one port that everything squeezes through.

        0            flat broadcast from rank 0: three messages leave one port
      / | \
     1  2  3

Simple, and the reason why everything else in this folder exists.
"""

import numpy as np

from collectives.schedule import Schedule, Step, dual, then


def broadcast(p: int, root: int = 0) -> Schedule:
    """The root sends the whole buffer to every other rank.

    Steps: 1 (p > 1). Messages: p-1, all of them the root's. Bytes the root sends: (p-1) n.

    >>> list(broadcast(4).steps())
    [Step(0->1:=0, 0->2:=0, 0->3:=0)]
    """
    others = np.flatnonzero(np.arange(p) != root)
    return Schedule("broadcast", p, 1, min(1, p - 1), lambda _: Step(root, others, 0), root, one_port=False)


def reduce(p: int, root: int = 0) -> Schedule:
    """Every rank sends its whole buffer to the root, which adds them up: the dual of the flat broadcast.

    Steps: 1 (p > 1). Messages: p-1, all into the root. Bytes the root receives: (p-1) n.

    >>> list(reduce(4).steps())
    [Step(1->0:+0, 2->0:+0, 3->0:+0)]
    """
    return dual(broadcast(p, root), "reduce", add=True)


def exchange(p: int) -> Schedule:
    """Everyone sends everything to everyone, and each adds up what it got, in rank order.

    Steps: 1 (p > 1). Messages: p (p-1). Bytes in all: p (p-1) n, each rank sending (p-1) n.

    >>> len(exchange(4).step(0))
    12
    """
    src, dst = np.nonzero(~np.eye(p, dtype=np.bool_))
    return Schedule("all_reduce", p, 1, min(1, p - 1), lambda _: Step(src, dst, 0, add=True), root=None, one_port=False)


def root(p: int, root: int = 0) -> Schedule:
    """All to one, who adds up, and back to all: the single master.

    Steps: 2 (p > 1). Messages: 2 (p-1). Bytes in all: 2 (p-1) n, every one of them through the root's port.

    >>> list(root(3).steps())
    [Step(1->0:+0, 2->0:+0), Step(0->1:=0, 0->2:=0)]
    """
    return then(reduce(p, root), broadcast(p, root), "all_reduce")

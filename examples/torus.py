"""An algorithm of your own: all-reduce on a square torus, by rings along the rows and rings along the columns.

Rank 3 * row + column is a place of a 3 x 3 torus. A rank gathers the sums of a third of the buffer
along its row, then those of a third of that along its column, and the sums go back the same two
ways. From the repository's root::

    collectives verify all_reduce examples/torus.py:torus -p 9
    collectives show all_reduce examples/torus.py:torus -p 9
    collectives simulate all_reduce examples/torus.py:torus --machine torus:3x3
    collectives bench all_reduce examples/torus.py:torus ring -p 9
"""

from math import isqrt

import numpy as np

from collectives import Schedule, Step


def torus(p: int) -> Schedule:
    """Return the all-reduce of p ranks, a square number, in 4 * (sqrt(p) - 1) steps."""
    side, rank = isqrt(p), np.arange(p)
    if side * side != p:
        raise ValueError(f"ranks of a torus: got {p}, expected a square number")
    row, column = np.divmod(rank, side)
    right, down = row * side + (column + 1) % side, (row + 1) % side * side + column

    def make(t: int) -> Step:
        phase, turn = divmod(t, side - 1)
        add = phase < 2
        if phase in (0, 3):
            return Step(rank, right, (column - turn - add) % side * side, side, add)
        return Step(rank, down, column * side + (row - turn - add) % side, 1, add)

    return Schedule("all_reduce", p, k=p, nsteps=4 * (side - 1), make=make)

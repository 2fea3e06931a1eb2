"""All-reduce on a hypercube of eight ranks, each with three links that work at the same time.

The ranks are the corners of a cube; `CORNERS` says which rank is at which corner. The buffer has
three chunks. In each of three steps every rank exchanges all three chunks, each with another
neighbour, so every link is busy in every step. A chunk has to cross all three dimensions, in any
order; chunk c begins with dimension ``(c + FIRST) % 3``.
"""

from variant import CORNERS, FIRST

from collectives.core.schedule import Schedule, Step

DIMENSIONS = 3


def dimension(chunk, step):
    """The dimension, 0 to 2, that a chunk crosses in a step."""
    first = (chunk + FIRST) % DIMENSIONS
    # solution
    return (first + step) % DIMENSIONS
    # instead
    # return first + step if first + step < DIMENSIONS else 0
    # end


def schedule():
    """The schedule: eight ranks, three chunks, three steps."""

    def step(t):
        rows = []
        for c in range(DIMENSIONS):
            across = 1 << dimension(c, t)
            rows += [(corner, corner ^ across, c) for corner in range(8)]
        src, dst, chunk = zip(*rows, strict=True)
        return Step(
            [CORNERS[each] for each in src], [CORNERS[each] for each in dst], chunk, add=True
        )

    return Schedule("all_reduce", p=8, k=DIMENSIONS, nsteps=DIMENSIONS, make=step, one_port=False)

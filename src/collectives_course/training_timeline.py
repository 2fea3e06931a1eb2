"""A training run on one rank as text: when it computed which layer, and when the network carried which bucket."""

from collections.abc import Iterable

from collectives.simulator.overlap import BACKWARD, FORWARD, REDUCE, Span

WIDTH = 64


def timeline(spans: Iterable[Span], rank: int = 0, width: int = WIDTH) -> str:
    """Three lanes, on which a digit is the number of a layer or of a bucket, modulo ten, and a dot is nothing.

    >>> parts = [("forward", 0, 0, 2), ("backward", 0, 2, 6), ("all-reduce", 0, 6, 7)]
    >>> print(timeline([Span(0, *part) for part in parts], width=14))
    forward    0000..........
    backward   ....00000000..
    all-reduce ............00
               7000.00 ms
    """
    shown = [span for span in spans if span.rank == rank]
    begin, end = min(span.begin for span in shown), max(span.end for span in shown)
    column = (end - begin) / width or 1.0
    lanes = {what: ["."] * width for what in (FORWARD, BACKWARD, REDUCE)}
    for span in shown:
        first, last = ((at - begin) / column for at in (span.begin, span.end))
        for at in range(round(first), min(width, max(round(last), round(first) + 1))):
            lanes[span.what][at] = str(span.nth % 10)
    rows = [f"{what:<11}{''.join(lane)}" for what, lane in lanes.items()]
    return "\n".join([*rows, f"{'':<11}{(end - begin) * 1e3:.2f} ms"])

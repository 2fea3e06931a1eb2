"""When a port or a shared link is free: it remembers one occupied period and the gap before it."""

from collectives.compiled import compiled
from collectives.simulator.links import Floats

# The functions take all ports and an index: a row of an array as an argument costs as much as the function.
# What is remembered: free from GAP to BEGIN, occupied from BEGIN to END, free after that.
GAP, BEGIN, END = 0, 1, 2


@compiled
def free_at(ports: Floats, i: int, ready: float) -> float:
    """When something that is ready can begin at port ``i``: in the gap before the occupied period, or after it."""
    at = max(ready, float(ports[i, GAP]))
    return at if at < ports[i, BEGIN] else max(ready, float(ports[i, END]))


@compiled
def done_at(ports: Floats, i: int, begin: float, lasts: float) -> float:
    """When it is done: what the gap is too short for goes on after the occupied period."""
    end = begin + lasts
    rest = 0.0 if begin >= ports[i, BEGIN] or end <= ports[i, BEGIN] else float(ports[i, END] - ports[i, BEGIN])
    return end + rest


@compiled
def occupy(ports: Floats, i: int, begin: float, end: float) -> None:
    """Occupy the port from begin to end; of several gaps only the last is remembered."""
    if end <= ports[i, BEGIN]:
        ports[i, GAP] = end
    elif begin > ports[i, END]:
        ports[i, GAP], ports[i, BEGIN], ports[i, END] = ports[i, END], begin, end
    else:  # a gap is forgotten when work goes on after it without a pause
        ports[i, GAP] = ports[i, BEGIN] = min(ports[i, BEGIN], begin)
        ports[i, END] = max(ports[i, END], end)

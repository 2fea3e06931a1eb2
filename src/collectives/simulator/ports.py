"""When a port or a shared link is free: it remembers one occupied period and the gap before it."""

from collectives.compiled import compiled
from collectives.simulator.links import Floats

# What is remembered: free from GAP to BEGIN, occupied from BEGIN to END, free after that.
GAP, BEGIN, END = 0, 1, 2


@compiled
def free_at(port: Floats, ready: float) -> float:
    """When something that is ready can begin: in the gap before the occupied period, or after it."""
    at = max(ready, float(port[GAP]))
    return at if at < port[BEGIN] else max(ready, float(port[END]))


@compiled
def done_at(port: Floats, begin: float, lasts: float) -> float:
    """When it is done: what the gap is too short for goes on after the occupied period."""
    end = begin + lasts
    rest = 0.0 if begin >= port[BEGIN] or end <= port[BEGIN] else float(port[END] - port[BEGIN])
    return end + rest


@compiled
def occupy(port: Floats, begin: float, end: float) -> None:
    """Occupy the port from begin to end; of several gaps only the last is remembered."""
    if end <= port[BEGIN]:
        port[GAP] = end
    elif begin > port[END]:
        port[GAP], port[BEGIN], port[END] = port[END], begin, end
    else:  # a gap is forgotten when work goes on after it without a pause
        port[GAP] = port[BEGIN] = min(port[BEGIN], begin)
        port[END] = max(port[END], end)

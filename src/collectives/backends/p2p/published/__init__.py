"""Ranks of one host execute a schedule on buffers that all of them can read: no message, no copy per step."""

from collectives.backends.p2p.published.choice import choose, measure
from collectives.backends.p2p.published.executor import enter, execute, takes
from collectives.backends.p2p.published.segment import share

__all__ = ["choose", "enter", "execute", "measure", "share", "takes"]

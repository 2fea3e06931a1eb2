"""Ranks of one host execute a schedule on buffers that all of them can read: no message, no copy per step."""

import platform

from collectives.backends.p2p.loop.system import FUTEX
from collectives.backends.p2p.published.choice import choose, measure
from collectives.backends.p2p.published.executor import Ready, enter, execute, ready
from collectives.backends.p2p.published.segment import share

__all__ = ["Ready", "choose", "enter", "execute", "measure", "ready", "share"]

if not FUTEX:
    raise ImportError(f"no futex: got the processor {platform.machine()}, expected x86_64 or aarch64")

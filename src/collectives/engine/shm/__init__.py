"""Ranks of one host execute a schedule on buffers that all of them can read: no message, no copy per step."""

import platform

from collectives.engine.shm.executor import enter, execute, shared_call
from collectives.engine.shm.segment import share
from collectives.engine.system import FUTEX

__all__ = ["enter", "execute", "share", "shared_call"]

if not FUTEX:
    raise ImportError(f"no futex: got the processor {platform.machine()}, expected x86_64 or aarch64")

"""Where the tests find the repository, its scripts, what their ranks do, and a free port.

How long they wait.
"""

import importlib.util
import random
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parent.parent
TASKS = Path(__file__).parent / "ranks"

# Seconds for what comes in one on an idle machine: a busy one is slow, and not wrong. Nobody waits
# until they are over but where something hangs.
PATIENCE = 200.0


def script(name: str) -> ModuleType:
    """A script of `.ci` as a module of its own, which finds the other scripts beside it."""
    if str(ROOT / ".ci") not in sys.path:
        sys.path.append(str(ROOT / ".ci"))
    spec = importlib.util.spec_from_file_location(name, ROOT / ".ci" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def free_port() -> int:
    """A port that stays free until it is used: below those that the system gives to outgoing connections."""
    for port in random.sample(range(10_000, 30_000), 100):
        with suppress(OSError), socket.create_server(("", port)):
            return port
    raise RuntimeError("no free port among 100 from 10,000 to 30,000")


def comes_true(is_so: Callable[[], object]) -> bool:
    """Whether it is so, now or as long as we have patience."""
    until = time.monotonic() + PATIENCE
    while not (so := is_so()) and time.monotonic() < until:
        time.sleep(0.02)
    return bool(so)

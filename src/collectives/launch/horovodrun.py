"""Ranks started by Horovod's horovodrun, with gloo as what its ranks agree over.

They are on this machine, or on the hosts that the variable HOROVODRUN_HOSTS names as horovodrun's option -H does
(`n1:2,n2:2`), which it reaches by ssh.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from collectives.launch.command import launch_by
from collectives.launch.watch import Event

MISSING = "Horovod is not installed; `make env` builds it, where a C++ compiler, cmake and make are"


def launch(
    module: str,
    settings: Event,
    ranks: int,
    *,
    timeout: float,
    environment: Mapping[str, str],
    on_event: Callable[[Event], None],
) -> list[Event]:
    """`collectives.launch.launch`, by horovodrun. Raises ImportError where there is none."""
    hosts = os.environ.get("HOROVODRUN_HOSTS")
    return launch_by(
        [need(), "--gloo", "-np", str(ranks), *(["-H", hosts] if hosts else [])],
        module,
        settings,
        ranks,
        where="horovodrun",
        timeout=timeout,
        environment=environment,
        on_event=on_event,
    )


def need() -> str:
    """The horovodrun beside this Python; ImportError where Horovod is not installed."""
    horovodrun = Path(sys.executable).with_name("horovodrun")
    if importlib.util.find_spec("horovod") is None or not horovodrun.exists():
        raise ImportError(MISSING)
    return str(horovodrun)

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

MISSING = "Horovod is not installed; `make env` builds it where a compiler and cmake are"


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
    if importlib.util.find_spec("horovod") is None:
        raise ImportError(MISSING)
    hosts = os.environ.get("HOROVODRUN_HOSTS")
    horovodrun = str(Path(sys.executable).with_name("horovodrun"))
    return launch_by(
        [horovodrun, "--gloo", "-np", str(ranks), *(["-H", hosts] if hosts else [])],
        module,
        settings,
        ranks,
        where="horovodrun",
        timeout=timeout,
        environment=environment,
        on_event=on_event,
    )

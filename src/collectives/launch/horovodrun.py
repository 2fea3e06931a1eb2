"""Ranks started by Horovod's horovodrun, with gloo as what its ranks agree over."""

from __future__ import annotations

import importlib.util
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
    horovodrun = str(Path(sys.executable).with_name("horovodrun"))
    return launch_by(
        [horovodrun, "--gloo", "-np", str(ranks)],
        module,
        settings,
        ranks,
        where="horovodrun",
        timeout=timeout,
        environment=environment,
        on_event=on_event,
    )

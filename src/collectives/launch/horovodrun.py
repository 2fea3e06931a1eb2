"""Ranks started by Horovod's horovodrun, with gloo as what its ranks agree over."""

from __future__ import annotations

import importlib.util
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
    return launch_by(
        [need(), "--gloo", "-np", str(ranks)],
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

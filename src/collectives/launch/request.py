"""What a launcher is asked for, the same for all of them."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from collectives.processes.supervise import Event

__all__ = ["Event", "Request"]


class Request(NamedTuple):
    """Run ``module.run(settings, report)`` on ``ranks`` ranks, as `collectives.launch.launch` describes it."""

    module: str
    settings: Event
    ranks: int
    timeout: float  # seconds
    environment: Mapping[str, str]  # added to that of the ranks
    on_event: Callable[[Event], None]
    options: str = ""  # what follows the colon of ``where``

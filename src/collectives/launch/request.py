"""What a launcher is asked for, the same for all of them."""

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from collectives.processes import Event

__all__ = ["Event", "Request", "settings_file"]


class Request(NamedTuple):
    """Run ``module.run(settings, report)`` on ``ranks`` ranks, as `collectives.launch.launch` describes it."""

    module: str
    settings: Event
    ranks: int
    timeout: float  # seconds
    environment: Mapping[str, str]  # added to that of the ranks
    on_event: Callable[[Event], None]
    options: str = ""  # what follows the colon of ``where``


@contextmanager
def settings_file(settings: Event) -> Iterator[int]:
    """A file without a name that holds the settings, for the processes that inherit it; yields its number."""
    with tempfile.TemporaryFile() as file:
        file.write(json.dumps(settings).encode())
        file.flush()
        yield file.fileno()

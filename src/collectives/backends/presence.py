"""Which back ends are present on this machine: version and devices of each, or the reason why it is absent."""

from typing import NamedTuple

from collectives.backends import backend


class Presence(NamedTuple):
    """A back end on this machine; ``absent`` is the reason why it is absent, None where it is present."""

    backend: str
    version: str = ""
    devices: str = ""
    absent: str | None = None


def presence(name: str) -> Presence:
    """What this machine has of a back end."""
    one = backend(name)
    try:
        return Presence(name, one.version(), one.devices())
    except ImportError as error:
        return Presence(name, absent=str(error))


def need(name: str) -> None:
    """Raise ImportError, with the reason, where a back end is absent."""
    if absent := backend(name).available():
        raise ImportError(f"{name} is absent: {absent}")

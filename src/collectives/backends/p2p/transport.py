"""What carries the messages of a group's calls: a mesh for those in the foreground, another for the background's."""

from collections.abc import Sequence
from weakref import WeakKeyDictionary, finalize

from torch import distributed as dist

from collectives.backends.p2p.connection import Message
from collectives.backends.p2p.memory import MemoryMesh
from collectives.backends.p2p.mesh import Mesh
from collectives.launch import threads

Transport = Mesh | MemoryMesh

_transports: WeakKeyDictionary[dist.ProcessGroup, dict[bool, Transport]] = WeakKeyDictionary()


def transport(group: dist.ProcessGroup, background: bool = False) -> Transport:
    """The connections of a group, or its others for calls in the background; all of its ranks make them together.

    Ranks that are threads of one process exchange messages in memory, all others over TCP. The first call for a group
    exchanges addresses, so every rank makes it.
    """
    known = _transports.setdefault(group, {})
    found = known.get(background)
    if found is None:
        shared = threads.shared()
        found = known[background] = Mesh(group, background) if shared is None else MemoryMesh(group, shared)
        finalize(group, found.close).atexit = False  # a group that was destroyed leaves no connection behind
    return found


def finish(joined: Transport, messages: Sequence[Message]) -> None:
    """Wait until all of these have left, or arrived."""
    while messages := [message for message in messages if message.left]:
        joined.wait(messages)


def give_up(group: dist.ProcessGroup, background: bool) -> None:
    """Close these connections, if there are any. A call that uses them fails, here and on the other ranks."""
    found = _transports.get(group, {}).get(background)
    if found is not None:
        found.close()

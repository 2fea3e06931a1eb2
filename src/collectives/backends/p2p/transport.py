"""What carries the messages of a group's calls: a mesh for those in the foreground, another for the background's."""

from weakref import WeakKeyDictionary, finalize

from torch import distributed as dist

from collectives.backends.p2p import local
from collectives.backends.p2p.mesh import Mesh

_transports: WeakKeyDictionary[dist.ProcessGroup, dict[bool, Mesh]] = WeakKeyDictionary()


def transport(group: dist.ProcessGroup, background: bool = False) -> Mesh:
    """The connections of a group, or its others for calls in the background; all of its ranks make them together.

    The first call for a group exchanges addresses, so every rank makes it.
    """
    known = _transports.setdefault(group, {})
    found = known.get(background)
    if found is None:
        found = known[background] = Mesh(group, background)
        if found.shares:
            found.segment = local.published().share(group, found)
        finalize(group, found.close).atexit = False  # a group that was destroyed leaves no connection behind
    return found


def give_up(group: dist.ProcessGroup, background: bool) -> None:
    """Close these connections, if there are any. A call that uses them fails, here and on the other ranks."""
    found = _transports.get(group, {}).get(background)
    if found is not None:
        found.close()

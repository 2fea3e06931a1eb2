"""Addresses at which launchers and ranks reach each other."""

import os
import socket
import sys
from contextlib import suppress

import psutil  # type: ignore[import-untyped]

LOOPBACK = "127.0.0.1"
ELSEWHERE = ("192.0.2.1", 9)  # an address for documentation (RFC 5737): some other machine


def loopback_interface() -> str:
    """Return the system's name of the loopback interface."""
    return "lo0" if sys.platform == "darwin" else "lo"


def interface_address(name: str) -> str | None:
    """Return the first IPv4 address of a network interface of this machine; None if it has none.

    >>> interface_address(loopback_interface()), interface_address("none")
    ('127.0.0.1', None)
    """
    known = psutil.net_if_addrs().get(name, [])
    return next((str(each.address) for each in known if each.family == socket.AF_INET), None)


def named_interface() -> str:
    """Return the interface that GLOO_SOCKET_IFNAME names, the first if it names several.

    Empty if it names none.

    gloo spreads messages over several. Ranks and launchers of ours meet at one, the same in all of
    them.
    """
    return os.environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0]


def reachable(is_local: bool) -> str:
    """Return the one address on which a launcher listens.

    That is the address of `named_interface`, if this machine has it; else loopback's if all ranks
    are on this machine; else that of this machine's name; else that of the interface by which it
    reaches others.
    """
    of_interface = interface_address(named_interface())
    if of_interface:
        return of_interface
    if is_local:
        return LOOPBACK
    for candidate in (_named, _outgoing):
        with suppress(OSError):
            address = candidate()
            socket.create_server((address, 0)).close()
            if not address.startswith("127."):
                return address
    return LOOPBACK


def _named() -> str:
    return socket.gethostbyname(socket.gethostname())


def _outgoing() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(ELSEWHERE)  # sends nothing
        return str(probe.getsockname()[0])

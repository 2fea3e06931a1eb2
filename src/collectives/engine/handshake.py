"""The bytes that ranks exchange beside their data: addresses, the handshake of a connection, and headers of messages.

A connection begins with a `HANDSHAKE`. Each message on it begins with a `HEADER`, which carries the
call's `signature`, so ranks that call differently are told how.
"""

from __future__ import annotations

import secrets
import select
import socket
import struct
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import distributed as dist
from torch.distributed import distributed_c10d as c10d

from collectives.algorithms import ALGORITHMS
from collectives.engine.ops import OPS, name_of
from collectives.engine.reduce import DTYPES
from collectives.launch.address import interface_address, named_interface

BARRIER = 1 << 32  # the first step of a call's `barrier`, after those of any schedule
GONE = "it has gone"  # why a connection is lost that its peer has closed

# Collective, op, dtype, whether splits are given, root, segments, elements, the schedule's digest,
# and the algorithm's name (or its end), which an error shows.
_NAME_BYTES = 60
_SIGNATURE = struct.Struct(f"<BBBBiIQ16s{_NAME_BYTES}s")
_SHOWN_DIGITS = 12  # of a digest, in an error
_COLLECTIVES = tuple(dict.fromkeys(collective for collective, _ in ALGORITHMS))
_NONE = 255, -1  # op, root
_KEPT_SIGNATURES = 256
NO_CALL = bytes(_SIGNATURE.size)

HEADER = struct.Struct(f"<QQQ{_SIGNATURE.size}s")  # call, step, bytes, and the call's signature

_TOKEN_BYTES = 16
_PROTOCOL_BYTES = 4
# Counts the changes of what is defined here, so that ranks with two versions of it notice.
PROTOCOL = 3
# Host, port, token, whether it can share memory, `PROTOCOL`.
_ADDRESS = struct.Struct(f"<4sH{_TOKEN_BYTES}s?I")
# Token and rank. An abort adds the call that failed, its signature, and the cause: its kind (0 in a
# handshake that is none), the global rank that failed first, and the text, which zeros fill up.
HANDSHAKE = struct.Struct(f"<{_TOKEN_BYTES}sIQ{_SIGNATURE.size}sBI1000s")


class Message(NamedTuple):
    """A message to or from a peer, in a step of the call."""

    peer: int
    step: int
    is_sent: bool


class MessageError(RuntimeError):
    """A message that did not arrive or could not be sent: in which ``step``, to or from which ``peer``, and why."""

    def __init__(self, is_sent: bool, step: int, peer: int, why: object) -> None:
        verb = "sending to" if is_sent else "receiving from"
        super().__init__(f"in {name_step(step)}, {verb} rank {peer}: {why}")
        self.step, self.peer = step, peer


def name_step(step: int) -> str:
    """Name a step in an error.

    >>> name_step(3), name_step(BARRIER + 1)
    ('step 3', 'the agreement at its end')
    """
    return f"step {step}" if step < BARRIER else "the agreement at its end"


def unexpected(
    received: tuple[int, int, int, bytes], expected: tuple[int, int, int, bytes]
) -> OSError:
    """Return the error for a header (call, step, bytes, signature) that is not the next message's."""
    how = difference(received[3], expected[3])
    if how:
        return OSError(f"ranks must call alike, but its call differs from this rank's: {how}")
    came, asked = (
        f"call {call}, {name_step(step)}, {n} bytes" for call, step, n, _ in (received, expected)
    )
    return OSError(
        f"{came} came, not {asked}: do all ranks make the same calls, with the same sizes?"
    )


@lru_cache(maxsize=_KEPT_SIGNATURES)
def signature(
    collective: str,
    algorithm: str,
    op: dist.ReduceOp.RedOpType | None,
    dtype: torch.dtype,
    n: int | None,
    root: int | None,
    segments: int,
    schedule: bytes,
) -> bytes:
    """Pack a call of ``n`` elements, or of each rank's own splits (None), into bytes: equal for equal calls.

    ``schedule`` is the `collectives.core.schedule.digest` of what is executed. A name would not do: it
    may stand for one file here and for another file, or another version, there.
    """
    return _SIGNATURE.pack(
        _COLLECTIVES.index(collective),
        _NONE[0] if op is None else list(OPS).index(op),
        DTYPES.index(dtype),
        n is None,
        _NONE[1] if root is None else root,
        segments,
        n or 0,
        schedule,
        algorithm.encode()[-_NAME_BYTES:],
    )


def difference(theirs: bytes, ours: bytes) -> str:
    """Describe in what two signatures differ; an empty text if they do not.

    >>> sums, most = (
    ...     signature("all_reduce", "ring", op, torch.float32, n, None, 1, b"any")
    ...     for op, n in ((dist.ReduceOp.SUM, 8), (dist.ReduceOp.MAX, 9))
    ... )
    >>> difference(sums, most)
    'op SUM against MAX, elements 8 against 9'
    """
    their_call, our_call = _unpack(theirs), _unpack(ours)
    differing = [name for name in our_call if their_call[name] != our_call[name]]
    if "schedule" in differing:
        if _DECIDE_THE_SCHEDULE.intersection(differing):
            differing.remove("schedule")  # it follows from what else differs
        else:
            return (
                f"schedule {their_call['schedule']} against {our_call['schedule']}, although both are named "
                f"{our_call['algorithm']}: compare the file, and the version of collectives, on both ranks"
            )
    return ", ".join(f"{name} {their_call[name]} against {our_call[name]}" for name in differing)


_DECIDE_THE_SCHEDULE = {"collective", "algorithm", "root", "segments"}


def _unpack(packed: bytes) -> dict[str, str]:
    collective, op, dtype, splits, root, segments, n, schedule, algorithm = _SIGNATURE.unpack(
        packed
    )
    return {
        "collective": _name(_COLLECTIVES, collective),
        "algorithm": algorithm.rstrip(b"\0").decode(errors="replace"),
        "op": _name([name_of(each) for each in OPS], op),
        "dtype": _name([str(each).rpartition(".")[2] for each in DTYPES], dtype),
        "elements": "by split sizes" if splits else str(n),
        "root": str(root),
        "segments": str(segments),
        "schedule": schedule.hex()[:_SHOWN_DIGITS],
    }


def _name(names: list[str] | tuple[str, ...], code: int) -> str:
    return names[code] if code < len(names) else "none"


def all_gather_bytes(
    payload: bytes, group: dist.ProcessGroup | None = None, device: torch.device | None = None
) -> list[bytes]:
    """Return every rank's payload, in the order of the ranks; all ranks of the group call it.

    Payloads travel as tensors of bytes. ``torch.distributed.all_gather_object`` would unpickle what
    a peer sends, and so execute what the peer likes.
    """
    over = group or dist.group.WORLD
    if over is None:
        raise ValueError("no process group: call torch.distributed.init_process_group first")
    p = over.size()
    sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(p)]
    over.allgather([sizes], [torch.tensor([len(payload)], dtype=torch.int64, device=device)]).wait()
    longest = max(int(size) for size in sizes)
    if not longest:
        return [b""] * p
    padded = torch.tensor(list(payload.ljust(longest, b"\0")), dtype=torch.uint8, device=device)
    received = [torch.empty_like(padded) for _ in range(p)]
    over.allgather([received], [padded]).wait()
    return [bytes(each.tolist())[: int(size)] for each, size in zip(received, sizes, strict=True)]


def exchange_addresses(
    listener: socket.socket, group: dist.ProcessGroup, can_share: bool
) -> tuple[list[tuple[str, int]], bytes, bool]:
    """Return each rank's (host, port), the token of rank 0, which all know, and whether all can share memory.

    All ranks of the group call it. Raises RuntimeError, on every rank, where two have versions of
    this library that cannot talk to each other.
    """
    host, port = listener.getsockname()
    payload = _ADDRESS.pack(
        socket.inet_aton(host), port, secrets.token_bytes(_TOKEN_BYTES), can_share, PROTOCOL
    )
    told = all_gather_bytes(payload, group)
    for rank, each in zip(global_ranks(group), told, strict=True):
        if each[-_PROTOCOL_BYTES:] != payload[-_PROTOCOL_BYTES:]:
            raise RuntimeError(
                f"version of collectives: got another one on rank {rank} than on rank {dist.get_rank()}, expected one"
            )
    found = [_ADDRESS.unpack(each) for each in told]
    addresses = [(socket.inet_ntoa(host), port) for host, port, *_ in found]
    return addresses, found[0][2], all(each[3] for each in found)


def global_ranks(group: dist.ProcessGroup) -> list[int]:
    """Return the global rank of each rank of the group, as errors name it.

    Its own where torch does not know it.
    """
    return [*c10d._world.pg_group_ranks.get(group, range(group.size()))]


def own_address() -> str:
    """Return the IPv4 address at which others reach this rank: of the interface in GLOO_SOCKET_IFNAME, or of the host.

    Of several interfaces, with commas between them as torch takes them, it is the first.

    Raises OSError if the interface has no IPv4 address here, or the host's name has none.
    """
    name = named_interface()
    if not name:
        return socket.gethostbyname(socket.gethostname())
    address = interface_address(name)
    if address is None:
        raise OSError(f"GLOO_SOCKET_IFNAME names {name!r}, which has no IPv4 address here")
    return address


def configure(connection: socket.socket) -> None:
    """Make a socket non-blocking, and have it send small messages immediately."""
    connection.setblocking(False)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def peek(connection: socket.socket, size: int) -> bytes | None:
    """Return at most ``size`` bytes that nobody has read yet: None if there are none, b"" if the peer has closed."""
    connection.setblocking(False)
    try:
        return bytes(connection.recv(size, socket.MSG_PEEK))
    except BlockingIOError:
        return None
    except OSError:
        return b""


def send_to_all(addresses: Iterable[tuple[str, int]], payload: bytes, seconds: float) -> None:
    """Connect to all of these addresses together, send the payload, and close.

    After ``seconds`` skip the rest.
    """
    until, poll, sockets = time.monotonic() + seconds, select.poll(), dict[int, socket.socket]()
    with ExitStack() as stack:
        for address in addresses:
            connecting = stack.enter_context(socket.socket())
            configure(connecting)
            connecting.connect_ex(address)
            poll.register(connecting, select.POLLOUT)
            sockets[connecting.fileno()] = connecting
        while sockets and time.monotonic() < until:
            left = until - time.monotonic()
            for number, _ in poll.poll(max(0.0, left) * 1e3):
                poll.unregister(number)
                with suppress(OSError):  # nobody listens there
                    sockets.pop(number).sendall(payload)

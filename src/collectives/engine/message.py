"""Messages between ranks: their header, one that a rank waits for, and the error if it does not come."""

from __future__ import annotations

import struct
from typing import NamedTuple

from collectives.engine.signature import SIZE, difference

AGREEMENT = 1 << 32  # the first step of a call's `agreement`, behind those of any schedule
HEADER = struct.Struct(f"<QQQ{SIZE}s")  # call, step, bytes, and what the call is
GONE = "it has gone"  # why a connection is lost that its peer has closed


class Message(NamedTuple):
    """A message to or from a peer, in a step of the call."""

    peer: int
    step: int
    is_sent: bool


def named(step: int) -> str:
    """How an error names a step.

    >>> named(3), named(AGREEMENT + 1)
    ('step 3', 'the agreement at its end')
    """
    return f"step {step}" if step < AGREEMENT else "the agreement at its end"


class MessageError(RuntimeError):
    """A message that did not arrive or could not be sent: in which step, to or from whom, and why."""

    def __init__(self, is_sent: bool, step: int, peer: int, why: object) -> None:
        verb = "sending to" if is_sent else "receiving from"
        super().__init__(f"in {named(step)}, {verb} rank {peer}: {why}")


def need_expected(came: tuple[int, int, int, bytes], awaited: tuple[int, int, int, bytes]) -> None:
    """Raise OSError where a header (call, step, bytes, signature) is not that of the message that is next."""
    if came[3] != awaited[3]:
        raise OSError(
            f"ranks must call alike, but its call differs from this rank's: {difference(came[3], awaited[3])}"
        )
    if came != awaited:
        said = [f"call {call}, {named(step)}, {count} bytes" for call, step, count, _ in (came, awaited)]
        raise OSError(f"{said[0]} came, not {said[1]}: do all ranks make the same calls, with the same sizes?")

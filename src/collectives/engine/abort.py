"""The abort of a rank that fails: it tells others why, so that each reports the cause and not a closed socket.

An abort is a greeting with a reason, over a connection of its own: it comes at once, whatever was sent before. A rank
that hears of one fails, too, and passes the reason on.
"""

from collections.abc import Sequence

from collectives.engine.message import MessageError
from collectives.engine.signature import NO_CALL, difference

LATE = "not done within the timeout"  # why most ranks fail that wait in vain: another one may know more
PATIENCE = 1.0  # seconds for telling it, and for hearing it
MOMENT = 0.2  # seconds to wait for the abort of a peer that has closed a connection: it sends the abort first


class AbortError(OSError):
    """A peer has given up, for this reason: in which call, and what that was."""

    def __init__(self, peer: int, reason: str, call: int = 0, signature: bytes = NO_CALL) -> None:
        super().__init__(f"rank {peer} has given up, because {reason}")
        self.reason, self.call, self.signature = reason, call, signature


def describe(error: OSError, call: int, signature: bytes) -> str:
    """The error, and how the call in which that rank has given up differs from this rank's call of the same number."""
    if not isinstance(error, AbortError) or error.call != call or NO_CALL in (error.signature, signature):
        return str(error)
    how = difference(error.signature, signature)
    return f"{error}; its call differs from this rank's: {how}" if how else str(error)


def reason(rank: int, error: BaseException) -> str:
    """Why this rank fails: that of another if it has heard of one, otherwise its own."""
    if isinstance(error.__cause__, AbortError):
        return error.__cause__.reason
    return f"rank {rank} failed {error if isinstance(error, MessageError) else f'by {type(error).__name__}: {error}'}"


def no_sign(ranks: Sequence[int]) -> str:
    """What is known of ranks that have not waited as long as the others.

    >>> no_sign([1])
    'rank 1 gave no sign in time (late, stopped, or never called)'
    """
    named = f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
    return f"{named} gave no sign in time (late, stopped, or never called)"

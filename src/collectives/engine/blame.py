"""Decide what made a call fail, from what this rank has seen and what others have told it.

A rank tells others its `Cause` in an abort. The same failure looks different on each rank, so a
rank that reports an error goes down this table and takes the first row that fits:

    it knows                                               it reports
    ------------------------------------------------------------------------------------------
    a peer has sent a message of another call              how the two calls differ
    an abort of a rank whose call differs from its own     that abort, and how the calls differ
    a connection ended, and its peer's abort has come      that abort: the peer sends it first
    a connection ended without an abort                    that its peer has gone
    an abort of a rank that failed by itself               that abort
    its time is over, and some ranks gave no sign          these ranks
    its time is over, and an abort says no more            that abort, or the timeout

Ranks that wait for each other time out together, and each only knows that it has waited. So a rank
whose time is over tells the others first, and then listens for a moment: for an abort that knows
more, and for who is alive. A rank *gave a sign* if it has sent bytes that nobody has read yet, has
gone, or has told a cause of its own. Those that did not are late, stopped, or never called.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from collectives.cause import Cause, Kind
from collectives.engine.handshake import NO_CALL, MessageError, difference

WITHIN_TIMEOUT = "not done within the timeout"


class NumberedCall(NamedTuple):
    """A call by its number in the group, and its signature, by which ranks compare it."""

    number: int
    signature: bytes


class AbortError(OSError):
    """A peer has given up, for this cause, in this call."""

    def __init__(self, peer: int, cause: Cause, call: int = 0, signature: bytes = NO_CALL) -> None:
        super().__init__(f"rank {peer} has given up, because {cause.text}")
        self.cause, self.call = cause, NumberedCall(call, signature)


class WaitedError(TimeoutError):
    """The time of a call is over; ``silent`` are the global ranks that gave no sign, if they are known."""

    def __init__(self, seconds: float, silent: Sequence[int] = ()) -> None:
        who = f"{no_sign(silent)}: " if silent else ""
        super().__init__(f"{who}{WITHIN_TIMEOUT} of {seconds:g} s")
        self.silent = tuple(silent)


def no_sign(ranks: Sequence[int]) -> str:
    """Describe ranks that have not waited as long as the others.

    >>> no_sign([1])
    'rank 1 gave no sign in time (late, stopped, or never called)'
    """
    named = f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
    return f"{named} gave no sign in time (late, stopped, or never called)"


def kind_of(error: BaseException | None) -> Kind:
    """Return what is known of a message's failure.

    >>> kind_of(WaitedError(2.0)).name, kind_of(ConnectionResetError("it has gone")).name
    ('TIMED_OUT', 'LOST')
    """
    if isinstance(error, AbortError):
        return error.cause.kind
    return Kind.TIMED_OUT if isinstance(error, WaitedError) else Kind.LOST


def cause_of(rank: int, error: BaseException) -> Cause:
    """Return why this rank fails: the cause of another rank if it has received one, otherwise its own.

    ``rank`` is its global rank. Whom it waited for is its own knowledge in both cases.
    """
    why = error.__cause__
    if not isinstance(error, MessageError):
        return Cause(Kind.OWN, rank, f"rank {rank} failed by {type(error).__name__}: {error}")
    if isinstance(why, AbortError):
        return why.cause._replace(peer=error.peer, step=error.step)
    silent = why.silent if isinstance(why, WaitedError) else ()
    text = f"rank {rank} failed {error}"
    return Cause(kind_of(why), rank, text, error.peer, error.step, silent)


def how_calls_differ(error: OSError, own: NumberedCall) -> str:
    """Describe how the call of a rank that gave up differs from this rank's of the same number.

    Empty for other errors, and if no difference is known.
    """
    if not isinstance(error, AbortError) or error.call.number != own.number:
        return ""
    if NO_CALL in (error.call.signature, own.signature):
        return ""
    return difference(error.call.signature, own.signature)


def describe(error: OSError, own: NumberedCall) -> str:
    """Return what the caller is told of an error."""
    how = how_calls_differ(error, own)
    return f"{error}; its call differs from this rank's: {how}" if how else str(error)


def of_another_call(aborts: Iterable[AbortError], own: NumberedCall) -> AbortError | None:
    """Return the abort of a rank whose call of the same number differs from this rank's."""
    for abort in aborts:
        if how_calls_differ(abort, own):
            return abort
    return None


def most_telling(aborts: Collection[AbortError], own: NumberedCall) -> AbortError | None:
    """Return the abort to report, of this call or an earlier one; None if there is none.

    First one of another call, then one of a rank that failed by itself, then a timeout.
    """
    different = of_another_call(aborts, own)
    if different:
        return different
    heard = [abort for abort in aborts if abort.call.number <= own.number]
    return min(heard, key=lambda abort: abort.cause.kind == Kind.TIMED_OUT, default=None)


def is_only_late(error: OSError, own: NumberedCall) -> bool:
    """Return True if an error says no more than that somebody's time was over."""
    return kind_of(error) == Kind.TIMED_OUT and not how_calls_differ(error, own)


def gave_sign(name: int, lost: OSError | None, abort: AbortError | None) -> bool:
    """Return True if a peer has gone, or has told a cause of its own: one that comes late passes others' on."""
    return lost is not None or (abort is not None and abort.cause.rank == name)

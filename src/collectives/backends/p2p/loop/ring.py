"""Bytes from one process to another through shared memory, compiled: a ring that one writes and the other reads.

The writer copies bytes behind TAIL and then moves it; the reader copies those behind HEAD and then moves that. Both
count bytes since the beginning, and each word has one writer, so neither needs a lock.

**Order.** TAIL is stored with release and loaded with acquire: if the reader sees the new TAIL, it sees the bytes
before it. So is HEAD: if the writer sees the new HEAD, the reader has copied what was there, and its place may be
overwritten. On x86 these are plain moves, because stores become visible in their order, and loads are done in theirs
and before later stores. On ARM, which keeps neither, they are ``ldar`` (or ``ldapr``) and ``stlr``.

**Sleep.** A pair has a Unix socket beside its ring. A process that is about to sleep (1) sets its flag, (2) executes a
full fence, (3) looks at the other's word once more, and (4) sleeps in ``poll`` on the socket if there is nothing. The
other one (1) moves its word, (2) executes a full fence, (3) looks at the flag, and (4) clears it and sends a byte if it
is set. A store and a later load of another word may change places on x86 and on ARM; a full fence (``mfence``, ``dmb
ish``) forbids it. Of two processes that each store, fence and load, at least one sees the other's store: either the
sleeper finds bytes, or the other finds the flag.

The byte stays in the socket until it is read, so a process that does not sleep yet is woken at once. It is read before
the flag is set again. If the other clears the flag late, after it was set again, its byte comes after that, too, and
wakes the sleeper. A socket that is full holds bytes that wake it. The system closes the socket of a peer that ends,
which ends the sleep.

A writer sleeps until ROOM bytes are free, and is woken then: with fewer both would do nothing but wake each other.
"""

from typing import Any

from collectives.backends.p2p.loop.atomics import fence, load, store
from collectives.backends.p2p.loop.system import error_number, memmove, recv, send
from collectives.compiled import compiled

RING = 1 << 20  # bytes: both ends stay in a processor's cache, and sleep seldom
MASK, ROOM = RING - 1, RING // 2
PIECE = 1 << 16  # bytes after which the other end may go on, which copies while this one does
# Where words and bytes are; each word has cache lines of its own, two of them because processors fetch pairs.
TAIL, HEAD, READER_SLEEPS, WRITER_SLEEPS, DATA = 0, 128, 256, 384, 4096
NBYTES = DATA + RING
LEFT = 16  # bytes read from a doorbell at once
DONT_WAIT, NO_SIGNAL = 0x40, 0x4000
AGAIN, INTERRUPTED = 11, 4  # errno


@compiled
def readable(ring: int) -> int:
    """Bytes that can be read."""
    return int(load(ring + TAIL) - load(ring + HEAD))


@compiled
def has_room(ring: int) -> bool:
    """Whether a writer that sleeps goes on."""
    return bool(RING - readable(ring) >= ROOM)


@compiled
def write(ring: int, doorbell: int, parts: Any, count: int) -> int:
    """Copy ``count`` parts, pairs of address and size, into the ring while there is room; returns the bytes."""
    begin = told = tail = load(ring + TAIL)
    for part in range(count):
        at, end = parts[2 * part], parts[2 * part] + parts[2 * part + 1]
        while at < end:
            some = min(end - at, PIECE, RING - (tail & MASK), RING - (tail - load(ring + HEAD)))
            if some <= 0:
                break
            memmove(ring + DATA + (tail & MASK), at, some)
            at, tail = at + some, tail + some
            if tail - told >= PIECE:
                told = _tell_reader(ring, doorbell, tail)
        if at < end:
            break
    if tail != told:
        _tell_reader(ring, doorbell, tail)
    return int(tail - begin)


@compiled
def read(ring: int, doorbell: int, parts: Any, count: int) -> int:
    """Copy from the ring into ``count`` parts, as far as bytes have arrived; returns the bytes."""
    begin = told = head = load(ring + HEAD)
    for part in range(count):
        at, end = parts[2 * part], parts[2 * part] + parts[2 * part + 1]
        while at < end:
            some = min(end - at, PIECE, RING - (head & MASK), load(ring + TAIL) - head)
            if some <= 0:
                break
            memmove(at, ring + DATA + (head & MASK), some)
            at, head = at + some, head + some
            if head - told >= PIECE:
                told = _tell_writer(ring, doorbell, head)
        if at < end:
            break
    if head != told:
        _tell_writer(ring, doorbell, head)
    return int(head - begin)


@compiled
def peek(ring: int, into: int, size: int) -> int:
    """Copy what can be read, without taking it; how many bytes."""
    head, done = load(ring + HEAD), 0
    size = min(size, load(ring + TAIL) - head)
    while done < size:
        some = min(size - done, RING - ((head + done) & MASK))
        memmove(into + done, ring + DATA + ((head + done) & MASK), some)
        done += some
    return int(done)


@compiled
def _tell_reader(ring: int, doorbell: int, tail: int) -> int:
    store(ring + TAIL, tail)
    fence()
    if load(ring + READER_SLEEPS):
        _wake(ring + READER_SLEEPS, doorbell)
    return tail


@compiled
def _tell_writer(ring: int, doorbell: int, head: int) -> int:
    store(ring + HEAD, head)
    fence()
    if load(ring + WRITER_SLEEPS) and has_room(ring):
        _wake(ring + WRITER_SLEEPS, doorbell)
    return head


@compiled
def _wake(flag: int, doorbell: int) -> None:
    """Send a byte: any will do. A peer that has gone is noticed where this process waits for it."""
    store(flag, 0)
    send(doorbell, flag, 1, DONT_WAIT | NO_SIGNAL)


@compiled
def is_ready(ring: int, is_sent: bool) -> bool:
    """Whether the writer, or the reader, has something to do."""
    return has_room(ring) if is_sent else readable(ring) > 0


@compiled
def sleeps_soon(ring: int, is_sent: bool) -> None:
    """Ask to be woken; look with `is_ready` before sleeping."""
    store(ring + (WRITER_SLEEPS if is_sent else READER_SLEEPS), 1)
    fence()


@compiled
def has_gone(doorbell: int, buffer: Any) -> bool:
    """Whether the peer has closed its end; bytes that have woken this one are dropped, into 16 bytes of ours."""
    count = recv(doorbell, buffer.ctypes.data, LEFT, DONT_WAIT)
    return bool(count == 0 or (count < 0 and error_number() not in (AGAIN, INTERRUPTED)))

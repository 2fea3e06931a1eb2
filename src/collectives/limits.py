"""The largest accepted values, and why: beyond them memory or time would run out without a message."""

# A schedule has arrays with an entry for every rank; at this limit a simulation takes a minute.
MOST_RANKS = 1 << 20

# If every rank sends to every other in one step, the step has a row for each pair: 16 million rows, 600 MB.
MOST_RANKS_IN_PAIRS = 1 << 12

# A step has a row for every segment in flight, and a pipeline gains nothing from more.
MOST_SEGMENTS = 1 << 16

# Every rank proves and compiles its schedule before it starts, which takes about a millisecond a segment.
MOST_SEGMENTS_STARTED = 1 << 10

# The chunks' offsets are an array of 64-bit numbers: 1 GiB.
MOST_CHUNKS = 1 << 27

# `verify` keeps a 64-bit number for every rank and chunk, in three arrays: 3 GiB.
MOST_CELLS = 1 << 27

# A command that shows or counts whole schedules does so within seconds; a picture, within a minute.
MOST_RANKS_SHOWN = 1 << 10
MOST_MESSAGES_DRAWN = 1 << 14

# Bytes of one buffer: the bytes that all ranks send together stay below 2**63.
MOST_BYTES = 1 << 38

# Ranks that are processes; a rank that has imported torch has more private memory than this.
MOST_RANKS_STARTED = 1 << 14
BYTES_OF_A_RANK = 64 << 20

# The samples of one row are printed and kept.
MOST_REPETITIONS = 10_000

# A week. The longest time that every layer below can count is not much longer.
MOST_SECONDS = 7 * 86_400


def need_cells(p: int, k: int) -> None:
    """Raise ValueError if verifying a schedule of ``k`` chunks on ``p`` ranks would take more than 3 GiB.

    >>> need_cells(100_000, 100_000)
    Traceback (most recent call last):
        ...
    ValueError: verify keeps a number for every rank and chunk: got 100,000 ranks x 100,000 chunks, expected a product
    of at most 134,217,728
    """
    if p * k > MOST_CELLS:
        raise ValueError(
            f"verify keeps a number for every rank and chunk: got {p:,} ranks x {k:,} chunks, "
            f"expected a product of at most {MOST_CELLS:,}"
        )

"""Follow one rank's part of a published plan, compiled: wait for counts, add straight from peers' slots, count on.

A call goes in blocks: a block is a slice of every chunk, so that all slots together fit into the cache. Blocks use two
halves of the slots in turn. A rank's count has the block's number, which goes up for ever, above the bits of the step.

A rank that gives up on a peer swaps the peer's count for a negative one, which names itself. The peer fails when it
next counts on, however late, so of the two either both go on or none.
"""

import numpy as np

from collectives.compiled import compiled
from collectives.engine.kernels import combine, divide
from collectives.engine.slots import ENTERED, OWN, SLOTS, SOURCE, TARGET, SlotPlan
from collectives.engine.system import BILLION, fence, load, memmove, now, sched_yield, sleep, store, swap, wake
from collectives.schedule import Ints

# What `run` returns: the call is done; a peer lets it wait, or has given up on it; it makes another call; splits of two
# ranks do not fit.
FINISHED, PAUSE, DIFFERENT, UNEVEN = range(4)
PAUSE_AFTER = BILLION // 20  # nanoseconds
SLEEP_AFTER, SLEEP = BILLION // 1000, BILLION // 100  # nanoseconds of yielding before a rank sleeps, and of its sleep

HEADER = 4096  # bytes of each rank before the slots: its count, and of its last two calls the signatures and the splits
SIGNATURES, EACH_SIGNATURE = 128, 64
SPLITS, EACH_SPLITS = 512, 512  # 16 bytes for each of `transport.MAX_RANKS_PER_HOST`
SLEEPERS, EACH_SLEEPER = 2048, 16  # in the first rank's header: the count that a sleeping rank waits for, and whose
SLOT = 1 << 20  # bytes of all chunks' slices
REGION = 4 * SLOT  # of a rank: two slots for each of two blocks
STEP_BITS = 16

# Words of the state: the group's, then the call's, the last of them `reducing`'s kernels, then those of `run`.
RANKS, RANK, MEMORY, SPINS, OWN_AT, SOURCE_AT, TARGET_AT, AGREED = range(8)
LENGTH, BLOCKS, SIGNATURE, SPLIT, DIVISOR, KERNELS = range(8, 14)
SIZE = KERNELS + 4
EPOCH, BLOCK, ROW, AT, STEP, PEER, MARK = range(19, 26)  # the last: whose count is awaited, and how high
TIMES, WORDS = 26, 28  # two times for the system


@compiled
def run(plan: SlotPlan, chunks: Ints, state: Ints, checked: Ints) -> int:
    """Run to the end of the call; after PAUSE call it again. ``checked`` has the last block for which a peer was."""
    while state[BLOCK] < state[BLOCKS]:
        if state[ROW] < 0:
            status = _enter(plan, chunks, state, checked)
            if not status and state[SPLIT] and state[BLOCK] == 0:
                status = _need_splits(state, checked)
            if status:
                return status
            state[ROW], state[AT] = 0, 0
        while state[ROW] < len(plan.steps) - 1:
            status = _step(plan, chunks, state, checked)
            if status:
                return status
            state[ROW] += 1
        if state[AGREED] and state[BLOCK] == state[BLOCKS] - 1:
            status = _await_all(state, checked, (state[EPOCH] << STEP_BITS) + ENTERED)
            if status:
                return status
        status = _count_on(state, (state[EPOCH] + 1) << STEP_BITS)
        if status:
            return status
        state[EPOCH], state[BLOCK], state[ROW], state[AT] = state[EPOCH] + 1, state[BLOCK] + 1, -1, 0
    return FINISHED


@compiled
def _enter(plan: SlotPlan, chunks: Ints, state: Ints, checked: Ints) -> int:
    """Publish what this rank has, once no peer reads what it has published two blocks ago."""
    state[STEP] = 0
    status = _await_all(state, checked, (state[EPOCH] - 1) << STEP_BITS)
    if status:
        return status
    for row in range(len(plan.copies)):
        chunk, place = plan.copies[row]
        source = _place(state, chunks, state[RANK], SOURCE, chunk)
        into = _place(state, chunks, state[RANK], place, chunk)
        if place != TARGET:
            memmove(into, source, _count(chunks, state, chunk) * state[SIZE])
        elif state[BLOCK] == 0 and into != source:  # whole, because the others may need fewer blocks
            memmove(into, source, chunks[chunk, 0] * state[SIZE])
    memmove(_signature(state, state[RANK]), state[SIGNATURE], EACH_SIGNATURE)
    if state[SPLIT]:
        memmove(_splits(state, state[RANK]), state[SPLIT], 16 * state[RANKS])
    return _count_on(state, (state[EPOCH] << STEP_BITS) + ENTERED)


@compiled
def _need_splits(state: Ints, checked: Ints) -> int:
    """Wait for all ranks' splits: UNEVEN where one sends what another does not expect.

    The longest split sets the number of blocks. After PAUSE this rank publishes the same data once more.
    """
    status, ranks, longest = _await_all(state, checked, (state[EPOCH] << STEP_BITS) + ENTERED), state[RANKS], 0
    if status:
        return status
    for sender in range(ranks):
        for receiver in range(ranks):
            sent = load(_splits(state, sender) + 8 * receiver)
            if sent != load(_splits(state, receiver) + 8 * (ranks + sender)):
                state[PEER], state[MARK] = sender, receiver
                return UNEVEN
            longest = max(longest, 0 if sender == receiver else sent)
    state[BLOCKS] = max(1, (longest + state[LENGTH] - 1) // state[LENGTH])
    return FINISHED


@compiled
def _await_all(state: Ints, checked: Ints, mark: int) -> int:
    while state[AT] < state[RANKS]:
        status = _await(state, checked, state[AT], mark)
        if status:
            return status
        state[AT] += 1
    state[AT] = 0
    return FINISHED


@compiled
def _step(plan: SlotPlan, chunks: Ints, state: Ints, checked: Ints) -> int:
    """Wait for what a step reads and overwrites, do it, and say so."""
    step, wait, op = plan.steps[state[ROW]]
    state[STEP] = step
    last_wait, last_op = plan.steps[state[ROW] + 1, 1], plan.steps[state[ROW] + 1, 2]
    while wait + state[AT] < last_wait:
        peer, count = plan.waits[wait + state[AT]]
        status = _await(state, checked, peer, (state[EPOCH] << STEP_BITS) + count)
        if status:
            return status
        state[AT] += 1
    state[AT] = 0
    for each in range(op, last_op):
        _do(plan, chunks, state, each)
    return _count_on(state, (state[EPOCH] << STEP_BITS) + ENTERED + step + 1)


@compiled
def _await(state: Ints, checked: Ints, peer: int, mark: int) -> int:
    """Wait for a peer's count: FINISHED when it is there, PAUSE if that takes long, DIFFERENT if its call is."""
    header, yielding = _header(state, peer), 0
    state[PEER], state[MARK] = peer, mark
    while not _is_there(header, mark, state[SPINS]):
        time = now(state[TIMES:])
        yielding = yielding or time
        if time > yielding + PAUSE_AFTER:
            return PAUSE
        if time > yielding + SLEEP_AFTER:
            _sleep(state, peer, mark)
        else:
            sched_yield()
    if mark >> STEP_BITS == state[EPOCH] and checked[peer] != state[EPOCH]:
        if _differs(state, peer):
            return DIFFERENT
        checked[peer] = state[EPOCH]
    return FINISHED


@compiled
def _sleep(state: Ints, peer: int, mark: int) -> None:
    """Sleep until the peer's count is that high, or for a while."""
    sleeper, header = _sleeper(state, state[RANK]), _header(state, peer)
    store(sleeper + 8, peer)
    store(sleeper, mark)
    fence()  # the peer sees this rank asleep, or this rank sees the peer's count
    count = load(header)
    if count < mark:
        sleep(header, count, SLEEP, state[TIMES:])
    store(sleeper, 0)


@compiled
def _count_on(state: Ints, count: int) -> int:
    """Publish this rank's count, and wake those that sleep until it is so high; PAUSE if a peer has given up on it."""
    header = _header(state, state[RANK])
    before = load(header)
    if before < 0 or not swap(header, before, count):
        return PAUSE
    for rank in range(state[RANKS]):
        mark = load(_sleeper(state, rank))
        if mark and mark <= count and load(_sleeper(state, rank) + 8) == state[RANK]:
            wake(header)
    return FINISHED


@compiled
def give_up(state: Ints) -> bool:
    """Have the peer that this rank waits for fail when it next counts on; False if its count is high enough now."""
    header = _header(state, state[PEER])
    count = load(header)
    while 0 <= count < state[MARK] and not swap(header, count, -1 - state[RANK]):
        count = load(header)
    return bool(count < state[MARK])


@compiled
def _is_there(header: int, mark: int, spins: int) -> bool:
    """Whether a count is that high, now or after some more looks."""
    for _ in range(spins + 1):  # noqa: SIM110
        if load(header) >= mark:
            return True
    return False


@compiled
def _differs(state: Ints, peer: int) -> bool:
    theirs = _signature(state, peer)
    for at in range(0, EACH_SIGNATURE, 8):  # noqa: SIM110
        if load(theirs + at) != load(state[SIGNATURE] + at):
            return True
    return False


@compiled
def _do(plan: SlotPlan, chunks: Ints, state: Ints, op: int) -> None:
    """Combine the operands of one chunk, in their order, into its place."""
    chunk, place, is_result, is_complete, first = plan.ops[op]
    last, count = plan.ops[op + 1, 4], _count(chunks, state, chunk)
    if not count:
        return
    into, operands = _place(state, chunks, state[RANK], place, chunk), np.empty(last - first, np.int64)
    for nth in range(last - first):
        rank, where = plan.operands[first + nth]
        operands[nth] = _place(state, chunks, rank, where, chunk)
    combine(state[KERNELS:], into, operands, count)
    if is_complete:
        divide(state[KERNELS:], into, count, state[DIVISOR])
    if is_result:
        memmove(_place(state, chunks, state[RANK], TARGET, chunk), into, count * state[SIZE])


@compiled
def _count(chunks: Ints, state: Ints, chunk: int) -> int:
    """The elements of a chunk that belong to this block."""
    return int(min(max(chunks[chunk, 0] - state[BLOCK] * state[LENGTH], 0), state[LENGTH]))


@compiled
def _place(state: Ints, chunks: Ints, rank: int, place: int, chunk: int) -> int:
    """Where a rank's slice of a chunk is: in a slot, or in a tensor of this rank's."""
    if place == OWN or place > SLOTS:
        tensor = 0 if place == OWN else place - SLOTS
        return int(state[OWN_AT + tensor] + (chunks[chunk, 1 + tensor] + state[BLOCK] * state[LENGTH]) * state[SIZE])
    half = (state[EPOCH] & 1) * 2 + place - 1
    slots = state[MEMORY] + state[RANKS] * HEADER + rank * REGION
    return int(slots + half * SLOT + chunk * state[LENGTH] * state[SIZE])


@compiled
def _header(state: Ints, rank: int) -> int:
    return int(state[MEMORY] + rank * HEADER)


@compiled
def _sleeper(state: Ints, rank: int) -> int:
    return int(state[MEMORY] + SLEEPERS + rank * EACH_SLEEPER)


@compiled
def _signature(state: Ints, rank: int) -> int:
    return int(_header(state, rank) + SIGNATURES + (state[EPOCH] & 1) * EACH_SIGNATURE)


@compiled
def _splits(state: Ints, rank: int) -> int:
    """Where a rank publishes how many elements it sends to each, and expects from each."""
    return int(_header(state, rank) + SPLITS + (state[EPOCH] & 1) * EACH_SPLITS)


def new_state(memory: int, ranks: int, rank: int) -> Ints:
    """The state of a rank between calls."""
    state = np.zeros(WORDS, dtype=np.int64)
    state[RANKS], state[RANK], state[MEMORY], state[EPOCH] = ranks, rank, memory, 1
    return state

"""Follow one rank's part of a published plan, compiled: wait for counts, add straight from peers' slots, count on.

A call goes in blocks: a block is a slice of every chunk, so that all slots together fit into the cache. Blocks use two
halves of the slots in turn. A rank's count has the block's number, which goes up for ever, above the bits of the step.
"""

import numpy as np

from collectives.backends.p2p.loop.atomics import load, store
from collectives.backends.p2p.loop.reducing import combine, divide
from collectives.backends.p2p.loop.system import BILLION, memmove, now, ppoll, sched_yield
from collectives.backends.p2p.publish import ENTERED, TENSOR, Published
from collectives.compiled import compiled
from collectives.schedule import Ints

# What `run` returns: the call is done; a peer lets it wait; it makes another call; splits of two ranks do not fit.
FINISHED, PAUSE, DIFFERENT, UNEVEN = range(4)
PAUSE_AFTER = BILLION // 20  # nanoseconds
SLEEP_AFTER, SLEEP = BILLION // 1000, 50_000  # nanoseconds of yielding before a rank sleeps, and of its sleep

HEADER = 4096  # bytes of each rank before the slots: its count, and of its last two calls the signatures and the splits
SIGNATURES, EACH_SIGNATURE = 128, 64
SPLITS, EACH_SPLITS = 512, 512  # 16 bytes for each of `local.MOST_RANKS`
SLOT = 1 << 20  # bytes of all chunks' slices
REGION = 4 * SLOT  # of a rank: two slots for each of two blocks
STEP_BITS = 16

# Words of the state: the group's, then the call's, the last of them `reducing`'s kernels, then those of `run`.
RANKS, RANK, MEMORY, SPINS, TENSOR_AT, AGREED, LENGTH, BLOCKS, OWN_SIGNATURE, OWN_SPLITS, KERNELS = range(11)
SIZE = KERNELS + 4
EPOCH, BLOCK, ROW, AT, STEP, PEER, MARK = range(16, 23)  # the last: whose count is awaited, and how high
TIMES, WORDS = 23, 25  # two times for the system


@compiled
def run(plan: Published, edges: Ints, state: Ints, checked: Ints) -> int:
    """Run to the end of the call; after PAUSE call it again. ``checked`` has the last block for which a peer was."""
    while state[BLOCK] < state[BLOCKS]:
        if state[ROW] < 0:
            status = _enter(plan, edges, state, checked)
            if not status and state[OWN_SPLITS] and state[BLOCK] == 0:
                status = _need_splits(state, checked)
            if status:
                return status
            state[ROW], state[AT] = 0, 0
        while state[ROW] < len(plan.steps) - 1:
            status = _step(plan, edges, state, checked)
            if status:
                return status
            state[ROW] += 1
        if state[AGREED] and state[BLOCK] == state[BLOCKS] - 1:
            status = _await_all(state, checked, (state[EPOCH] << STEP_BITS) + ENTERED)
            if status:
                return status
        store(_header(state, state[RANK]), (state[EPOCH] + 1) << STEP_BITS)
        state[EPOCH], state[BLOCK], state[ROW], state[AT] = state[EPOCH] + 1, state[BLOCK] + 1, -1, 0
    return FINISHED


@compiled
def _enter(plan: Published, edges: Ints, state: Ints, checked: Ints) -> int:
    """Publish what this rank has, once no peer reads what it has published two blocks ago."""
    state[STEP] = 0
    status = _await_all(state, checked, (state[EPOCH] - 1) << STEP_BITS)
    if status:
        return status
    for row in range(len(plan.copies)):
        chunk, slot = plan.copies[row]
        begin, end = _slice(edges, state, chunk)
        memmove(
            _place(state, state[RANK], slot, chunk, begin),
            state[TENSOR_AT] + begin * state[SIZE],
            (end - begin) * state[SIZE],
        )
    memmove(_signature(state, state[RANK]), state[OWN_SIGNATURE], EACH_SIGNATURE)
    if state[OWN_SPLITS]:
        memmove(_splits(state, state[RANK]), state[OWN_SPLITS], 16 * state[RANKS])
    store(_header(state, state[RANK]), (state[EPOCH] << STEP_BITS) + ENTERED)
    return FINISHED


@compiled
def _need_splits(state: Ints, checked: Ints) -> int:
    """Wait for all ranks' splits: UNEVEN where one sends what another does not expect. The longest sets the blocks.

    If it is entered again after PAUSE, this rank publishes the same data once more.
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
def _step(plan: Published, edges: Ints, state: Ints, checked: Ints) -> int:
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
        _do(plan, edges, state, each)
    store(_header(state, state[RANK]), (state[EPOCH] << STEP_BITS) + ENTERED + step + 1)
    return FINISHED


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
            state[TIMES], state[TIMES + 1] = 0, SLEEP
            ppoll(0, 0, state[TIMES:].ctypes.data, 0)
        else:
            sched_yield()
    if mark >> STEP_BITS == state[EPOCH] and checked[peer] != state[EPOCH]:
        if _differs(state, peer):
            return DIFFERENT
        checked[peer] = state[EPOCH]
    return FINISHED


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
        if load(theirs + at) != load(state[OWN_SIGNATURE] + at):
            return True
    return False


@compiled
def _do(plan: Published, edges: Ints, state: Ints, op: int) -> None:
    """Combine the operands of one chunk, in their order, into its slot or the tensor."""
    chunk, slot, is_wanted, is_complete, first = plan.ops[op]
    last = plan.ops[op + 1, 4]
    begin, end = _slice(edges, state, chunk)
    if begin == end:
        return
    into, count = _place(state, state[RANK], slot, chunk, begin), end - begin
    operands = np.empty(last - first, np.int64)
    for nth in range(last - first):
        rank, its_slot = plan.operands[first + nth]
        operands[nth] = _place(state, rank, its_slot, chunk, begin)
    combine(state[KERNELS:], into, operands, count)
    if is_complete:
        divide(state[KERNELS:], into, count, state[RANKS])
    if is_wanted:
        memmove(_place(state, state[RANK], TENSOR, chunk, begin), into, count * state[SIZE])


@compiled
def _slice(edges: Ints, state: Ints, chunk: int) -> tuple[int, int]:
    """The elements of a chunk that belong to this block."""
    begin = min(edges[chunk] + state[BLOCK] * state[LENGTH], edges[chunk + 1])
    return begin, min(begin + state[LENGTH], edges[chunk + 1])


@compiled
def _place(state: Ints, rank: int, slot: int, chunk: int, begin: int) -> int:
    """Where a rank's slice of a chunk is: in a slot, or from the element ``begin`` of this rank's tensor on."""
    if slot == TENSOR:
        return int(state[TENSOR_AT] + begin * state[SIZE])
    half = (state[EPOCH] & 1) * 2 + slot - 1
    slots = state[MEMORY] + state[RANKS] * HEADER + rank * REGION
    return int(slots + half * SLOT + chunk * state[LENGTH] * state[SIZE])


@compiled
def _header(state: Ints, rank: int) -> int:
    return int(state[MEMORY] + rank * HEADER)


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

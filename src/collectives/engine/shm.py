"""Execute one rank's part of a schedule in shared memory: wait for counts, add straight from peers' slots."""

# The protocol. The ranks of a host share one segment. Each has a header there, which begins with its
# count, and a region of slots. Only the owner writes them, but for the one case below; peers read. A
# peer's data are never sent: whoever needs them waits until the peer's count says that they are
# there, and adds them straight from the peer's slot into its own slot or tensor.
#
# A count is (number of the block << STEP_BITS) + progress, and goes up for ever. Progress is 0
# before the rank has entered the block, ENTERED when its own data are in its slots, and
# ENTERED + t + 1 when it has done step t. A block is a slice of every chunk, so that all slots of a
# block fit into the cache; a call has one block or more, and the next call goes on counting. A wait
# is always for a count that a peer reaches: `slots` has compiled for which one, per step.
#
#     rank 0: enter    count = e.1 ... await rank 1 >= e.1, add its slot ... count = e.2 ... (e+1).0
#     rank 1: enter    count = e.1 ... await rank 0 >= e.1, add its slot ... count = e.2 ... (e+1).0
#
# Memory is used again without an answer. Blocks with even and odd numbers have slots of their own,
# and a rank enters block e only when all counts are at (e - 1).0 or higher: then everybody has left
# block e - 2, and reads nothing in the half that this block overwrites. Within a block, a slot is
# written only when the counts of its former readers say that they have read it.
#
# A rank that waits looks at the count, then yields its core, and after a millisecond sleeps on the
# count as a futex. It first writes into the segment whose count it sleeps for, and how high; a rank
# that counts on reads these notes after it has stored its count, and wakes whom it finds. A memory
# fence on each side makes sure that one of the two sees the other.
#
# Do all make the same call? Before its count enters a block a rank writes the digest of its call
# into its header, and a peer compares it the first time that it needs that rank in the block. A
# different one ends the call, and the signatures beside the digests say how the calls differ.
#
# When a peer does not come, `run` returns PAUSE, and Python looks for an abort, a lost peer or the
# deadline. If this rank gives up, it swaps the peer's count for a negative one, which names itself.
# The peer counts on by a swap, too, so it notices, however late: of the two either both go on, or
# none. To ranks of other hosts, and with a reason, an abort travels by TCP (`engine.mesh`).
#
# Why it cannot deadlock: a step waits only for counts of earlier steps of this block, of all ranks'
# entry, or of an earlier block. So the rank with the lowest count waits for nothing that has not
# been reached, and goes on.

from __future__ import annotations

import ctypes
import hashlib
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numba import carray  # type: ignore[attr-defined]
from torch import distributed as dist

from collectives.compiled import compiled
from collectives.core.schedule import Ints
from collectives.engine.buffers import address, scratch_of, shared_tensors
from collectives.engine.handshake import NO_CALL, Message, unexpected
from collectives.engine.kernels import KERNELS, Kernels, combine, divide, kernels
from collectives.engine.mesh import Mesh
from collectives.engine.segment import HEADER, REGION, SLOT, Segment, share
from collectives.engine.slots import ENTERED, OWN, SLOTS, SOURCE, TARGET, SlotPlan, nothing
from collectives.engine.system import (
    BILLION,
    CORE_WORDS,
    fence,
    leave_core,
    load,
    memmove,
    now,
    one_at_a_time,
    pointer,
    sched_getcpu,
    sched_yield,
    sleep,
    store,
    swap,
    wake,
)
from collectives.engine.tcp.execute import Tcp
from collectives.engine.transport import MANY_SPINS, MAX_RANKS_PER_HOST

if TYPE_CHECKING:
    from collectives.engine.call import Call, CompiledCall

# What `run` returns: the call is done; a peer lets it wait, or has given up on it; it makes another
# call; splits of two ranks do not fit.
FINISHED, PAUSE, DIFFERENT, UNEVEN = range(4)
PAUSE_AFTER = BILLION // 20  # nanoseconds
SPINS_ALONE = 200  # looks at a peer's count between two yields, where each rank has a core
# Nanoseconds of yielding before a rank sleeps, and of its sleep.
SLEEP_AFTER, SLEEP = BILLION // 1000, BILLION // 100

# Nanoseconds before a rank leaves a core again that it shares with the peer for which it waits. Ranks
# share one if there are fewer cores than ranks, so then they stay.
MOVE_AGAIN = BILLION // 1000

# Bytes of a rank's header: its count and, beside it, digests of its last two calls, and the core on
# which it has last run; then, of the two calls, the signatures and the splits.
DIGESTS, EACH_DIGEST, CORE = 8, 8, 24
SIGNATURES, EACH_SIGNATURE = 128, 128
SPLITS, EACH_SPLITS = 512, 512  # 16 bytes for each of `MAX_RANKS_PER_HOST`
# In the first rank's header: the count that a sleeping rank waits for, and whose.
SLEEPERS, EACH_SLEEPER = 2048, 16
STEP_BITS = 16
LINE = 64  # bytes of a line of the cache
NOTHING, NO_EDGES = nothing(), np.zeros(2, dtype=np.int64)
Splits = tuple[tuple[int, ...], ...]


def _record(names: str, *others: Any) -> Any:
    return np.dtype([(name, np.int64) for name in names.split()] + list(others))


# One rank's part of a schedule: rows of `slots.SlotPlan`. A row of steps ends where the next one
# begins.
STEPS, WAITS, OPERANDS = _record("step wait op"), _record("rank count"), _record("rank place")
OPS = _record("chunk place is_result is_complete operand")
COPIES, CHUNKS = _record("chunk place"), _record("length own source target")
# A call: that part for tensors of one size, op and dtype. Addresses and lengths of the rows;
# elements of a chunk in a block; blocks; the digest of the call and the address of its signature,
# that of the splits, or 0; by what an average divides; and what `kernels` returns.
CALL = _record(
    "steps step_count waits ops operands copies copy_count chunks length blocks digest signature splits divisor",
    ("kernels", KERNELS),
)
# A rank in its host's memory. Between calls: how many ranks, which one, where the memory is, how
# often it looks at a count before it yields, and the number of the next block. Of a call: the block
# and the row that it is at, and the rank that it is at in a row; for whose count it waits in which
# step, and how high. Of each peer the highest count that was seen, and the last block whose digest
# was compared.
RANK = _record(
    "ranks rank memory spins moved epoch block blocks row at step peer mark own source target",
    ("times", np.int64, 2),
    ("seen", np.int64, MAX_RANKS_PER_HOST),
    ("compared", np.int64, MAX_RANKS_PER_HOST),
    ("addresses", np.int64, MAX_RANKS_PER_HOST),
    ("cores", np.int64, CORE_WORDS),
)


@compiled
def run(
    rank_at: int, call_at: int, own: int, source: int, target: int, has_barrier: int, goes_on: int
) -> int:
    """Run to the end of the call; after PAUSE call it again with ``goes_on``.

    ``rank_at`` and ``call_at`` are addresses of a RANK and a CALL; the others those of memory of
    the rank's own, of its data, and of where its result goes. With ``has_barrier`` no rank returns
    before all have made the call.
    """
    me, call = carray(pointer(rank_at), 1, RANK)[0], carray(pointer(call_at), 1, CALL)[0]
    if not goes_on:
        me.block, me.blocks, me.row, me.at = 0, call.blocks, -1, 0
        me.own, me.source, me.target = own, source, target
    while me.block < me.blocks:
        if me.row < 0:
            status = _enter(me, call)
            if not status and call.splits and me.block == 0:
                status = _check_splits(me, call)
            if status:
                return status
            me.row, me.at = 0, 0
        while me.row < call.step_count:
            status = _step(me, call)
            if status:
                return status
            me.row += 1
        if has_barrier and me.block == me.blocks - 1:
            status = _await_all(me, call, (me.epoch << STEP_BITS) + ENTERED)
            if status:
                return status
        # Which says that the last step is done, too.
        status = _count_on(me, (me.epoch + 1) << STEP_BITS)
        if status:
            return status
        me.epoch, me.block, me.row, me.at = me.epoch + 1, me.block + 1, -1, 0
    return FINISHED


@compiled
def _enter(me: Any, call: Any) -> int:
    """Publish what this rank has, once no peer reads what it has published two blocks ago."""
    me.step = 0
    status = _await_all(me, call, (me.epoch - 1) << STEP_BITS)
    if status:
        return status
    copies, chunks = carray(pointer(call.copies), call.copy_count, COPIES), call.chunks
    for row in range(call.copy_count):
        chunk, place = copies[row].chunk, copies[row].place
        source, into = (
            _place(me, call, me.rank, SOURCE, chunk),
            _place(me, call, me.rank, place, chunk),
        )
        if place != TARGET:
            memmove(into, source, _count(me, call, chunk) * call.kernels.size)
        elif me.block == 0 and into != source:  # whole, because the others may need fewer blocks
            memmove(into, source, _chunk(chunks, chunk).length * call.kernels.size)
    digest = _digest(me, me.rank)
    if load(digest) != call.digest:
        store(digest, call.digest)
        memmove(_signature(me, me.rank), call.signature, EACH_SIGNATURE)
    if call.splits:
        memmove(_splits(me, me.rank), call.splits, 16 * me.ranks)
    return _count_on(me, (me.epoch << STEP_BITS) + ENTERED)


@compiled
def _check_splits(me: Any, call: Any) -> int:
    """Wait for all ranks' splits: UNEVEN where one sends what another does not expect.

    The longest split sets the number of blocks. After PAUSE this rank publishes the same data once
    more.
    """
    status, longest = _await_all(me, call, (me.epoch << STEP_BITS) + ENTERED), 0
    if status:
        return status
    for sender in range(me.ranks):
        for receiver in range(me.ranks):
            sent = load(_splits(me, sender) + 8 * receiver)
            if sent != load(_splits(me, receiver) + 8 * (me.ranks + sender)):
                me.peer, me.mark = sender, receiver
                return UNEVEN
            longest = max(longest, 0 if sender == receiver else sent)
    me.blocks = max(1, (longest + call.length - 1) // call.length)
    return FINISHED


@compiled
def _await_all(me: Any, call: Any, mark: int) -> int:
    while me.at < me.ranks:
        status = _await(me, call, me.at, mark)
        if status:
            return status
        me.at += 1
    me.at = 0
    return FINISHED


@compiled
def _step(me: Any, call: Any) -> int:
    """Wait for what a step reads and overwrites, do it, and say so."""
    steps = carray(pointer(call.steps), call.step_count + 1, STEPS)
    step, following = steps[me.row], steps[me.row + 1]
    me.step = step.step
    waits = carray(pointer(call.waits), following.wait, WAITS)
    while step.wait + me.at < following.wait:
        wait = waits[step.wait + me.at]
        status = _await(me, call, wait.rank, (me.epoch << STEP_BITS) + wait.count)
        if status:
            return status
        me.at += 1
    me.at = 0
    for op in range(step.op, following.op):
        _do(me, call, op)
    if me.row == call.step_count - 1:
        return FINISHED  # `run` counts on
    return _count_on(me, (me.epoch << STEP_BITS) + ENTERED + step.step + 1)


@compiled
def _await(me: Any, call: Any, peer: int, mark: int) -> int:
    """Wait for a peer's count: FINISHED when it is there, PAUSE if that takes long, DIFFERENT if its call is."""
    if me.seen[peer] < mark:
        header, yielding = _header(me, peer), 0
        me.peer, me.mark = peer, mark
        while not _is_there(me, header, peer, mark):
            time = now(me.times)
            yielding = yielding or time
            if time > yielding + PAUSE_AFTER:
                return PAUSE
            # Before the first yield, because on one core the peer is done when this rank runs again.
            if me.rank > peer and me.spins and time > me.moved + MOVE_AGAIN:
                _leave_core_of(me, peer, time)
            if time > yielding + SLEEP_AFTER:
                _sleep(me, peer, mark)
            else:
                sched_yield()
    if mark >> STEP_BITS == me.epoch and me.compared[peer] != me.epoch:
        if load(_digest(me, peer)) != call.digest:
            me.peer, me.mark = peer, mark
            return DIFFERENT
        me.compared[peer] = me.epoch
    return FINISHED


@compiled
def _leave_core_of(me: Any, peer: int, time: int) -> None:
    """Move to another core if the peer has last run on this rank's: the system may leave them there, side by side."""
    if load(_header(me, peer) + CORE) == sched_getcpu():
        me.moved = time
        leave_core(me.cores)


@compiled
def _sleep(me: Any, peer: int, mark: int) -> None:
    """Sleep until the peer's count is that high, or for a while."""
    sleeper, header = _sleeper(me, me.rank), _header(me, peer)
    store(sleeper + 8, peer)
    store(sleeper, mark)
    fence()  # the peer sees this rank asleep, or this rank sees the peer's count
    count = load(header)
    if count < mark:
        sleep(header, count, SLEEP, me.times)
    store(sleeper, 0)


@compiled
def _count_on(me: Any, count: int) -> int:
    """Publish this rank's count, and wake those that sleep until it is so high.

    PAUSE if a peer has given up on it.
    """
    header = _header(me, me.rank)
    before = load(header)
    store(header + CORE, sched_getcpu())
    if before < 0 or not swap(header, before, count):
        return PAUSE
    for rank in range(me.ranks):
        mark = load(_sleeper(me, rank))
        if mark and mark <= count and load(_sleeper(me, rank) + 8) == me.rank:
            wake(header)
    return FINISHED


@compiled
def give_up(rank_at: int) -> bool:
    """Have the peer that this rank waits for fail when it next counts on.

    False if its count is high enough now.
    """
    me = carray(pointer(rank_at), 1, RANK)[0]
    header = _header(me, me.peer)
    count = load(header)
    while 0 <= count < me.mark and not swap(header, count, -1 - me.rank):
        count = load(header)
    return bool(count < me.mark)


@compiled
def _is_there(me: Any, header: int, peer: int, mark: int) -> bool:
    """Return True if a count is that high, now or after some more looks."""
    for _ in range(me.spins + 1):
        count = load(header)
        if count >= mark:
            me.seen[peer] = count
            return True
    return False


@compiled
def _do(me: Any, call: Any, number: int) -> None:
    """Combine the operands of one chunk, in their order, into its place."""
    ops = carray(pointer(call.ops), number + 2, OPS)
    op, last = ops[number], ops[number + 1].operand
    count = _count(me, call, op.chunk)
    if not count:
        return
    operands, into = (
        carray(pointer(call.operands), last, OPERANDS),
        _place(me, call, me.rank, op.place, op.chunk),
    )
    for nth in range(op.operand, last):
        me.addresses[nth - op.operand] = _place(
            me, call, operands[nth].rank, operands[nth].place, op.chunk
        )
    combine(call.kernels, into, me.addresses[: last - op.operand], count)
    if op.is_complete:
        divide(call.kernels, into, count, call.divisor)
    if op.is_result:
        memmove(_place(me, call, me.rank, TARGET, op.chunk), into, count * call.kernels.size)


@compiled
def _chunk(chunks: int, chunk: int) -> Any:
    return carray(pointer(chunks), chunk + 1, CHUNKS)[chunk]


@compiled
def _count(me: Any, call: Any, chunk: int) -> int:
    """Return the elements of a chunk that belong to this block."""
    return int(min(max(_chunk(call.chunks, chunk).length - me.block * call.length, 0), call.length))


@compiled
def _place(me: Any, call: Any, rank: int, place: int, chunk: int) -> int:
    """Return the address of a rank's slice of a chunk: in a slot, or in a tensor of this rank's."""
    if OWN < place <= SLOTS:
        half = (me.epoch & 1) * 2 + place - 1
        slots = me.memory + me.ranks * HEADER + rank * REGION
        return int(slots + half * SLOT + chunk * call.length * call.kernels.size)
    row = _chunk(call.chunks, chunk)
    tensor, first = me.own, row.own
    if place == SOURCE:
        tensor, first = me.source, row.source
    elif place == TARGET:
        tensor, first = me.target, row.target
    return int(tensor + (first + me.block * call.length) * call.kernels.size)


@compiled
def _header(me: Any, rank: int) -> int:
    return int(me.memory + rank * HEADER)


@compiled
def _sleeper(me: Any, rank: int) -> int:
    return int(me.memory + SLEEPERS + rank * EACH_SLEEPER)


@compiled
def _digest(me: Any, rank: int) -> int:
    return int(_header(me, rank) + DIGESTS + (me.epoch & 1) * EACH_DIGEST)


@compiled
def _signature(me: Any, rank: int) -> int:
    return int(_header(me, rank) + SIGNATURES + (me.epoch & 1) * EACH_SIGNATURE)


@compiled
def _splits(me: Any, rank: int) -> int:
    """Return the address where a rank publishes how many elements it sends to each, and expects from each."""
    return int(_header(me, rank) + SPLITS + (me.epoch & 1) * EACH_SPLITS)


def new_rank(memory: int, ranks: int, rank: int) -> Any:
    """Return the record of a rank between calls, as an array of one."""
    made = np.zeros(1, RANK)
    made["ranks"], made["rank"], made["memory"], made["epoch"] = ranks, rank, memory, 1
    return made


def slice_length(plan: SlotPlan, itemsize: int) -> int:
    """Return the elements of each chunk in a block: whole lines of the cache if there is room.

    0 if there is none.
    """
    most = SLOT // len(plan.held) // itemsize
    return (
        most - most % (LINE // itemsize)
        if most * itemsize >= LINE and LINE % itemsize == 0
        else most
    )


class SharedCall(NamedTuple):
    """One rank's part of a schedule, for calls of one size, op and dtype."""

    at: int  # address of ``call``
    elements: tuple[int, int]  # of the source and of the target
    # Whether anything is kept in memory of the rank's own, beside its source and target.
    needs_own: bool
    call: Any  # the record that compiled code reads
    rows: tuple[Any, ...]  # the arrays whose addresses the record has


def shared_call(
    plan: SlotPlan,
    edges: Ints,
    longest: int,
    op: Any,
    dtype: Any,
    signature: bytes,
    ranks: int,
    splits: Splits = (),
) -> SharedCall | None:
    """Return the plan for tensors with chunks between ``edges``, the longest on any rank of ``longest`` elements.

    An average is over ``ranks``. With ``splits`` (elements to each rank, and from each) the ranks
    exchange their splits to find the longest. Returns None if a slot is too small for one element
    of each chunk.
    """
    found = kernels(op, dtype)
    length = slice_length(plan, found.size)
    if not length:
        return None
    return _shared_call(
        plan, edges, length, max(1, -(-longest // length)), found, signature, ranks, splits
    )


def _shared_call(
    plan: SlotPlan,
    edges: Ints,
    length: int,
    blocks: int,
    found: Kernels,
    signature: bytes,
    ranks: int = 1,
    splits: Splits = (),
) -> SharedCall:
    call, chunks = np.zeros(1, CALL), plan.layout(edges)
    rows: dict[str, Any] = {
        name: getattr(plan, name) for name in ("steps", "waits", "ops", "operands", "copies")
    }
    rows["chunks"] = chunks
    rows["signature"] = np.frombuffer(signature.ljust(EACH_SIGNATURE, b"\0"), dtype=np.uint8)
    if splits:
        rows["splits"] = np.array(splits, dtype=np.int64)
    for name, each in rows.items():
        call[name] = each.ctypes.data
    call["step_count"], call["copy_count"] = len(plan.steps) - 1, len(plan.copies)
    call["length"], call["blocks"], call["divisor"], call["kernels"] = length, blocks, ranks, found
    call["digest"] = _hash(signature)
    source, target = (chunks[:, 0] @ plan.held).tolist()
    return SharedCall(
        call.ctypes.data, (source, target), plan.needs_own, call, tuple(rows.values())
    )


def _hash(signature: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(signature, digest_size=8).digest(), "little", signed=True)


def _no_data(signature: bytes) -> SharedCall:
    return _shared_call(NOTHING, NO_EDGES, 1, 1, Kernels(0, 0, 0, 0, 0, 1), signature)


class SharedMemory(Tcp):
    """Carry the calls of ranks that share memory: a `transport.Transport`.

    What goes to other hosts, and what no slot takes, goes by messages. Connections also say why a
    peer does not come.
    """

    def __init__(self, mesh: Mesh, segment: Segment) -> None:
        super().__init__(mesh)
        self.ranks_per_host, self._segment = mesh.ranks_per_host, segment
        self._rank = new_rank(segment.address, mesh.ranks_per_host, mesh.rank % mesh.ranks_per_host)
        self._rank["spins"] = SPINS_ALONE if mesh.spins == MANY_SPINS else 0
        self._at = self._rank.ctypes.data
        # Of the last call that sent messages: what it publishes.
        self._entered: dict[bytes, SharedCall] = {}

    @classmethod
    def connect(cls, group: dist.ProcessGroup, is_background: bool) -> Tcp:
        """Exchange addresses with all ranks of the group, and share memory with those of this host if all can."""
        mesh = Mesh(group, is_background)
        segment = share(group, mesh) if mesh.ranks_per_host > 1 else None
        return cls(mesh, segment) if segment else Tcp(mesh)

    def run(self, made: CompiledCall, call: Call) -> None:
        """Perform a call, in stages if there are any; `Tcp.run` says what it raises."""
        if not made.stages:
            super().run(made, call)
        elif made.is_shared and call.output is not None:
            at = call.output.data_ptr()
            self._run_stages(made, call, (at, at, at), None)
        else:
            own, source, target = shared_tensors(call, made, self.mesh.rank)
            scratch = scratch_of(made, call.any_tensor())
            self._run_stages(made, call, (address(own), address(source), address(target)), scratch)

    def _run_stages(
        self, made: CompiledCall, call: Call, at: tuple[int, int, int], scratch: torch.Tensor | None
    ) -> None:
        """Execute the stages one after the other.

        ``at`` are the addresses of own memory, source and target.
        """
        mesh = self.mesh
        mesh.begin(made.signature)
        try:  # a `with` would take 0.2 us of the 2.3 of a prepared call
            for stage in made.stages:
                if isinstance(stage, SharedCall):
                    self.execute_shared(stage, *at, made.waits_for_all)
                else:
                    self.execute(stage, call.flat_output(), scratch, call.op)
            if len(made.stages) > 1:
                mesh.check_aborts()
        except BaseException as error:
            mesh.fail(error)
            raise
        finally:
            mesh.end()

    def execute_shared(
        self, made: SharedCall, own: int, source: int, target: int, has_barrier: bool
    ) -> None:
        """Execute a stage within a call on this rank's tensors, by their addresses.

        `run` says what they are.

        Raises MessageError where a peer fails or is late.
        """
        status = run(self._at, made.at, own, source, target, has_barrier, False)
        while status != FINISHED:
            self._explain(status)
            status = run(self._at, made.at, own, source, target, has_barrier, True)

    def enter(self) -> None:
        """Publish what this rank calls, and no data: a call that sends messages.

        Peers that call differently notice.
        """
        signature = self.mesh.signature
        if signature not in self._entered:
            self._entered = {signature: _no_data(signature)}
        self.execute_shared(self._entered[signature], 0, 0, 0, has_barrier=False)

    def _explain(self, status: int) -> None:
        """Raise MessageError if the peer that this rank waits for calls differently, has gone, given up, or is late."""
        me, mesh = self._rank[0], self.mesh
        number, step, mark = int(me["peer"]), int(me["step"]), int(me["mark"])
        peer, parity = mesh.on_host[number], int(me["epoch"] & 1)
        if status == DIFFERENT:
            theirs = ctypes.string_at(
                self._header(number) + SIGNATURES + parity * EACH_SIGNATURE, len(NO_CALL)
            )
            came, asked = ((mesh.call, step, 0, each) for each in (theirs, mesh.signature))
            raise mesh.explained(Message(peer, step, is_sent=False), unexpected(came, asked))
        if status == UNEVEN:
            ends = f"rank {mesh.names[peer]} and rank {mesh.names[mark]}"
            sent, expected = (
                self._word(rank, SPLITS + parity * EACH_SPLITS + 8 * at)
                for rank, at in ((number, mark), (mark, self.ranks_per_host + number))
            )
            why = OSError(f"splits of {ends} do not fit: got {sent} elements, expected {expected}")
            raise mesh.explained(
                Message(mark if peer == mesh.rank else peer, step, is_sent=False), why
            )
        own = self._word(int(me["rank"]))
        if own < 0:
            peer = mesh.on_host[-1 - own]
            mesh.lose(peer, False, ConnectionAbortedError("it has given up on this rank"))
            mesh.check_peers([Message(peer, step, is_sent=False)])
        mesh.check_memory(
            peer, step, lambda: self._word(number) >= mark, partial(give_up, self._at)
        )

    def _header(self, rank: int) -> int:
        return self._segment.address + rank * HEADER

    def _word(self, rank: int, at: int = 0) -> int:
        """Return a word of a rank's header; the first is its count."""
        return ctypes.c_int64.from_address(self._header(rank) + at).value


def _compile() -> None:
    """Run a call of one rank that does nothing, one process at a time: the others find its code in the cache."""
    with one_at_a_time(__file__):
        memory = np.zeros(HEADER + REGION, dtype=np.uint8)
        rank, made = new_rank(memory.ctypes.data, 1, 0), _no_data(NO_CALL)
        run(rank.ctypes.data, made.at, 0, 0, 0, False, False)
        give_up(rank.ctypes.data)


_compile()

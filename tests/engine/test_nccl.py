"""The NCCL path without a GPU: every algorithm over a fake NCCL that refuses what the real one does not promise."""

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import groupby
from pathlib import Path

import pytest
import torch
from fake_nccl import DEVICE, Group, NcclError, Tensor, World, install
from torch import distributed as dist
from torch._C._distributed_c10d import FakeProcessGroup

import collectives
from collectives.algorithms import executable
from collectives.engine import buffers, nccl
from collectives.engine.compile import PIECE
from collectives.engine.program import Recv, Send, Span
from ranks import gpu_cases
from ranks.gpu_cases import CheckedCall, begin, cases
from sweep import each

pytestmark = pytest.mark.integration  # twenty seconds of ranks as threads


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], World]:
    def made(p: int) -> World:
        one = World(p)
        install(monkeypatch, one)
        return one

    return made


@pytest.mark.parametrize("p", each([1, 2, 3, 5, 8, 13], few=(1, 2, 3, 5)))
def test_every_algorithm(world: Callable[[int], World], p: int) -> None:
    """All variants on up to 4 ranks; on more ranks, each algorithm in one of them."""
    w = world(p)
    group = w.group()
    assert {(case.collective, case.algorithm) for case in some(p)} == set(executable())
    for case in some(p):
        done = []
        for rank in range(p):
            with w.on(rank):
                done.append(begin(case, p, rank, group[rank], DEVICE))
        w.run()
        for rank, (output, expected) in enumerate(done):
            assert expected is None or torch.equal(output.memory, expected), (
                f"{case} on rank {rank} of {p}"
            )


def some(p: int) -> Iterator[CheckedCall]:
    for _, every in groupby(cases(p), key=lambda case: (case.collective, case.algorithm)):
        variants = list(every)
        yield from variants if p <= 4 else [variants[p % len(variants)]]


def test_public_functions_in_a_subgroup(world: Callable[[int], World]) -> None:
    """Ranks of the group are not those of the world.

    Roots are the world's, and pieces are of different sizes.
    """
    w = world(7)
    ranks = [1, 3, 4, 6]
    group, p = w.group(ranks), len(ranks)
    pieces = [
        [torch.arange(2 * r + 3 * s) + 100.0 * r + 10 * s for s in range(p)] for r in range(p)
    ]  # from r to s
    results = []
    for r, rank in enumerate(ranks):
        with w.on(rank):
            results.append(
                call_all(group[r], r, on_gpu(pieces[r]), [len(pieces[s][r]) for s in range(p)])
            )
    w.run()
    x = [torch.arange(11) + 100.0 * r for r in range(p)]
    for r, found in enumerate(results):
        assert tolists(found["all_reduce"]) == [(sum(x) / p).tolist()]
        assert tolists(found["broadcast"]) == [x[2].tolist()]
        assert tolists(found["reduce"]) == [(sum(x) if r == 3 else x[r]).tolist()]
        assert tolists(found["scatter"]) == [(x[2] + 1000 * r).tolist()]
        assert tolists(found["gather"]) == ([one.tolist() for one in x] if r == 3 else [])
        assert tolists(found["all_gather"]) == [one.tolist() for one in x]
        assert tolists(found["reduce_scatter"]) == [(sum(x) + p * 1000 * r).tolist()]
        assert tolists(found["all_to_all"]) == [pieces[s][r].tolist() for s in range(p)]
    assert {stream.rank for stream in w.streams if stream.seen} == set(ranks)


def call_all(
    group: Group, r: int, pieces: list[Tensor], sizes: list[int]
) -> dict[str, list[Tensor]]:
    """Each public function once, with rank 4 of the world as the source and rank 6 as the destination."""
    p = len(sizes)

    def x(more: float = 0.0) -> Tensor:
        return on_gpu([torch.arange(11) + 100.0 * r + more])[0]

    def room(*each: int) -> list[Tensor]:
        return [torch.empty(n, device=DEVICE) for n in each]

    total, source, one, part, share = x(), x(), x(), *room(11, 11)
    collected, everyone, received = room(*[11] * p) if r == 3 else [], room(*[11] * p), room(*sizes)
    collectives.all_reduce(total, dist.ReduceOp.AVG, group, algorithm="two_tree", segments=2)
    collectives.broadcast(source, 4, group, algorithm="chain", segments=3)
    collectives.reduce(one, 6, group=group, algorithm="rabenseifner")
    given = [x(1000 * s) for s in range(p)]
    collectives.scatter(part, given if r == 2 else None, 4, group, algorithm="binomial")
    collectives.gather(x(), collected or None, 6, group, algorithm="binomial")
    collectives.all_gather(everyone, x(), group, algorithm="bruck")
    collectives.reduce_scatter(share, given, group=group, algorithm="ring")
    collectives.all_to_all(received, pieces, group, algorithm="pairwise")
    names = (
        "all_reduce",
        "broadcast",
        "reduce",
        "scatter",
        "gather",
        "all_gather",
        "reduce_scatter",
        "all_to_all",
    )
    results = ([total], [source], [one], [part], collected, everyone, [share], received)
    return dict(zip(names, results, strict=True))


def on_gpu(tensors: list[torch.Tensor]) -> list[Tensor]:
    return [Tensor(one.clone()) for one in tensors]


def tolists(tensors: list[Tensor]) -> list[list[float]]:
    return [one.memory.tolist() for one in tensors]


@pytest.mark.parametrize("check", [gpu_cases.to_itself, gpu_cases.on_two_streams])
def test_what_one_gpu_can_check(world: Callable[[int], World], check: Callable[..., list]) -> None:
    w = world(1)
    with w.on(0):
        found = check(w.group()[0], DEVICE, n=8)
    assert all(output.memory.tolist() == expected.tolist() for output, expected in found)


def test_a_group_has_one_first_collective_however_many_there_are(
    world: Callable[[int], World],
) -> None:
    """Rank 0 is in many groups, rank 1 in one: what rank 0 does elsewhere must not make it call there again."""
    w = world(2)
    shared, alone = w.group(), [w.group([0])[0] for _ in range(100)]
    calls = [[shared[0], *alone, shared[0]], [shared[1], shared[1]]]
    for rank, groups in enumerate(calls):
        with w.on(rank):
            for group in groups:
                collectives.all_reduce(on_gpu([torch.ones(3)])[0], group=group, algorithm="ring")
    w.run()
    assert len({each.calls for each in (*shared, *alone)}) == 1


def test_a_destroyed_group_is_forgotten(world: Callable[[int], World]) -> None:
    w = world(1)
    (group,) = w.group()
    with w.on(0):
        collectives.all_reduce(on_gpu([torch.ones(3)])[0], group=group, algorithm="ring")
    w.run()
    left = weakref.ref(group)
    del group
    gc.collect()
    assert left() is None


def test_a_long_reduction_is_one_kernel(world: Callable[[int], World]) -> None:
    w = world(2)
    group, n = w.group(), 3 * PIECE + 1
    for rank in range(2):
        with w.on(rank):
            collectives.all_reduce(
                torch.zeros(n, device=DEVICE), group=group[rank], algorithm="recursive_doubling"
            )
    w.run()
    assert w.kernels["aten.add.out"] == 2


def test_batches_through_a_wrapper_that_offers_none(world: Callable[[int], World]) -> None:
    """Leave the batches to torch, as under TORCH_DISTRIBUTED_DEBUG=DETAIL.

    The sums are the same.
    """
    w = world(3)
    group, tensors = w.group(), on_gpu([torch.full((7,), float(rank)) for rank in range(3)])
    for rank in range(3):
        group[rank].supports_coalescing = False
        with w.on(rank):
            collectives.all_reduce(tensors[rank], group=group[rank], algorithm="ring")
    w.run()
    assert tolists(tensors) == [[3.0] * 7] * 3


def test_torch_has_the_calls_of_a_batch() -> None:
    """Exchange one batch through a process group of torch itself, whose backend moves nothing."""
    group, backend = (
        dist.ProcessGroup(dist.HashStore(), 0, 2),
        FakeProcessGroup._create_internal(0, 2),
    )
    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.CUSTOM, backend)
    tensor = torch.ones(4)
    batch = Send(0, 1, 0, (Span(0, 2),)), Recv(1, 1, 0, Span(2, 4))
    nccl._in_one_group(batch, [tensor[:2], tensor[2:]], group)


def test_complex_numbers(world: Callable[[int], World]) -> None:
    w = world(2)
    group, tensors = w.group(), on_gpu([torch.full((5,), 1j + rank) for rank in range(2)])
    for rank in range(2):
        with w.on(rank):
            collectives.broadcast(tensors[rank], 1, group[rank], algorithm="chain", segments=2)
    w.run()
    assert tolists(tensors) == [[1 + 1j] * 5] * 2


def test_a_message_that_fails_names_rank_and_step(
    world: Callable[[int], World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Close the batch of a message that fails: else NCCL would take all later calls for more of it."""
    w = world(2)
    group = w.group()

    def fails(*_: object) -> None:
        raise RuntimeError("NCCL communicator was aborted on rank 0.")

    monkeypatch.setattr(Group, "send", fails)
    with (
        w.on(0),
        pytest.raises(
            RuntimeError,
            match=r"all_reduce by ring failed on rank 0, in step 0, sending to rank 1: NCCL .* aborted",
        ),
    ):
        collectives.all_reduce(on_gpu([torch.ones(4)])[0], group=group[0], algorithm="ring")
    assert group[0].batch is None


# What follows breaks a rule on purpose: the fake has to name it.


def all_reduce_on(w: World, algorithm: str, sizes: list[int]) -> None:
    group = w.group()
    for rank, n in enumerate(sizes):
        with w.on(rank):
            collectives.all_reduce(
                torch.zeros(n, device=DEVICE), group=group[rank], algorithm=algorithm
            )
    w.run()


def test_a_first_batch_without_a_collective(world: Callable[[int], World]) -> None:
    w = world(2)
    with (
        w.on(0),
        pytest.raises(NcclError, match="rank 0, batch 0 is the first operation on its group"),
    ):
        w.group()[0]._start_coalescing(DEVICE)


def test_a_collective_that_a_rank_does_not_call(world: Callable[[int], World]) -> None:
    w = world(3)
    group = w.group()
    for rank in (0, 2):
        with w.on(rank):
            dist.all_reduce(torch.zeros(1, device=DEVICE), group=group[rank])
    with pytest.raises(
        NcclError, match=r"deadlock: rank 0, collective 0 waits for ranks \[1\]; rank 2"
    ):
        w.run()


def test_receives_that_come_a_batch_after_the_sends(
    world: Callable[[int], World], monkeypatch: pytest.MonkeyPatch
) -> None:
    def first_send(batch: list[Send | Recv], *more: object) -> None:
        exchange([do for do in batch if isinstance(do, Send)], *more)
        exchange([do for do in batch if isinstance(do, Recv)], *more)

    exchange = nccl._exchange
    monkeypatch.setattr(nccl, "_exchange", first_send)
    with pytest.raises(
        NcclError,
        match="deadlock: rank 0, batch 0 has to send 9 float32 to rank 1; rank 1, batch 0 has to send 9 float32 to",
    ):
        all_reduce_on(world(2), "recursive_doubling", [9, 9])


def test_ranks_that_do_not_agree_on_the_size(world: Callable[[int], World]) -> None:
    with pytest.raises(
        NcclError,
        match=r"mismatch: rank 1, batch 0 has .* 8 float32 .* but rank 0, batch 0 has .* 9 float32",
    ):
        all_reduce_on(world(2), "recursive_doubling", [9, 8])


def test_a_stream_that_does_not_wait_for_nccl(
    world: Callable[[int], World], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fake_nccl.Work.wait", lambda self: None)
    with pytest.raises(NcclError, match=r"race on rank \d: .* does not wait for"):
        all_reduce_on(world(2), "recursive_doubling", [9, 9])


def test_scratch_memory_that_two_streams_share(
    world: Callable[[int], World], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Tensor(torch.zeros(100))
    monkeypatch.setattr(buffers, "_memory", lambda n, kind: kept)
    w = world(1)
    with (
        w.on(0),
        pytest.raises(NcclError, match=r"race on rank 0: .* on another stream does not wait for"),
    ):
        gpu_cases.on_two_streams(w.group()[0], DEVICE, n=8)


def exchange_on(w: World, *programs: list[list[tuple[str, Tensor, int]]]) -> None:
    """Each rank's batches, of ("send" or "receive", tensor, peer), after a first collective."""
    group = w.group()
    for rank, program in enumerate(programs):
        with w.on(rank):
            dist.all_reduce(torch.zeros(1, device=DEVICE), group=group[rank])
            for batch in program:
                group[rank]._start_coalescing(DEVICE)
                for tag, (verb, tensor, peer) in enumerate(batch):
                    (group[rank].send if verb == "send" else group[rank].recv)([tensor], peer, tag)
                group[rank]._end_coalescing(DEVICE).wait()
    w.run()


def test_messages_of_a_pair_are_matched_in_order_whatever_their_tags(
    world: Callable[[int], World],
) -> None:
    a, b, c, d = on_gpu([torch.ones(3), torch.full((3,), 2.0), torch.zeros(3), torch.zeros(3)])
    exchange_on(
        world(2), [[("send", a, 1), ("send", b, 1)]], [[("receive", c, 0), ("receive", d, 0)]]
    )
    assert tolists([c, d]) == [[1.0] * 3, [2.0] * 3]
    short, long, few, many = on_gpu([torch.ones(3), torch.ones(4), torch.zeros(3), torch.zeros(4)])
    with pytest.raises(
        NcclError,
        match=r"mismatch: rank 1, batch 0 has receive 4 float32 from rank 0, but rank 0, .* 3",
    ):
        exchange_on(
            world(2),
            [[("send", short, 1), ("send", long, 1)]],
            [[("receive", many, 0), ("receive", few, 0)]],
        )


def test_a_batch_moves_nothing_before_all_its_counterparts_have_begun(
    world: Callable[[int], World],
) -> None:
    """Rank 1 sends only when its receive is done, and rank 0 has both in one batch."""
    a, b, c, d = on_gpu([torch.ones(3) for _ in range(4)])
    with pytest.raises(
        NcclError,
        match="deadlock: rank 0, batch 0 has to receive 3 float32 from rank 1; rank 1, batch 0 waits for rank 0",
    ):
        exchange_on(
            world(2), [[("send", a, 1), ("receive", b, 1)]], [[("receive", c, 0)], [("send", d, 0)]]
        )


def test_a_batch_that_receives_into_what_it_sends(world: Callable[[int], World]) -> None:
    (a,) = on_gpu([torch.ones(3)])
    with pytest.raises(
        NcclError, match="race within rank 0, batch 0: send 3 float32 to rank 1 and receive"
    ):
        exchange_on(world(2), [[("send", a, 1), ("receive", a, 1)]])


def test_the_host_waits_for_nothing(world: Callable[[int], World]) -> None:
    w = world(1)
    with w.on(0), pytest.raises(NcclError, match="makes the host wait"):
        torch.zeros(1, device=DEVICE).item()
    with w.on(0):
        unwritten, copy = torch.empty(3, device=DEVICE), torch.zeros(3, device=DEVICE)
        copy.copy_(unwritten)
    w.run()
    assert copy.memory.isnan().all()


def test_two_schedules_of_one_name_are_an_error(
    world: Callable[[int], World], tmp_path: Path
) -> None:
    """Nothing in a message of NCCL says by which schedule it is sent.

    Rank 1 is the one that hears of the other.
    """
    w = world(2)
    group, file = w.group(), tmp_path / "own.py"
    for rank, algorithm in enumerate(("ring", "recursive_doubling")):
        file.write_text(
            f"from collectives.algorithms import build\nmine = lambda p: build('all_reduce', '{algorithm}', p)"
        )
        refused = pytest.raises(
            RuntimeError, match="the call of rank 0 differs from this rank's: schedule"
        )
        with w.on(rank), refused if rank else nullcontext():
            collectives.all_reduce(
                *on_gpu([torch.arange(8.0)]), group=group[rank], algorithm=f"{file}:mine"
            )

"""The compiled loop against torch: the same bits."""

import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from loop_ranks import Ranks, call
from torch import distributed as dist

from collectives.algorithms import build, executable
from collectives.core.contracts import REDUCING
from collectives.engine.compile import plan
from collectives.engine.program import Average, Plan, Recv, Reduce, Send, Span, Wait
from collectives.engine.reduce import divide, reduce, refusal
from command import finished

pytestmark = pytest.mark.integration

OPS = [
    dist.ReduceOp.SUM,
    dist.ReduceOp.AVG,
    dist.ReduceOp.PRODUCT,
    dist.ReduceOp.MAX,
    dist.ReduceOp.MIN,
]
BITS = [dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR]
DTYPES = [
    *(
        torch.float32,
        torch.float64,
        torch.int32,
        torch.int64,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.bool,
    ),
    *(torch.float16, torch.bfloat16, torch.complex64, torch.float8_e5m2),
]


def data(n: int, dtype: torch.dtype, rank: int) -> torch.Tensor:
    """Different on every rank and in every element; floats of which no two sums round alike."""
    made = torch.Generator().manual_seed(1000 * rank + n)
    if dtype == torch.bool or not dtype.is_floating_point:
        whole = torch.randint(-100, 100, (n,), generator=made)
        return whole > 0 if dtype == torch.bool else whole.to(dtype)
    return torch.randn(n, generator=made).to(dtype)


def in_bits(tensor: torch.Tensor) -> bytes:
    return tensor.view(torch.uint8).numpy().tobytes()


def cases(p: int, count: int) -> list[tuple[str, str, int, torch.dtype, Any]]:
    """Some of all algorithms, sizes, dtypes and ops."""
    found, chosen = list[Any](), random.Random(p)
    while len(found) < count:
        collective, algorithm = chosen.choice(sorted(executable()))
        dtype = chosen.choice(DTYPES)
        op = chosen.choice(OPS + BITS) if collective in REDUCING else None
        n = chosen.choice((0, 1, 2, p - 1, p + 1, 97, 1000, 70_001))
        if refusal(op, dtype) is None:
            found.append((collective, algorithm, n, dtype, op))
    return found


Pieces = dict[tuple[int, int, int], torch.Tensor]  # (from, to, step) -> what the message has


def play(plans: list[Plan], tensors: list[torch.Tensor], op: Any) -> None:
    """Execute all ranks' programs in this thread, each in its order, with torch: what the loop is compared with."""
    mail = Pieces()
    going = [_play(r, each, tensors[r], op, len(plans), mail) for r, each in enumerate(plans)]
    for _ in range(sum(len(list(each.instructions())) for each in plans) + 1):
        going = [each for each in going if next(each, "done") != "done"]
    assert not going, "some wait for ever"


def _play(
    r: int, made: Plan, tensor: torch.Tensor, op: Any, p: int, mail: Pieces
) -> Iterator[None]:
    scratch, received = torch.zeros(made.scratch, dtype=tensor.dtype), dict[int, Recv]()

    def view(span: Span) -> torch.Tensor:
        return (scratch if span.scratch else tensor)[span.start : span.stop]

    for do in made.instructions():
        match do:
            case Send():
                mail[r, do.peer, do.step] = torch.cat(
                    [view(span).view(torch.uint8) for span in do.spans]
                )
            case Recv():
                received[do.number] = do
            case Wait() if recv := received.pop(do.number, None):
                while (recv.peer, r, recv.step) not in mail:
                    yield
                view(recv.into).view(torch.uint8).copy_(mail.pop((recv.peer, r, recv.step)))
            case Reduce():
                reduce(op, view(do.into), [view(span) for span in do.operands])
            case Average() if op == dist.ReduceOp.AVG:
                divide(view(do.span), p)


@pytest.mark.parametrize("p", [1, 2, 3, 5, 8])
def test_the_loop_gives_the_bits_that_torch_gives(p: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(p, monkeypatch)
    for collective, algorithm, n, dtype, op in cases(p, 40):
        schedule = build(collective, algorithm, p, segments=2)
        edges = schedule.cut(n)
        plans, whole = [plan(schedule, r, edges) for r in range(p)], int(edges[-1])

        def one(
            r: int, plans: Any = plans, whole: int = whole, dtype: Any = dtype, op: Any = op
        ) -> bytes:
            tensor, scratch = data(whole, dtype, r), torch.zeros(plans[r].scratch, dtype=dtype)
            call(plans[r], tensor, scratch, ranks.groups[r].transport, op)
            return in_bits(tensor)

        expected = [data(whole, dtype, r) for r in range(p)]
        play(plans, expected, op)
        assert ranks.run(one) == [*map(in_bits, expected)], (collective, algorithm, n, dtype, op)
    ranks.close()


NO_LOCKS = """
import errno, fcntl, os, sys, warnings
def refuse(*_):
    raise OSError(getattr(errno, sys.argv[1]), os.strerror(getattr(errno, sys.argv[1])))
fcntl.flock = refuse
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    import collectives.engine.tcp.execute
    from collectives.engine.transport import shared_memory_or_none
    print(bool(shared_memory_or_none()), *(each.message for each in said), sep="|")
"""


# NFS: an exclusive lock on a file that is open for reading.
@pytest.mark.parametrize("code", ["ENOSYS", "EBADF"])
def test_a_file_system_without_locks_does_not_prevent_the_import(code: str) -> None:
    command = [sys.executable, "-c", NO_LOCKS, code]
    done = finished(command)
    # Where the cache was cold, the process says that it compiles.
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


ALL = sorted({each for each in vars(torch).values() if isinstance(each, torch.dtype)}, key=str)


def is_done(act: Callable[[], object]) -> bool:
    try:
        act()
    except (RuntimeError, TypeError):
        return False
    return True


def bits(dtype: torch.dtype) -> torch.Tensor:
    """Two elements of any dtype."""
    return torch.arange(2 * dtype.itemsize, dtype=torch.uint8).view(dtype)


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's, of quantized types and of complex32
@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_what_torch_copies_is_moved_and_what_it_adds_is_reduced_but_complex(
    dtype: torch.dtype,
) -> None:
    assert (refusal(None, dtype) is None) == is_done(
        lambda: torch.empty(2, dtype=dtype).copy_(bits(dtype))
    )
    added = dtype == torch.bool or is_done(lambda: bits(dtype) + bits(dtype))
    assert (refusal(dist.ReduceOp.SUM, dtype) is None) == (added and not dtype.is_complex)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_every_dtype_that_can_be_moved_is_broadcast(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(2, monkeypatch)
    schedule = build("broadcast", "binomial", 2)
    plans = [plan(schedule, r, schedule.cut(2)) for r in range(2)]

    def one(r: int, dtype: torch.dtype) -> bytes:
        tensor = (
            bits(dtype)
            if r == 0
            else torch.zeros(2 * dtype.itemsize, dtype=torch.uint8).view(dtype)
        )
        call(plans[r], tensor, tensor[:0], ranks.groups[r].transport, None)
        return in_bits(tensor)

    for dtype in [each for each in ALL if refusal(None, each) is None]:
        assert ranks.run(lambda r, dtype=dtype: one(r, dtype)) == [in_bits(bits(dtype))] * 2
    ranks.close()

"""What every rank does for `make gpu-check`: all algorithms in groups of 1 to all ranks, two streams, and training."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import chain, product
from typing import NamedTuple

import numpy as np
import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

import collectives.torch_backend  # noqa: F401  torch knows the name from now on
from collectives.algorithms import executable
from collectives.backends import backend, nccl
from collectives.bench import Row
from collectives.bench.data import reduced, share, values
from collectives.bench.report import gathered
from collectives.bench.settings import DTYPES
from collectives.core.contracts import REDUCING
from collectives.core.schedule import Ints, parts
from collectives.engine.call import Call
from collectives.engine.compile import as_plan
from collectives.engine.group import perform
from collectives.engine.nccl import execute_in_batches
from collectives.engine.ops import BY_ROW_NAME
from collectives.engine.program import Recv, Reduce, Send, Span, Task, Wait

# Elements, op, dtype and segments: none, fewer than ranks, and a number that few numbers of ranks
# divide.
VARIANTS = (
    (0, "sum", "float32", None),
    (1, "avg", "float32", None),
    (37, "sum", "int64", 3),
    (37, "avg", "bfloat16", 2),
    (1009, "max", "float16", None),
)

# On one GPU: elements that a kernel takes long enough for that two streams overlap, and calls on
# each stream.
LONG = 1 << 22
CALLS = 20


class CheckedCall(NamedTuple):
    """One collective: ``n`` elements of the whole tensor, or of each rank's part.

    ``root`` is a rank in the group.
    """

    collective: str
    algorithm: str
    n: int
    op: str
    dtype: str
    segments: int | None
    root: int


def cases(p: int) -> Iterator[CheckedCall]:
    """Every algorithm on ``p`` ranks in all variants, each time from another root.

    What does not reduce, sums only.

    >>> print(next(cases(4)))
    CheckedCall(collective='broadcast', algorithm='flat', n=0, op='sum', dtype='float32', segments=None, root=0)
    """
    for root, ((collective, algorithm), (n, op, dtype, segments)) in enumerate(
        product(executable(), VARIANTS)
    ):
        if op == "sum" or collective in REDUCING:
            yield CheckedCall(collective, algorithm, n, op, dtype, segments, root % p)


def begin(
    case: CheckedCall, p: int, rank: int, group: dist.ProcessGroup, device: torch.device
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Call for one rank: its output, which the GPU may have yet to write, and on the CPU what it must be."""
    given, wanted = _data(case, p, rank)
    dtype = getattr(torch, case.dtype)
    mine = None if given is None else torch.tensor(given, dtype=dtype, device=device)
    output = None if wanted is None else torch.empty(len(wanted), dtype=dtype, device=device)
    if case.collective in ("all_reduce", "reduce", "broadcast"):
        output = mine
    perform(
        Call(
            case.collective,
            output,
            mine,
            BY_ROW_NAME[case.op],
            case.root,
            group,
            case.algorithm,
            case.segments,
        ),
    )
    expected = None if wanted is None else torch.from_numpy(wanted).to(dtype)
    if (
        expected is not None
        and case.op == "avg"
        and (case.collective != "reduce" or rank == case.root)
    ):
        expected.div_(p, rounding_mode=None if dtype.is_floating_point else "trunc")
    return output, expected


def _data(case: CheckedCall, p: int, rank: int) -> tuple[Ints | None, Ints | None]:
    """One rank's input and output; None where it has none.

    In a reduce the other ranks keep what they have.
    """
    exact, whole = DTYPES[case.dtype][1], case.n * (p if parts(case.collective, p) > 1 else 1)

    def given(of: int, length: int, first: int) -> Ints:
        return values(of, length, case.op, p, exact, first)

    def total(length: int, first: int) -> Ints:
        return reduced(length, case.op, p, exact, first)

    join: Callable[[list[Ints]], Ints] = np.concatenate
    mine, wanted = share(case.collective, whole, rank, p, case.root, given, total, join)
    if case.collective == "reduce" and wanted is None:
        return mine, mine
    return mine, wanted


def on_two_streams(
    group: dist.ProcessGroup, device: torch.device, n: int = LONG
) -> list[tuple[torch.Tensor, Ints]]:
    """Calls on two streams in turn, none of which waits for the other: outputs, and what each must be.

    A reduce-scatter moves its input through scratch memory, also on one rank. Scratch memory that
    both streams use mixes their data.
    """
    p, rank = dist.get_world_size(group), dist.get_rank(group)
    inputs = [values(rank, p * n, "sum", p, DTYPES["float32"][1] // 2) * times for times in (1, 2)]
    mine = [torch.tensor(each, dtype=torch.float32, device=device) for each in inputs]
    total = reduced(n, "sum", p, DTYPES["float32"][1] // 2, rank * n)
    streams = [torch.cuda.Stream(device) for _ in range(2)]  # type: ignore[no-untyped-call]
    outputs = []
    torch.cuda.synchronize(device)
    for call in range(2 * CALLS):
        which = call % 2
        with torch.cuda.stream(streams[which]):
            output = torch.empty(n, dtype=torch.float32, device=device)
            perform(
                Call("reduce_scatter", output, mine[which], BY_ROW_NAME["sum"], None, group, "ring")
            )
            outputs.append((output, total * (1 + which)))
    torch.cuda.synchronize(device)
    return outputs


def to_itself(
    group: dist.ProcessGroup, device: torch.device, n: int = LONG
) -> list[tuple[torch.Tensor, Ints]]:
    """A rank sends to itself and adds what arrives, again and again: each time its stream has to wait for NCCL's."""
    whole, aside = Span(0, n), Span(0, n, scratch=True)
    me = dist.get_rank(group)
    task = Task(
        (
            Send(0, me, 0, (whole,)),
            Recv(1, me, 0, aside),
            Wait(1),
            Reduce(whole, (whole, aside)),
            Wait(0),
        ),
        (),
    )
    doubled = as_plan((task,), n)
    mine = np.arange(n) % 1009
    with torch.cuda.stream(torch.cuda.Stream(device)):  # type: ignore[no-untyped-call]
        tensor = torch.tensor(mine, dtype=torch.float32, device=device)
        scratch = torch.empty(n, dtype=torch.float32, device=device)
        for _ in range(10):
            execute_in_batches(doubled, tensor, scratch, group, BY_ROW_NAME["sum"], 1)
    torch.cuda.synchronize(device)
    return [(tensor, mine << 10)]


def run(settings: Row, report: Callable[[Row], None]) -> None:
    """Check what the settings under "check" name: "one_gpu".

    "algorithms" or "ddp" over "nccl" or, on CPUs, "gloo".

    A further group of ranks is checked only while less than half of the "seconds" are over: where
    ranks take turns on a GPU, all groups would take many minutes.
    """
    device, over, begun = backend(settings["over"]).device(), settings["over"], time.monotonic()
    if settings["check"] == "one_gpu":
        _one_gpu(nccl.group(), device, report)
        return
    if settings["check"] == "ddp":
        report({"check": "ddp", "steps": STEPS, "wrong": differing(over, device)})
        return
    for p in range(1, dist.get_world_size() + 1):
        if max(gathered(time.monotonic() - begun)) < settings["seconds"] / 2:
            _algorithms(p, over, device, report)
        else:
            report({"ranks": p, "left_out": f"half of {settings['seconds']:.0f} s were over"})


def _one_gpu(group: dist.ProcessGroup, device: torch.device, report: Callable[[Row], None]) -> None:
    for check in (to_itself, on_two_streams):
        report({"begins": check.__name__})
        found = [
            (output.cpu().numpy() != expected).sum() for output, expected in check(group, device)
        ]
        report({"check": check.__name__, "calls": len(found), "wrong": int(sum(found))})


def _algorithms(p: int, over: str, device: torch.device, report: Callable[[Row], None]) -> None:
    """All cases in a group of rank 0 and the last ``p - 1`` ranks, which have other numbers in it than outside."""
    everyone = dist.get_world_size()
    members = [0, *range(everyone - p + 1, everyone)]
    group = dist.new_group(members, backend=over)
    count, wrong = 0, []
    if dist.get_rank() in members:
        for case in cases(p):
            count += 1
            report({"begins": str(case), "ranks": p})
            output, expected = begin(case, p, dist.get_rank(group), group, device)
            if (
                output is not None
                and expected is not None
                and not torch.equal(output.cpu(), expected)
            ):
                wrong.append(f"{case} on rank {dist.get_rank(group)} of {p}")
        dist.destroy_process_group(group)
    report({"ranks": p, "cases": count, "wrong": [*chain.from_iterable(gathered(wrong))]})


# On two ranks: a sum of two numbers has one value in either order, so equal means bit for bit.
STEPS = 12


def differing(over: str, device: torch.device) -> int:
    """Return the number of parameters that differ after training over ours and over "nccl" or, on CPUs, "gloo"."""
    ours, theirs = (_trained(name, device) for name in ("collectives", over))
    return sum(int((mine != other).sum()) for mine, other in zip(ours, theirs, strict=True))


def _trained(over: str, device: torch.device) -> list[torch.Tensor]:
    """Train a model in a group of its own.

    Its buckets are small, so that reductions overlap with the backward pass.
    """
    group = dist.new_group(backend=over)
    torch.manual_seed(7)
    layers = (
        torch.nn.Linear(64, 1024),
        torch.nn.ReLU(),
        torch.nn.Linear(1024, 1024),
        torch.nn.Linear(1024, 8),
    )
    model = DistributedDataParallel(
        torch.nn.Sequential(*layers).to(device), process_group=group, bucket_cap_mb=1
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    random = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(64, 64, generator=random).to(device)).square().mean().backward()
        optimizer.step()
    trained = [each.detach().cpu() for each in model.parameters()]
    del model, optimizer
    dist.destroy_process_group(group)
    return trained

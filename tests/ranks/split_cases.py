"""What every rank does for tests/notebooks: models divided by tensors and as pipelines, against one process.

Numbers are small integers in float64, so that sums are exact in any order and results have to be
equal, not close. `run` reports {"case": ..., "ok": bool} for each check; a case that begins with
"fault" is ok if the fault was seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

import collectives
import collectives.torch_backend  # torch's groups by the name "collectives"
from collectives.backends.torch_native import GLOO
from collectives.core.schedule import cut
from collectives.engine.call import Call
from collectives_book.model_parallel import pipeline
from collectives_book.model_parallel.pipeline_schedules import (
    BACKWARD,
    FORWARD,
    SCHEDULES,
    Action,
    kept,
)
from collectives_book.model_parallel.split_steps import gradients, through
from collectives_book.model_parallel.tensor_parallel import (
    AllReduce,
    Block,
    block,
    copied,
    shard,
    summed,
)

Event = dict[str, Any]
Check = tuple[str, bool]

WIDTH, BATCH = 3, 7


def run(settings: Event, report: Callable[[Event], None]) -> None:
    torch.set_num_threads(1)
    kinds = {
        "tensor": tensor,
        "pipeline": pipelines,
        "torch's pipeline": torchs_pipelines,
        "silent": silent,
    }
    checks = list(kinds[settings["what"]]())
    everywhere = torch.tensor([int(ok) for _, ok in checks])
    # An equality has to hold on every rank; a fault is seen where one rank sees it.
    least, most = everywhere.clone(), everywhere.clone()
    dist.all_reduce(least, op=dist.ReduceOp.MIN)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    for (case, _), on_all, on_some in zip(checks, least.tolist(), most.tolist(), strict=True):
        report({"case": case, "ok": bool(on_some if case.startswith("fault") else on_all)})


def integers(*shape: int, seed: int) -> torch.Tensor:
    """Small integers, other ones in every place and for every seed."""
    source = torch.Generator().manual_seed(seed)
    return torch.randint(-3, 4, shape, generator=source).double()


def weights(hidden: int, seed: int = 0) -> Block:
    return Block(
        integers(WIDTH, hidden, seed=seed),
        integers(hidden, seed=seed + 1),
        integers(hidden, WIDTH, seed=seed + 2),
        integers(WIDTH, seed=seed + 3),
    )


X, TARGET = integers(BATCH, WIDTH, seed=90), integers(BATCH, WIDTH, seed=91)


def loss(y: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (y * target).sum()


def alone(blocks: list[Block]) -> tuple[list[Block], torch.Tensor, torch.Tensor]:
    """One process: the blocks with their gradients, the input with its gradient, and the output."""
    whole, x = [shard(each, 0, 1) for each in blocks], X.clone().requires_grad_()
    y = through(x, whole)
    loss(y, TARGET).backward()
    return whole, x, y.detach()


def sums() -> dict[str, AllReduce]:
    """All-reduces by our algorithms and by a library."""

    def by(algorithm: str) -> AllReduce:
        return lambda x: collectives.all_reduce(x, algorithm=algorithm)

    ours = {name: by(name) for name in ("ring", "two_tree", "recursive_doubling", "auto")}
    return ours | {"gloo": lambda x: GLOO.perform(Call("all_reduce", x, x, dist.ReduceOp.SUM))}


def divided(blocks: list[Block], all_reduce: AllReduce, forward: Any = None) -> bool:
    """Return True if output and gradients of the divided blocks equal those of one process, in every bit."""
    rank, p = dist.get_rank(), dist.get_world_size()
    whole, x, y = alone(blocks)
    parts, own_x = [shard(each, rank, p) for each in blocks], X.clone().requires_grad_()
    own_y = own_x
    for part in parts:
        own_y = (forward or block)(own_y, part, all_reduce)
    loss(own_y, TARGET).backward()
    expected = [shard(Block(*gradients(each)), rank, p) for each in whole]
    same = [
        torch.equal(mine, theirs)
        for part, its in zip(parts, expected, strict=True)
        for mine, theirs in zip(gradients(part), its, strict=True)
    ]
    return (
        torch.equal(own_y.detach(), y)
        and torch.equal(own_x.grad, x.grad)
        and len(same) == 4 * len(parts)
        and all(same)
    )


def tensor() -> Iterator[Check]:
    for name, all_reduce in sums().items():
        for hidden in (1, 2, 4, 7, 12):  # fewer than ranks, as many, ragged, equal
            yield (
                f"{name}, {hidden} hidden units",
                divided([weights(hidden), weights(hidden, 10)], all_reduce),
            )
    yield (
        "all-reduces of two blocks",
        asked([weights(7), weights(7, 10)]) == [X.numel()] * 4,
    )
    yield "the same bits on all ranks", same_bits()
    yield from faults()


def asked(blocks: list[Block]) -> list[int]:
    """The elements of every all-reduce in a step."""
    calls: list[int] = []

    def all_reduce(x: torch.Tensor) -> None:
        calls.append(x.numel())
        collectives.all_reduce(x, algorithm="ring")

    divided(blocks, all_reduce)
    return calls


def same_bits() -> bool:
    """With floats whose sum depends on the order, every rank still gets the same result."""
    rank, p = dist.get_rank(), dist.get_world_size()
    whole = Block(
        *(
            torch.randn(each.shape, generator=torch.Generator().manual_seed(4))
            for each in weights(12)
        )
    )
    y = block(torch.ones(BATCH, WIDTH), shard(whole, rank, p), sums()["ring"]).detach()
    expected = block(torch.ones(BATCH, WIDTH), shard(whole, 0, 1), lambda _: None).detach()
    gathered = [torch.empty_like(y) for _ in range(p)]
    dist.all_gather(gathered, y)
    return all(torch.equal(each, y) for each in gathered) and torch.allclose(
        y, expected, rtol=1e-5, atol=1e-5
    )


def faults() -> Iterator[Check]:
    """What is easily forgotten: on several ranks each of these has to give another result."""
    if dist.get_world_size() == 1:
        return
    ring, blocks = sums()["ring"], [weights(7), weights(7, 10)]

    def no_sum_backward(x: torch.Tensor, part: Block, all_reduce: AllReduce) -> torch.Tensor:
        return (
            summed(torch.relu(x @ part.into + part.into_bias) @ part.out, all_reduce)
            + part.out_bias
        )

    def bias_in_the_sum(x: torch.Tensor, part: Block, all_reduce: AllReduce) -> torch.Tensor:
        hidden = torch.relu(copied(x, all_reduce) @ part.into + part.into_bias)
        return summed(hidden @ part.out + part.out_bias, all_reduce)

    def sum_of_a_copy(x: torch.Tensor, part: Block, all_reduce: AllReduce) -> torch.Tensor:
        hidden = torch.relu(copied(copied(x, all_reduce), all_reduce) @ part.into + part.into_bias)
        return summed(hidden @ part.out, all_reduce) + part.out_bias

    calls = iter(range(100))
    yield "fault: no all-reduce", not divided(blocks, lambda _: None)
    yield (
        "fault: the last all-reduce is missing",
        not divided(blocks, lambda x: next(calls) < 3 and ring(x)),
    )
    yield "fault: no all-reduce backward", not divided(blocks, ring, no_sum_backward)
    yield (
        "fault: the bias is added by every rank",
        not divided(blocks, ring, bias_in_the_sum),
    )
    yield "fault: gradients are summed twice", not divided(blocks, ring, sum_of_a_copy)


def pipelines() -> Iterator[Check]:
    for schedule in SCHEDULES:
        for count in (1, 2, 3, 7):
            yield f"{schedule}, {count} micro-batches", piped(schedule, count)
    yield "the messages of a step", sent() == expected_bytes()
    if dist.get_world_size() > 1:
        yield "fault: targets in another order", not piped("gpipe", 7, swap=True)
        yield (
            "fault: a micro-batch is left out",
            not piped("gpipe", 3, order=without_the_first),
        )


def without_the_first(actions: list[Action]) -> list[Action]:
    return [action for action in actions if action.micro_batch]


def one_stage(
    schedule: str, count: int, swap: bool = False, order: Any = list
) -> tuple[Block, pipeline.Done]:
    stage, stages = dist.get_rank(), dist.get_world_size()
    own = shard(weights(5, 10 * stage), 0, 1)
    sizes = [b - a for a, b in pairwise(cut(BATCH, count).tolist())]
    targets = torch.split(TARGET, sizes)
    part = pipeline.Part(
        layers=lambda x: through(x, [own]),
        loss=lambda y, i: loss(y, targets[(i + swap) % count]),
        empty=lambda i: X.new_empty(sizes[i], WIDTH),
    )
    actions = order(SCHEDULES[schedule](stage, stages, count))
    return own, pipeline.step(part, actions, pipeline.Line(stage, stages), torch.split(X, sizes))


def piped(schedule: str, count: int, **fault: Any) -> bool:
    """Return True if this stage's gradients, and the last one's losses, are those of one process."""
    stage, stages = dist.get_rank(), dist.get_world_size()
    own, done = one_stage(schedule, count, **fault)
    whole, _, y = alone([weights(5, 10 * each) for each in range(stages)])
    same = [
        torch.equal(mine, theirs)
        for mine, theirs in zip(gradients(own), gradients(whole[stage]), strict=True)
    ]
    last = stage == stages - 1
    assert fault or (len(done.spans) == 2 * count and len(done.losses) == count * last)
    return all(same) and (not last or sum(done.losses) == loss(y, TARGET).item())


def sent() -> int:
    return one_stage("1f1b", 3)[1].sent


def expected_bytes() -> int:
    """All activations to the next stage, and as many gradients to the one before."""
    stage, stages = dist.get_rank(), dist.get_world_size()
    return X.nbytes * ((stage > 0) + (stage < stages - 1))


class Layers(nn.Module):
    """A block as torch's pipeline takes it."""

    def __init__(self, own: Block) -> None:
        super().__init__()
        self.weights = nn.ParameterList(own)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return through(x, [Block(*self.weights)])


class WatchedStage(PipelineStage):
    """A stage of torch's that keeps the order of its passes, and how many micro-batches it has kept at most."""

    def __init__(self, own: Block, group: dist.ProcessGroup) -> None:
        rank, stages = dist.get_rank(), dist.get_world_size()
        super().__init__(Layers(own), rank, stages, torch.device("cpu"), group=group)
        self.passes: list[Action] = []
        self.kept = 0

    def forward_one_chunk(self, fwd_chunk_id: int, *given: Any, **named: Any) -> Any:
        self.passes.append(Action(FORWARD, fwd_chunk_id))
        y = super().forward_one_chunk(fwd_chunk_id, *given, **named)
        self.kept = max(self.kept, len(self.fwd_cache))
        return y

    def backward_one_chunk(self, bwd_chunk_id: int, *given: Any, **named: Any) -> Any:
        self.passes.append(Action(BACKWARD, bwd_chunk_id))
        return super().backward_one_chunk(bwd_chunk_id, *given, **named)


def torchs_pipelines() -> Iterator[Check]:
    """torch.distributed.pipelining passes in our order, keeps what ours keeps, and has one process's gradients.

    Its micro-batches are of one size, and its 1F1B has as many of them as stages, or more.
    """
    stages = dist.get_world_size()
    for library in ("gloo", "collectives"):
        group = dist.new_group(backend=library)
        assert isinstance(group, dist.ProcessGroup)
        for name, schedule in (("gpipe", ScheduleGPipe), ("1f1b", Schedule1F1B)):
            for count in (stages, 2 * stages):
                case = f"{name} over {library}, {count} micro-batches"
                yield case, torchs_step(name, schedule, count, group)


def torchs_step(name: str, schedule: Any, count: int, group: dist.ProcessGroup) -> bool:
    stage, stages = dist.get_rank(), dist.get_world_size()
    x, target = integers(2 * count, WIDTH, seed=92), integers(2 * count, WIDTH, seed=93)
    blocks = [shard(weights(5, 10 * nth), 0, 1) for nth in range(stages)]
    loss(through(x, blocks), target).backward()
    watched = WatchedStage(shard(weights(5, 10 * stage), 0, 1), group)
    pipe = schedule(watched, count, loss_fn=loss, scale_grads=False)
    given = [x] if stage == 0 else []
    pipe.step(*given, target=target if stage == stages - 1 else None)
    pairs = zip(watched.submod.weights, blocks[stage], strict=True)
    order = SCHEDULES[name](stage, stages, count)
    return (
        watched.passes == order
        and watched.kept == kept(order)
        and all(torch.equal(own.grad, whole.grad) for own, whole in pairs)
    )


def silent() -> Iterator[Check]:
    """The last stage goes away after one micro-batch: the first one must not wait for ever."""
    stage, stages = dist.get_rank(), dist.get_world_size()
    one_stage(
        "gpipe",
        2,
        order=lambda actions: actions[:1] if stage == stages - 1 else actions,
    )
    yield "nothing noticed", False

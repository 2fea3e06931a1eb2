"""What every rank does for test_wrappers.py: train by DDP and FSDP2 on our back end, and alone with the whole batch.

`run` reports {"wrapper": …, "algorithm": …, "apart": [how far each rank's parameters are from those
of one process]}. With PowerSGD, whose gradients are approximate, and with ranks of different
numbers of batches that is how far they are from those over gloo; with several buckets, which gloo
does not keep in order, from those of rank 0.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from collectives.algorithms import executable, names
from collectives.torch_backend import Options

STEPS, SAMPLES, LIMIT = 3, 4, timedelta(seconds=60)
SHARDED = sorted({*names("all_gather"), *names("reduce_scatter")})


def run(settings: dict[str, Any], report: Callable[[dict[str, Any]], None]) -> None:
    torch.set_num_threads(1)
    for wrapper, train, algorithms in (
        ("ddp", ddp, names("all_reduce", executable())),
        ("fsdp", fsdp, SHARDED),
    ):
        for algorithm in [*algorithms, "auto"]:
            group = dist.new_group(
                backend="collectives", pg_options=Options(algorithm), timeout=LIMIT
            )
            everyone: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(everyone, apart(train(group), alone()))
            report({"wrapper": wrapper, "algorithm": algorithm, "apart": everyone})
            dist.destroy_process_group(group)
    for wrapper, train, goal in (
        ("compiled", compiled, alone),
        ("one bucket", power, over_gloo),
        ("many", many, first),
        ("joined", joined, joined_over_gloo),
    ):
        group = dist.new_group(backend="collectives", timeout=LIMIT)
        everyone = [None] * dist.get_world_size()
        mine = train(group)
        dist.all_gather_object(everyone, apart(mine, goal(mine)))
        report({"wrapper": wrapper, "algorithm": "auto", "apart": everyone})
        dist.destroy_process_group(group)


def model() -> torch.nn.Module:
    """Layers whose sizes no number of ranks divides."""
    torch.manual_seed(1)
    return torch.nn.Sequential(
        torch.nn.Linear(7, 31),
        torch.nn.Tanh(),
        torch.nn.Linear(31, 13),
        torch.nn.Tanh(),
        torch.nn.Linear(13, 3),
    )


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What all ranks together learn from in a step."""
    made = torch.Generator().manual_seed(step)
    n = SAMPLES * dist.get_world_size()
    return torch.randn(n, 7, generator=made), torch.randn(n, 3, generator=made)


def steps(net: Any, part: slice) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        x, y = batch(step)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(net(x[part]), y[part]).backward()
        optimizer.step()


def alone(_: object = None) -> list[torch.Tensor]:
    net = model()
    steps(net, slice(None))
    return list(net.parameters())


def shard() -> slice:
    first = SAMPLES * dist.get_rank()
    return slice(first, first + SAMPLES)


def ddp(group: Any) -> list[torch.Tensor]:
    net = DistributedDataParallel(model(), process_group=group, bucket_cap_mb=0.001)
    steps(net, shard())
    return list(net.parameters())


def compiled(group: Any) -> list[torch.Tensor]:
    """Torch's compiler cuts the graph at each bucket."""
    net = DistributedDataParallel(model(), process_group=group)
    steps(torch.compile(net, backend="eager"), shard())
    return list(net.parameters())


def power(group: Any, megabytes: float = 25) -> list[torch.Tensor]:
    """With a hook whose callbacks make calls and wait for them."""
    net = DistributedDataParallel(model(), process_group=group, bucket_cap_mb=megabytes)  # type: ignore[arg-type]
    net.register_comm_hook(
        powerSGD_hook.PowerSGDState(group, start_powerSGD_iter=2), powerSGD_hook.powerSGD_hook
    )
    steps(net, shard())
    return list(net.parameters())


def many(group: Any) -> list[torch.Tensor]:
    """With several buckets: the callbacks of one run while the next is begun."""
    return power(group, 1e-4)


def over_gloo(mine: list[torch.Tensor]) -> list[torch.Tensor]:
    del mine
    return power(dist.new_group(backend="gloo", timeout=LIMIT))


def joined(group: Any) -> list[torch.Tensor]:
    """Rank r has r batches more than rank 0, and the average is over the ranks that have one."""
    net = DistributedDataParallel(model(), process_group=group, bucket_cap_mb=0.001)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with net.join(divide_by_initial_world_size=False):
        for step in range(1 + dist.get_rank()):
            x, y = batch(step)
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(net(x[shard()]), y[shard()]).backward()
            optimizer.step()
    return list(net.parameters())


def joined_over_gloo(mine: list[torch.Tensor]) -> list[torch.Tensor]:
    del mine
    return joined(dist.new_group(backend="gloo", timeout=LIMIT))


def first(mine: list[torch.Tensor]) -> list[torch.Tensor]:
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return everyone[0]  # type: ignore[no-any-return]


def fsdp(group: Any) -> list[torch.Tensor]:
    net, mesh = model(), DeviceMesh.from_group(group, "cpu")
    for layer in net:
        if list(layer.parameters()):
            fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    steps(net, shard())
    return [whole(parameter.to_local()) for parameter in net.parameters()]  # type: ignore[attr-defined]


def whole(part: torch.Tensor) -> torch.Tensor:
    """All ranks' rows.

    DTensor's own way keeps the first group of these ranks, which is destroyed by now.
    """
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, part.detach())
    return torch.cat(parts)


def apart(some: list[torch.Tensor], others: list[torch.Tensor]) -> float:
    return max(float((one - other).abs().max()) for one, other in zip(some, others, strict=True))

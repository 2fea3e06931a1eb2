"""What our back end costs against gloo, per step of DistributedDataParallel: both in one run, in turns.

    torchrun --standalone --nproc-per-node 4 examples/step_cost.py --width 256 --steps 200

A step is forward, backward and update of a model of four square layers. Each round takes one step
over each back end, in alternating order, behind a barrier; a step lasts until the last rank has
ended it. Prints the medians, and the median of the rounds' ratios with its 95 % interval.
"""

import argparse
import time
from collections.abc import Callable

import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

import collectives.torch_backend
from collectives.statistics import median_interval

WARMUPS = 5


def step_of(
    model: torch.nn.Module, group: dist.ProcessGroup, rows: torch.Tensor
) -> Callable[[], None]:
    """A function that trains the model one step over the group."""
    replica = DistributedDataParallel(model, process_group=group)
    optimizer = torch.optim.SGD(replica.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        replica(rows).square().mean().backward()
        optimizer.step()

    return step


def seconds(step: Callable[[], None], group: dist.ProcessGroup) -> float:
    """How long a step takes on the slowest rank."""
    dist.barrier(group)
    began = time.perf_counter()
    step()
    took = torch.tensor(time.perf_counter() - began)
    dist.all_reduce(took, dist.ReduceOp.MAX, group)
    return took.item()


def said(samples: list[float], unit: str, times: float = 1.0) -> str:
    low, median, high = median_interval([each * times for each in samples])
    return f"{median:.2f}{unit} ({low:.2f} to {high:.2f})"


def main() -> None:
    options = argparse.ArgumentParser(description="the cost of our back end against gloo's")
    options.add_argument(
        "--width", type=int, default=256, help="of the layers: 4 * width**2 weights (default 256)"
    )
    options.add_argument("--rows", type=int, default=16, help="of a rank's batch (default 16)")
    options.add_argument("--steps", type=int, default=100, help="that are measured (default 100)")
    options.add_argument("--algorithm", default="auto", help="of `collectives list` (default auto)")
    given = options.parse_args()
    torch.set_num_threads(1)
    chosen = collectives.torch_backend.Options(given.algorithm)
    dist.init_process_group("gloo")
    gloo = dist.group.WORLD
    groups = {"gloo": gloo, "collectives": dist.new_group(backend="collectives", pg_options=chosen)}
    rows = torch.randn(given.rows, given.width)
    steps = {}
    for name, group in groups.items():
        torch.manual_seed(7)
        model = torch.nn.Sequential(
            *[torch.nn.Linear(given.width, given.width, bias=False) for _ in range(4)]
        )
        steps[name] = step_of(model, group, rows)
    taken: dict[str, list[float]] = {name: [] for name in groups}
    for i in range(WARMUPS + given.steps):
        for name in sorted(groups, reverse=i % 2 == 1):
            took = seconds(steps[name], gloo)
            if i >= WARMUPS:
                taken[name].append(took)
    if dist.get_rank() == 0:
        ratios = [
            ours / theirs for ours, theirs in zip(taken["collectives"], taken["gloo"], strict=True)
        ]
        print(
            f"{dist.get_world_size()} ranks, {16 * given.width**2:,} bytes of gradients, {given.steps} steps each"
        )
        for name, samples in taken.items():
            print(f"a step over {name}: {said(samples, ' ms', 1e3)}")
        print(f"collectives ({given.algorithm}) to gloo: {said(ratios, '')}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

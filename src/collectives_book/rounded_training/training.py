"""Data-parallel workers simulated in one process: their gradients are summed bit for bit as ranks would sum them.

Each of p workers has the same float32 weights and a shard of the batch. A schedule adds their
gradients in a dtype, and may send them in fewer bits than it adds in. The sum, divided by p, is the
gradient of a step in float32.

With error feedback each worker keeps what rounding took from its gradient, and adds it to its next
one: Seide, Fu, Droppo, Li and Yu, "1-Bit Stochastic Gradient Descent", Interspeech 2014;
Karimireddy, Rebjock, Stich and Jaggi, "Error Feedback Fixes SignSGD and other Gradient Compression
Schemes", ICML 2019.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import torch
from torch import nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.functional import pad
from torch.optim import SGD

from collectives.algorithms import build
from collectives.engine.codec import rounded
from collectives.rounding import total
from collectives_book.digits import shard
from collectives_book.rounded_training.comparison import Variant
from collectives_book.rounded_training.models import Batch, Task, loss

# Elements that share a scale in a codec. Buffers are padded so that each chunk is a number of whole
# blocks.
BLOCK = 32

Mean = Callable[[torch.Tensor], torch.Tensor]
Feed = Callable[[str, torch.Tensor, torch.Tensor], Batch]


def train(
    task: Task, seed: int, variant: Variant, p: int, feed: Feed | None = None
) -> tuple[list[float], nn.Module]:
    """Train p workers.

    Return the loss of each step, on its whole batch before the step, and the model.

    Raises ValueError where a batch cannot be cut into p shards of one size. Cost: on one core about
    10 ms a step of the perceptron and 50 ms of the transformer.

    >>> from collectives_book.rounded_training.models import TASKS
    >>> losses, _ = train(TASKS["perceptron"]._replace(steps=20), 0, Variant("ring", "bfloat16"), 8)
    >>> losses[-1] < losses[0]
    True
    """
    model = task.model(seed)
    parameters = [*model.parameters()]
    sizes = [parameter.numel() for parameter in parameters]
    optimizer = SGD(parameters, lr=task.rate, momentum=task.momentum)
    mean, losses = averaging(variant, p, feed or fed_back), []
    for batch in islice(task.batches(seed), task.steps):
        each, gradients = of_shards(model, batch, p)
        for parameter, part in zip(parameters, torch.split(mean(gradients), sizes), strict=True):
            parameter.grad = part.view_as(parameter)
        optimizer.step()
        losses.append(float(each.mean()))
    return losses, model


def of_shards(model: nn.Module, batch: Batch, p: int) -> Batch:
    """Return the loss of each of p shards, of shape (p,), and its gradient, (p, parameters)."""
    if len(batch[0]) % p:
        raise ValueError(
            f"samples of a batch on {p} workers: got {len(batch[0])}, expected a multiple of {p}"
        )
    which = torch.stack([shard(torch.arange(len(batch[0])), rank, p) for rank in range(p)])
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}

    def of_one(
        weights: dict[str, torch.Tensor], inputs: torch.Tensor, targets: torch.Tensor
    ) -> torch.Tensor:
        return loss(functional_call(model, weights, (inputs,)), targets)

    found = vmap(grad_and_value(of_one), in_dims=(None, 0, 0))(
        weights, batch[0][which], batch[1][which]
    )
    gradients: dict[str, torch.Tensor] = found[0]
    return found[1], torch.cat([gradient.flatten(1) for gradient in gradients.values()], dim=1)


def fed_back(codec: str, gradients: torch.Tensor, residual: torch.Tensor) -> Batch:
    """Return what workers send for their gradients and their residuals, and the residuals that remain.

    Sent and kept add up to what there was, exactly: the values of a codec are near enough for their
    difference to be a float32.
    """
    wanted = gradients + residual
    sent = rounded(codec, wanted.flatten()).view_as(wanted)
    return sent, wanted - sent


def averaging(variant: Variant, p: int, feed: Feed = fed_back) -> Mean:
    """Return a function from the gradients of p workers, (p, n), to their mean as the workers compute it, (n,).

    It remembers what each worker keeps back. Raises ValueError for an algorithm, a codec or a dtype
    that is unknown.
    """
    schedule, residual = build("all_reduce", variant.algorithm, p), torch.zeros(1)

    def mean(gradients: torch.Tensor) -> torch.Tensor:
        nonlocal residual
        n = gradients.shape[1]
        sent = pad(gradients, (0, -n % (BLOCK * schedule.k)))
        if variant.feedback:
            sent, residual = feed(variant.codec, sent, residual)
        return torch.from_numpy(total(schedule, sent.numpy(), variant.dtype))[:n] / p

    return mean

"""Data-parallel training in plain torch.distributed, with one all-reduce in each step.

    torchrun --standalone --nproc-per-node 4 examples/data_parallel.py

Prints every tenth loss, which is the same for any number of ranks but for rounding.
"""

import torch
from torch import distributed as dist
from torch.nn.functional import cross_entropy

from collectives_book.digits import batches, digits, perceptron

STEPS, BATCH = 50, 128


def main() -> None:
    dist.init_process_group("gloo")  # "nccl" on GPUs
    rank, p = dist.get_rank(), dist.get_world_size()
    samples, _ = digits()
    model = perceptron()  # the same parameters on every rank
    weights = list(model.parameters())
    optimizer = torch.optim.SGD(weights, lr=0.1, momentum=0.9)

    for step, batch in zip(range(STEPS), batches(len(samples.labels), BATCH), strict=False):
        images, labels = samples.take(batch.tensor_split(p)[rank])  # this rank's part
        loss = cross_entropy(model(images), labels, reduction="sum") / len(batch)
        gradients = torch.autograd.grad(loss, weights)

        buffer = torch.cat([each.flatten() for each in (*gradients, loss.detach())])
        dist.all_reduce(buffer)  # the sum over all ranks

        *sums, total = buffer.split([each.numel() for each in (*gradients, loss)])
        for weight, summed in zip(weights, sums, strict=True):
            weight.grad = summed.view_as(weight)
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step}: loss {total.item():.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

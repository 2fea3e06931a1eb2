"""The data of the training chapters, 1,797 images of digits, in batches.

And their model, a small perceptron.

The images come with scikit-learn: handwritten digits of 8 x 8 pixels, a test set of the UCI Machine
Learning Repository (Alpaydin and Kaynak, 1998). Nothing is downloaded. The file is read as it is,
because ``import sklearn.datasets`` would cost every rank as much time as ``import torch``.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

FILE = "sklearn/datasets/data/digits.csv.gz"

CLASSES = 10
PIXELS = 64
# Images to learn from; the others, 297 of them, say how well that went.
LEARNED = 1500
# Units of each hidden layer of the model.
WIDTH = 128


class Samples(NamedTuple):
    """Images, one a row with a value from 0 to 1 for each pixel, and the digit on each."""

    images: torch.Tensor
    labels: torch.Tensor

    def take(self, which: torch.Tensor) -> Samples:
        """Return the samples with these numbers."""
        return Samples(self.images[which], self.labels[which])

    def to(self, device: torch.device) -> Samples:
        """Return the samples on a device."""
        return Samples(self.images.to(device), self.labels.to(device))


def digits() -> tuple[Samples, Samples]:
    """Return the samples to learn from and those to test with, in an order that is mixed and always the same.

    Raises ImportError, with what to install, where scikit-learn is absent.

    >>> learned, tested = digits()
    >>> learned.images.shape, tested.images.shape, sorted(set(learned.labels.tolist())) == list(range(10))
    (torch.Size([1500, 64]), torch.Size([297, 64]), True)
    """
    try:
        file = str(distribution("scikit-learn").locate_file(FILE))
    except PackageNotFoundError:
        raise ImportError(
            "scikit-learn is not installed; `pip install 'collective-communication[training]'`"
        ) from None
    # 64 pixels from 0 to 16, and the digit.
    rows = torch.from_numpy(np.loadtxt(file, delimiter=",", dtype=np.float32))
    everything = Samples(rows[:, :PIXELS] / 16, rows[:, PIXELS].long())
    mixed = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    return everything.take(mixed[:LEARNED]), everything.take(mixed[LEARNED:])


def batches(count: int, size: int, seed: int = 0, first: int = 0) -> Iterator[torch.Tensor]:
    """Return the numbers of the samples of every batch, without end, from batch ``first``.

    Each epoch has its order.

    Every rank computes the same batches, so no rank has to send them. The last batch of an epoch
    may be smaller.

    >>> [batch.tolist() for batch, _ in zip(batches(5, 2, seed=1), range(3))]
    [[4, 2], [1, 0], [3]]
    """
    per_epoch = -(-count // size)
    epoch, skipped = divmod(first, per_epoch)
    while True:
        order = torch.randperm(
            count, generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch)
        )
        yield from (order[start : start + size] for start in range(skipped * size, count, size))
        epoch = epoch + 1
        skipped = 0


def shard(batch: torch.Tensor, rank: int, ranks: int) -> torch.Tensor:
    """Return a rank's part of a batch.

    Parts differ by at most one sample, and the first ones are larger.

    >>> [shard(torch.arange(7), rank, 3).tolist() for rank in range(3)]
    [[0, 1, 2], [3, 4], [5, 6]]
    """
    return batch.tensor_split(ranks)[rank]


def perceptron(width: int = WIDTH, seed: int = 0) -> nn.Sequential:
    """Return a new model, 64 pixels -> width -> width -> 10 digits.

    The same numbers for the same seed.

    >>> sum(parameter.numel() for parameter in perceptron().parameters())
    26122
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            *(nn.Linear(PIXELS, width), nn.ReLU()),
            *(nn.Linear(width, width), nn.ReLU()),
            nn.Linear(width, CLASSES),
        )


def accuracy(model: nn.Module, samples: Samples) -> float:
    """Return the share of the samples whose digit the model reads right."""
    with torch.no_grad():
        return float((model(samples.images).argmax(dim=1) == samples.labels).float().mean())

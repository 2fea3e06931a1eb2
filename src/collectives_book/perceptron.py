"""The model that the training chapters train: a perceptron with two hidden layers, which reads handwritten digits."""

from __future__ import annotations

import torch
from torch import nn

from collectives_book.digits import CLASSES, PIXELS, Samples

WIDTH = 128


def perceptron(width: int = WIDTH, seed: int = 0) -> nn.Sequential:
    """A new model, 64 pixels -> width -> width -> 10 digits; the same numbers for the same seed.

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
    """Share of the samples whose digit the model reads right."""
    with torch.no_grad():
        return float((model(samples.images).argmax(dim=1) == samples.labels).float().mean())

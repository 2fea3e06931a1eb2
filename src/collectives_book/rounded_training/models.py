"""Models to train: the perceptron that reads digits, and a small transformer that continues Python's help texts.

Both draw their weights and their batches from a seed alone, so that two runs with one seed differ
in nothing but the variant in which gradients are summed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from collectives_book.digits import accuracy, batches, digits, perceptron

# Samples in a batch of digits, and windows of text in a batch of text.
DIGITS, WINDOWS = 128, 64
# Tokens of the text: the printable ones of ASCII, and the line break as the last.
TOKENS = 96
# Length of the context, and the transformer's size.
CONTEXT, WIDTH, HEADS, LAYERS = 32, 48, 4, 2
# The share of the text to learn from; the rest says how well that went.
LEARNED = 0.9

Batch = tuple[torch.Tensor, torch.Tensor]


class Task(NamedTuple):
    """A model for a seed, its batches without end, what says how good it is, and how it is trained."""

    model: Callable[[int], nn.Module]
    batches: Callable[[int], Iterator[Batch]]
    quality: Callable[[nn.Module], float]
    steps: int
    rate: float
    momentum: float = 0.9


def of_digits(seed: int) -> Iterator[Batch]:
    """Yield batches of images and their digits, all of one size.

    The last images of an epoch are left out.

    >>> [images.shape[0] for (images, _), _ in zip(of_digits(0), range(12))] == [DIGITS] * 12
    True
    """
    learned = digits()[0]
    whole = len(learned.labels) // DIGITS * DIGITS
    for which in batches(whole, DIGITS, seed):
        yield learned.images[which], learned.labels[which]


@cache
def text() -> tuple[torch.Tensor, torch.Tensor]:
    """Return Python's help texts as numbers of characters, to learn from and to test with, without other characters.

    The texts come with Python (``pydoc_data.topics``), in the order of their names; another Python
    has others.

    >>> learned, tested = text()
    >>> len(learned) > 8 * len(tested) > 200_000, "".join(chr(32 + symbol) for symbol in learned[4:22])
    (True, '"assert" statement')
    """
    from pydoc_data.topics import topics

    letters = "\n".join(topics[name] for name in sorted(topics)).encode("ascii", "ignore")
    codes = np.frombuffer(letters.replace(b"\n", b"\x7f"), np.uint8)
    symbols = torch.from_numpy(codes[codes >= 32].astype(np.int64) - 32)
    held_out = round(len(symbols) * LEARNED)
    return symbols[:held_out], symbols[held_out:]


def of_text(seed: int) -> Iterator[Batch]:
    """Yield batches of windows at random places in the text, and of the same windows one symbol further on."""
    learned, places = text()[0], torch.Generator().manual_seed(seed)
    while True:
        yield _windows(learned, torch.randint(len(learned) - CONTEXT, (WINDOWS,), generator=places))


def _windows(symbols: torch.Tensor, starts: torch.Tensor) -> Batch:
    at = starts[:, None] + torch.arange(CONTEXT)
    return symbols[at], symbols[at + 1]


class Block(nn.Module):
    """A layer of the transformer: causal self-attention, then a perceptron, both with layer norm and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.projection = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the output for input of shape (windows, CONTEXT, WIDTH)."""
        qkv = self.qkv(self.norm1(hidden)).unflatten(-1, (3, HEADS, WIDTH // HEADS))
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mask = torch.full((CONTEXT, CONTEXT), float("-inf")).triu(1)
        weights = (query @ key.transpose(-1, -2) / (WIDTH // HEADS) ** 0.5 + mask).softmax(-1)
        hidden = hidden + self.projection((weights @ value).transpose(1, 2).flatten(2))
        output: torch.Tensor = hidden + self.mlp(self.norm2(hidden))
        return output


class Transformer(nn.Module):
    """Tokens, (windows, CONTEXT), to logits of each next token, (windows, CONTEXT, TOKENS)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, WIDTH)
        self.positions = nn.Parameter(0.02 * torch.randn(CONTEXT, WIDTH))
        self.layers = nn.Sequential(
            *(Block() for _ in range(LAYERS)), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, TOKENS)
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits; those of a position depend on the tokens up to it."""
        logits: torch.Tensor = self.layers(self.embedding(tokens) + self.positions)
        return logits


def transformer(seed: int) -> nn.Module:
    """Make a model; the same numbers for the same seed.

    >>> sum(parameter.numel() for parameter in transformer(0).parameters())
    67488
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Transformer()


def loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean cross entropy of logits and target classes."""
    return cross_entropy(logits.flatten(0, -2), targets.flatten())


def held_out_loss(model: nn.Module) -> float:
    """Return the loss on the text that was not learned from, in windows side by side."""
    tested = text()[1]
    symbols, following = _windows(tested, torch.arange(0, len(tested) - CONTEXT, CONTEXT))
    with torch.no_grad():
        return float(loss(model(symbols), following))


TASKS = {
    "perceptron": Task(
        partial(perceptron, 128),
        of_digits,
        lambda model: accuracy(model, digits()[1]),
        steps=150,
        rate=0.1,
    ),
    "transformer": Task(transformer, of_text, held_out_loss, steps=250, rate=0.3),
}

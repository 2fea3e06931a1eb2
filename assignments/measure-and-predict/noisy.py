"""A network whose messages take a few per cent more or less, and some many times as long.

The same in every run.
"""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from collectives_course.world import Post, Rank, World


@dataclass
class Noisy(World):
    """A network on which a message takes a few per cent more or less, and now and then many times as long."""

    seed: int = 0
    peer: int = 1
    counted: Counter[tuple[int, int]] = field(default_factory=Counter)
    times: float = 1.0

    def cost(self, size: int) -> float:
        """Seconds of the message that is being moved."""
        return super().cost(size) * self.times

    def _move(self, post: Post, src: Rank, receiver: Rank) -> None:
        """Noise depends on the pair and on how many messages it has sent, so that it is the same in every run."""
        pair = (post.src, post.dst)
        self.counted[pair] += 1
        random = np.random.default_rng([self.seed, *pair, self.counted[pair]])
        self.times = 1 + 0.03 * float(np.clip(random.standard_normal(), -3, 3))
        if random.random() < 0.05:
            self.times *= float(random.uniform(3, 20))
        if set(pair) != {0, self.peer}:
            self.times *= 3  # another link
        super()._move(post, src, receiver)
        self.times = 1.0

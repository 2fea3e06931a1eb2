"""The claims of the lecture slides on distributed training."""

from __future__ import annotations

import numpy as np

from collectives.interpret import run
from collectives.traffic import traffic
from collectives_book.claims import checks
from collectives_book.claims.baidu import faster, measured
from collectives_book.claims.checks import schedule, sent
from collectives_book.claims.ledger import AT_LEAST, AT_MOST, EQUAL, Claim, Excluded, Given, Source, within
from collectives_book.needs import H100, MODELS, state_bytes

DATA = "data-parallel-training"

# A batch is still as good as the smallest where its median accuracy is at most this much lower.
LOST = 0.03


def shards(samples: int, p: int) -> tuple[int, ...]:
    """How this library divides a batch."""
    return tuple(np.diff(schedule("ring", p).cut(samples)).tolist())


def weights(samples: int, p: int) -> tuple[float, ...]:
    """What a sample counts in a mean of the shards' means, over what it counts in the batch's mean; by shard."""
    return tuple(samples / (p * each) for each in shards(samples, p))


def lost(batches: tuple[int, ...]) -> float:
    """The most accuracy that a batch costs after the same samples, with the better rule for the rate."""
    rows = checks.rows("reference/slow-motion/data-parallel")
    by = rows[rows.part == "rates"].groupby(["rule", "batch"]).accuracy.median().groupby("batch").max()
    return float(by[min(by.index)] - min(by[batch] for batch in batches))


def step_over_alone(column: str) -> float:
    """A step on four workers over one on one worker: with the all-reduce, or without it."""
    return float(getattr(measured(1, 4), column) / getattr(measured(1, 1), column))


def product_by_shards() -> bool:
    """Whether the shards' rows of X W + b are the batch's, on numbers."""
    x, w, b = np.arange(64.0).reshape(16, 4), np.arange(12.0).reshape(4, 3), np.arange(3.0)
    return bool((np.concatenate([part @ w + b for part in np.split(x, 4)]) == x @ w + b).all())


def exchanged() -> tuple[str, ...]:
    """What the four ranks have after an all-to-all, where rank A starts with A0 to A3."""
    chunks = np.array([f"{letter}{to}" for letter in "ABCD" for to in range(4)], dtype=object)
    held = run(schedule("pairwise", 4, collective="all_to_all"), np.tile(chunks, (4, 1)))
    return tuple(" ".join(held[rank, rank::4]) for rank in range(4))


def same_order(algorithms: tuple[str, ...]) -> bool:
    """Whether all-reduces on 64 ranks have the same order by the busiest rank's messages and by its bytes."""
    schedules = [schedule(name, 64) for name in algorithms]
    by_messages = np.argsort([int(traffic(each, each.k).messages_sent.max()) for each in schedules], kind="stable")
    by_bytes = np.argsort([max(sent(each)) for each in schedules], kind="stable")
    return bool((by_messages == by_bytes).all())


# fmt: off
ENTRIES: tuple[Claim | Excluded, ...] = (
    Excluded(
        "1 2 4 6 8 9 10 11 12 13 14", "CS 181AI Lecture 21", "Lecture, assignment and dates.", "the course's calendar",
    ),
    Excluded(
        "18 21 25", "working together on one training", "Several GPUs work on one training job.", "defines a term",
    ),
    Excluded(
        "19", "more than one GPU", "Why use more than one GPU?", "a question, which the next slides answer",
    ),
    Claim(
        "23 28", "too large for a single", "A model can be too large for a single GPU.", 1,
        lambda: sum(state_bytes(model.parameters) > H100.memory for model in MODELS), AT_LEAST,
        f"Of {len(MODELS)} models in this book, {{}} have a state that exceeds the memory of one H100.",
        "why-many-gpus",
    ),
    Claim(
        "27", "Running a single batch across", "A single batch across several GPUs lowers the time of a training run.",
        1.0, lambda: faster(8, 1), AT_LEAST, "Measured: eight workers have {} times the throughput of one.", DATA,
    ),
    Excluded(
        "41", "Inputs = 1 batch", "The inputs of a step are one batch.", "defines a term",
    ),
    Claim(
        "43 46", "Higher batch size = faster",
        "A larger batch trains faster. (As a rule: it loses no accuracy for the same samples.)", LOST,
        lambda: lost((1024,)), AT_MOST, "Measured with digits: a batch of 1,024 instead of 32 loses {} of accuracy.",
        DATA, Given("the batch is not too large (256 at most for this model)", lambda: lost((64, 128, 256))),
        note=f"At most {100 * LOST:.0f} points count as no loss. A larger batch has fewer steps and learns less.",
        form=lambda share: f"{100 * float(str(share)):.1f} points".replace("-", "−"),
    ),
    Claim(
        "49", "batch_size per GPU * num_GPUs", "The batch is the batch of one GPU times the number of GPUs.",
        (16, 32, 64, 128), lambda: tuple(sum(shards(16 * p, p)) for p in (1, 2, 4, 8)), EQUAL,
        "Shards of 16 on 1, 2, 4 and 8 ranks add up to {}.", DATA,
    ),
    Excluded(
        "50", "about data parallelism across 4", "Which of three statements is true?", "a question",
    ),
    Excluded(
        "51.1 51.2", "time per epoch remains about", "The first answer to choose from.",
        "an answer that the next slides do not choose",
    ),
    Claim(
        "52.1", "number of batches per epoch", "Four GPUs need a quarter of the batches for an epoch.", 4,
        lambda: (128 // 16) / (128 // sum(shards(64, 4))), EQUAL, "128 samples: {} times fewer batches.", DATA,
    ),
    Claim(
        "52.2 52.3", "overall training time decreases",
        "Time per epoch and in all fall by a factor of 4 on four GPUs.", 4.0,
        lambda: 4 / step_over_alone("step_median_us"), within(0.05),
        "Measured on emulated hosts, with Baidu's model: by a factor of {}.", DATA,
        Given("the all-reduce takes no time", lambda: 4 / step_over_alone("nothing_median_us")),
        note="That is what hiding communication is for.",
    ),
    Excluded(
        "53.1 53.2 53.3", "time per batch decreases by", "The third answer to choose from.",
        "an answer that the next slides do not choose; it is true where the whole batch keeps its size",
    ),
    Excluded(
        "54 55 56 62", "Suppose batch size = 16", "16 samples a GPU, 128 in all.", "an assumption",
    ),
    Claim(
        "57", "8 batches of 16 =", "Eight batches of 16 are 128 samples.", 128, lambda: sum(shards(128, 8)), EQUAL,
        "{} samples.", DATA,
    ),
    Claim(
        "58 59 60 61", "GPU 0 16 16", "Four GPUs have 16 samples each of both batches.", (16, 16, 16, 16),
        lambda: shards(64, 4), EQUAL, "The library's shards of a batch of 64: {}.", DATA,
    ),
    Claim(
        "63", "2 batches of 16*4", "Two batches of 16 · 4 are 128 samples.", 128, lambda: 2 * sum(shards(64, 4)),
        EQUAL, "{} samples.", DATA,
    ),
    Claim(
        "64", "Time per batch is similar", "The time per batch stays similar. (The slide has an asterisk.)", 1.0,
        lambda: step_over_alone("step_median_us"), within(0.1),
        "Measured, a step on four workers over one on one: {}.", DATA,
        Given("the all-reduce takes no time", lambda: step_over_alone("nothing_median_us")),
    ),
    Claim(
        "69", "X^*W + b", "A layer computes X W + b; so each GPU can have some rows of X.", True, product_by_shards,
        EQUAL, "In numbers, four shards one below the other are the batch's result: {}.", DATA,
    ),
    Claim(
        "74", "Gradients are averaged and result",
        "Each GPU has its own mean gradient, and their average is the batch's.", (1.0,) * 8, lambda: weights(92, 8),
        EQUAL, "92 samples on eight ranks: a sample counts {} times what it should.", DATA,
        Given("all shards have the same size", lambda: weights(96, 8)), form=checks.ends,
    ),
    Claim(
        "85 86 87 88", "A1 B1 C1 D1", "After an all-to-all, GPU i has part i of everyone.",
        ("A0 B0 C0 D0", "A1 B1 C1 D1", "A2 B2 C2 D2", "A3 B3 C3 D3"), exchanged, EQUAL, "Run on labels: {}.",
        "all-to-all",
    ),
    Claim(
        "92", "to a single array that", "An all-reduce leaves one and the same array on every worker.", True,
        lambda: checks.all_proved((4,)), EQUAL, "`verify`, all all-reduces of this book on four ranks: {}.", "trust",
    ),
    Claim(
        "95", "Bandwidth (number of messages)",
        "The number of messages measures the bandwidth that an all-reduce needs.", True,
        lambda: same_order(("ring", "recursive_doubling")), EQUAL,
        "On 64 ranks, ring and recursive doubling have the same order by messages and by bytes: {}.", "cost-model",
        Given("every message carries the whole buffer", lambda: same_order(("root", "recursive_doubling"))),
        note="The ring sends many small messages, recursive doubling few large ones.",
    ),
)

LINES = (
    1, 2, 4, 6, *range(8, 15), 18, 19, 21, 23, 25, 27, 28, 41, 43, 46, 49, 50, *range(54, 65), 69, 74, *range(85, 89),
    92, 95,
)
SOURCE = Source(
    "Lecture", "padmanabhan2023", "line",
    {str(line): 1 for line in LINES} | {"51": 2, "52": 3, "53": 3},
    ENTRIES,
)
# fmt: on

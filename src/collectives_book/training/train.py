"""Data parallelism by hand: every rank has a replica of the model, and one all-reduce a step keeps them equal.

Each replica computes the gradient of its shard of the batch. The sum over all replicas is the
gradient of the whole batch, so every replica takes the step that one process with the whole batch
would take.
"""

from __future__ import annotations

from itertools import islice

from collectives_book.digits import batches, digits
from collectives_book.training.checkpoint import resume, save
from collectives_book.training.replicas import Replicas
from collectives_book.training.step import State, Step, Training, begin, step


def train(
    training: Training,
    replicas: Replicas,
    take_step: Step = step,
    *,
    file: str | None = None,
    every: int = 10,
) -> State:
    """Train a replica; every rank calls it alike, and ends with the same model.

    With a ``file``, rank 0 writes a checkpoint whenever ``every`` steps are done, and after the
    last one. A run that finds one resumes from it, also on another number of ranks. Raises
    ValueError if the checkpoint was made with other parameters; only ``steps`` may differ.

    >>> from collectives_book.training.replicas import alone
    >>> losses = train(Training(steps=20), alone()).losses
    >>> losses[-1] < losses[0]
    True
    """
    learned = digits()[0].to(replicas.device)
    state = begin(training, replicas)
    if file:
        resume(state, training, replicas, file)
    first = len(state.losses)
    rest = batches(len(learned.labels), training.batch, training.seed, first)
    for done, which in enumerate(islice(rest, training.steps - first), first + 1):
        state.losses.append(take_step(state, learned.take(which), replicas))
        if file and replicas.rank == 0 and (done % every == 0 or done == training.steps):
            save(state, training, file)
    return state

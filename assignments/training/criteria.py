"""Hidden tests of the training: equal to one process.

Its collectives counted, and their exposed time simulated.
"""

from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from collectives_course.submission import Criterion, Submission
from collectives_course.training import (
    MLP,
    Shard,
    TrainingResult,
    TrainingWorld,
    exposed,
    greedy,
    random_model,
    random_shard,
    timeline,
)
from collectives_course.verdict import EndedError, Failed
from collectives_course.world import Network

SECONDS = 1e-3
ALPHA = 2e-5
NEAR, LOOSE = 1e-9, 1e-5  # float32 on the wire costs the criteria steps and bytes, and no other
PLAYED: dict[tuple[Path, int], tuple[TrainingResult, list[float]] | EndedError] = {}


def variant(seed: int) -> dict[str, Any]:
    """The widths of the layers, which of them takes four times as long, and the size of a bucket."""
    random = np.random.default_rng([seed, 4])
    inputs, same, before, outputs = (
        int(random.integers(*each)) for each in ((5, 9), (11, 15), (7, 11), (3, 6))
    )
    slow = int(random.integers(1, 3))
    widths = [inputs, same, same, same, before, before + 6, outputs]
    return {
        "widths": widths,
        "slow": slow,
        "bucket_bytes": 8 * int(random.integers(same**2 + 20, same**2 + 60)),
    }


def _model(submission: Submission, steps: int = 1) -> MLP:
    """A model with weights drawn at random."""
    given = submission.variant
    seconds = [
        SECONDS * (4 if layer == given["slow"] else 1) for layer in range(len(given["widths"]) - 1)
    ]
    return random_model(submission.random, given["widths"], seconds, steps)


def _shards(submission: Submission, model: MLP, sizes: tuple[int, ...]) -> list[Shard]:
    """Samples for each rank, as many as asked for."""
    return [random_shard(submission.random, model, samples) for samples in sizes]


def _train(
    submission: Submission,
    models: list[MLP],
    steps: list[list[Shard]],
    rate: float = 1.0,
    network: Network | None = None,
) -> TrainingResult:
    """Run the submission: ``models`` are the ranks' at the start, ``steps`` the shards of each step."""
    arguments = []
    for rank, model in enumerate(models):
        batches = [
            [s[rank].x, s[rank].y, sum(len(each.x) for each in s), list(s[rank].skip)]
            for s in steps
        ]
        given = {name: getattr(model, name) for name in ("widths", "parameters", "frozen", "tied")}
        arguments.append([given, batches, submission.variant["bucket_bytes"], rate])
    todo = [model.computations([s[rank].skip for s in steps]) for rank, model in enumerate(models)]
    played = submission.run("run", arguments, network, TrainingWorld, computations=todo)
    for rank, (value, model) in enumerate(zip(played.values, models, strict=True)):
        found = [each for each in value if _is_floats(each)] if isinstance(value, list) else []
        if [each.shape for each in found] != [each.shape for each in model.parameters]:
            raise Failed(
                f"run: rank {rank} returned no parameters; the starter's run returns model.numbers()"
            )
    return played


def _is_floats(value: object) -> bool:
    """Tell if a value is an array of floats."""
    return isinstance(value, np.ndarray) and value.dtype.kind == "f"


@np.errstate(all="ignore")
def _factor(change: list[Any], slope: list[Any], where: str, names: list[str]) -> float:
    """By which factor a rank's change is the gradient's.

    Raises Failed where no factor is right for all parameters.
    """
    flat, wanted = (
        np.concatenate([each.ravel() for each in change]),
        np.concatenate([each.ravel() for each in slope]),
    )
    if not np.isfinite(flat).all():
        raise Failed(
            f"{where} has parameters that are not finite; a rank without samples divides by zero?"
        )
    factor = float(flat @ wanted / (wanted @ wanted))
    if not flat.any():
        raise Failed(f"{where} has changed no parameter")
    for name, got, right in zip(names, change, slope, strict=True):
        wrong = np.flatnonzero(np.abs(got - factor * right) > LOOSE * np.abs(flat).max())
        if wrong.size:
            found, expected = float(got.ravel()[wrong[0]]), float(factor * right.ravel()[wrong[0]])
            at = f"element {wrong[0]}: got {found!r}, expected {expected!r}"
            raise Failed(
                f"{where} changes {name} by another gradient than that of the whole batch: {at}"
            )
    return factor


def _one_step(
    submission: Submission,
    model: MLP,
    shards: list[Shard],
    starts: list[MLP] | None = None,
    **network: Any,
) -> tuple[TrainingResult, list[float]]:
    """One step, and each rank's factor of its gradient: what is counted or timed has to be right, but for a factor."""
    played = _train(
        submission, starts or [model] * len(shards), [shards], network=Network(**network)
    )
    slope, factors = model.gradient(0, shards), []
    for rank, found in enumerate(played.values):
        change = [before - after for before, after in zip(model.parameters, found, strict=True)]
        factors.append(_factor(change, slope, f"p = {len(shards)}: rank {rank}", model.names))
    _need_collectives(played, len(shards), sum(each.nbytes for each in slope if each.any()) // 2)
    return played, factors


def _need_collectives(played: TrainingResult, p: int, least: int) -> None:
    """Raise Failed if the collectives carried less than the result needs: the rest came from somewhere else."""
    carried = sum(each.bytes for each in played.collectives)
    if p > 1 and carried < least:
        raise Failed(
            f"the collectives carried {carried:,} bytes, expected at least {least:,}: all data by comm"
        )


def slow_network(model: MLP) -> Network:
    """Sending all gradients takes 60% of the backward pass."""
    return Network(ALPHA, 0.6 * sum(model.seconds) / sum(model.sizes))


def _even(submission: Submission, p: int = 2) -> tuple[MLP, TrainingResult, list[float]]:
    """One step of p ranks, each with three samples, on a slow network.

    What came of it, and each rank's factor.

    Several criteria look at it. It is played once, because starting a rank with torch takes
    seconds.
    """
    model = _model(submission)
    network, key = slow_network(model), (submission.folder, p)
    if key not in PLAYED:
        shards = _shards(submission, model, (3,) * p)
        try:
            PLAYED[key] = _one_step(
                submission, model, shards, alpha=network.alpha, beta=network.beta
            )
        except EndedError as error:
            PLAYED[key] = error
    found = PLAYED[key]
    if isinstance(found, EndedError):
        raise found
    return model, *found


def gradients(submission: Submission) -> None:
    """Two ranks with as many samples each."""
    _even(submission)


def any_ranks(submission: Submission) -> None:
    """Also one rank, which has nobody to ask."""
    for p in (1, 3, 4):
        _even(submission, p)


def average(submission: Submission) -> None:
    """Compare the length of the gradient with that of the whole batch."""
    for p in (2, 3, 4):
        _, _, factors = _even(submission, p)
        for rank, factor in enumerate(factors):
            if abs(factor - 1) > LOOSE:
                hint = (
                    ": the sum over the ranks, not their average" if abs(factor - p) < LOOSE else ""
                )
                what = f"p = {p}: the gradient of rank {rank} is {factor:.4g} times that of the whole batch's mean loss"
                raise Failed(f"{what}{hint}")


def uneven(submission: Submission) -> None:
    """One rank has no sample at all."""
    model = _model(submission)
    _one_step(submission, model, _shards(submission, model, (5, 0, 2)))


def several_steps(submission: Submission) -> None:
    """Compare the parameters with those of one process after the last step."""
    start = _model(submission, 4)
    _need_equal(
        submission,
        start,
        [_shards(submission, start, sizes) for sizes in ((3, 3), (5, 2), (1, 4), (2, 0))],
    )


@np.errstate(all="ignore")
def _need_equal(
    submission: Submission, start: MLP, batches: list[list[Shard]], within: float = NEAR
) -> None:
    """Raise Failed unless both ranks end where one process does, with the same bits."""
    steps, rate = len(batches), 0.1
    played = _train(submission, [start] * 2, batches, rate)
    model = start
    for step, shards in enumerate(batches):
        model = model.after(step, shards, rate)
    for rank, found in enumerate(played.values):
        for name, got, right in zip(model.names, found, model.parameters, strict=True):
            if not np.allclose(got, right, rtol=0, atol=within):
                off = float(np.abs(got - right).max())
                hint = (
                    ", as much as float32 rounds: keep float64 on the wire" if off < LOOSE else ""
                )
                raise Failed(
                    f"{steps} steps: rank {rank}: {name} differs from one process by up to {off:.3g}{hint}"
                )
    for name, *values in zip(model.names, *played.values, strict=True):
        if values[0].tobytes() != values[1].tobytes():
            raise Failed(f"{steps} steps: {name} has other bits on rank 1 than on rank 0")
    _need_collectives(played, 2, steps * sum(start.sizes) // 2)  # in float32 perhaps


def broadcast(submission: Submission) -> None:
    """A frozen layer, too: its parameters do not change, but ranks that differ there compute other gradients."""
    model, other = replace(_model(submission), frozen=(3,)), _model(submission)
    starts = [model, replace(model, parameters=other.parameters)]
    played, _ = _one_step(submission, model, _shards(submission, model, (3, 3)), starts)
    # Parameters, then gradients, in float32 perhaps.
    _need_collectives(played, 2, 3 * sum(model.sizes) // 2)


def _in_float64(played: TrainingResult) -> list[int]:
    """The bytes of each all_reduce, if its numbers were float64."""
    return [8 * each.size for each in played.reduced]


def in_buckets(submission: Submission) -> None:
    """Count all_reduces and the elements of each."""
    most = submission.variant["bucket_bytes"]
    model, played, _ = _even(submission)
    sent = _in_float64(played)
    largest, allowed = max(sent, default=0), max(most, *model.sizes)
    if largest > allowed:
        raise Failed(
            f"an all_reduce has {largest:,} bytes, expected at most {allowed:,}: bucket_bytes is {most:,}"
        )
    expected = len(greedy(model.sizes, most)) * max(1, round(sum(sent) / sum(model.sizes)))
    if len(sent) > expected:
        raise Failed(
            f"a step has {len(sent)} all_reduces, expected {expected}: fill a bucket before you begin the next"
        )
    for sizes, limit in (([50, 10, 40, 30, 200], 100), ([8] * 7, 24), ([10, 30], 20), ([5], 100)):
        got, wanted = repr(submission.call("buckets", sizes, limit)), repr(greedy(sizes, limit))
        if got != wanted:
            raise Failed(
                f"buckets({sizes}, {limit}): got {got[:200]}, expected {wanted}", share=0.5
            )


def volume(submission: Submission) -> None:
    """Count the bytes of all gradients."""
    model, played, _ = _even(submission)
    found, expected = sum(each.bytes for each in played.reduced), sum(model.sizes)
    if found != expected:
        dtypes = sorted({np.dtype(each.dtype).name for each in played.reduced} - {"float64"})
        times = f"{found / expected:.2f} times as many{''.join(f', in {each}' for each in dtypes)}"
        raise Failed(
            f"a step reduces {found:,} bytes, expected {expected:,}, each gradient once: {times}"
        )


def order(submission: Submission) -> None:
    """Seen in the sizes: every bucket ends where a parameter does, counted from the last."""
    model, played, _ = _even(submission)
    ends = set(accumulate(reversed(model.sizes)))
    for number, end in enumerate(accumulate(_in_float64(played))):
        if end < sum(model.sizes) and end not in ends:
            raise Failed(
                f"all_reduce {number} of a step ends after {end:,} bytes, where no parameter ends, counted from the "
                "last: the gradients that backward computes first are not those that travel first"
            )


def overlap(submission: Submission) -> None:
    """Compare the simulated seconds of waiting with those that no bucket can hide."""
    model, played, _ = _even(submission)
    network, most = slow_network(model), submission.variant["bucket_bytes"]
    # What is broadcast later belongs to the step.
    begin = min(each.begin for each in played.computed)
    computing = sum(each.seconds for each in model.computations([()]))
    found, limit = played.seconds - begin - computing, 1.1 * exposed(model, network, most)
    if found > limit:
        after = exposed(model, network, sum(model.sizes))
        raise Failed(
            f"a step computes for {computing * 1e3:.2f} ms and then waits {found * 1e3:.2f} ms for communication, "
            f"expected at most {limit * 1e3:.2f} ms; one all_reduce after backward waits {after * 1e3:.2f} ms",
            grid=timeline(played.spans),
        )


def unused(submission: Submission) -> None:
    """Layers that a rank skips have no gradient there, and other ranks wait for its part."""
    for skips in (((), (1,), (1, 2)), ((2,), (2,))):
        model = _model(submission)
        shards = [random_shard(submission.random, model, 3, skip) for skip in skips]
        _one_step(submission, model, shards)
    model = _model(submission, 3)  # a bucket that was not complete in one step is in the next
    each_skips = (((1,), (1, 2)), ((), ()), ((), (2,)))
    batches = [
        [random_shard(submission.random, model, 3, skip) for skip in skips] for skips in each_skips
    ]
    _need_equal(submission, model, batches, LOOSE)


def tied(submission: Submission) -> None:
    """Count what travels: a shared parameter once, a frozen one never."""
    model = _model(submission)
    parameters = [each for index, each in enumerate(model.parameters) if index not in (4, 5)]
    model = replace(model, parameters=tuple(parameters), tied=((2, 1),), frozen=(4,))
    played, _ = _one_step(submission, model, _shards(submission, model, (2, 2)))
    found, expected = sum(_in_float64(played)), sum(model.sizes)
    if found % expected:
        raise Failed(
            f"a step reduces {found:,} bytes, expected {expected:,}, those of the layers that are trained"
        )


CRITERIA = [
    Criterion(
        "gradients",
        10,
        "One step of two ranks goes along the gradient of the whole batch.",
        gradients,
    ),
    Criterion("any-p", 5, "Any number of ranks: 1, 3, 4.", any_ranks),
    Criterion("average", 10, "The average over the ranks, not their sum.", average),
    Criterion("uneven", 10, "Ranks with 5, 0 and 2 samples: every sample counts the same.", uneven),
    Criterion(
        "steps",
        10,
        "Four steps, of batches of other sizes, equal those of one process, with the same bits on both ranks.",
        several_steps,
    ),
    Criterion("broadcast", 10, "All ranks begin with the parameters of rank 0.", broadcast),
    Criterion("buckets", 10, "As few all_reduces as bucket_bytes allows, none larger.", in_buckets),
    Criterion("bytes", 5, "Each gradient travels once.", volume),
    Criterion("order", 5, "The last layer's gradients travel first.", order),
    Criterion("overlap", 15, "Communication goes on while backward computes.", overlap),
    Criterion("unused", 5, "Layers that some ranks skip, or all, and not in each step.", unused),
    Criterion(
        "tied",
        5,
        "Two layers with the same parameters, and a frozen one, whose gradients do not travel.",
        tied,
    ),
]

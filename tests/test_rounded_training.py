"""Training with rounded sums: workers add up to one process, feedback loses nothing, and the rows are all there."""

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch.optim import SGD

from collectives_book.rounded_training import rows
from collectives_book.rounded_training.comparison import (
    BASELINE,
    COLUMNS,
    KEY,
    REORDERED,
    VARIANTS,
    Rows,
    Variant,
    differences,
    read,
)
from collectives_book.rounded_training.models import (
    CONTEXT,
    TASKS,
    TOKENS,
    Batch,
    Task,
    loss,
    transformer,
)
from collectives_book.rounded_training.training import averaging, fed_back, of_shards, train

RING, FED = Variant("ring", "bfloat16"), Variant("two_shot/mxfp4", feedback=1)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Train on one thread, as the rows are made: several take the sums inside a worker in another order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def alone(task: Task, seed: int) -> list[float]:
    """The losses of one process with the whole batch, written as PyTorch's tutorials write it."""
    model = task.model(seed)
    optimizer, losses = SGD(model.parameters(), lr=task.rate, momentum=task.momentum), []
    for inputs, targets in islice(task.batches(seed), task.steps):
        optimizer.zero_grad()
        found = loss(model(inputs), targets)
        found.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(found.detach()))
    return losses


@pytest.mark.integration  # seconds
@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("p", [8, 64])
def test_workers_with_float32_sums_train_as_one_process_does(name: str, p: int) -> None:
    task = TASKS[name]._replace(steps=5)
    assert train(task, 3, BASELINE, p)[0] == pytest.approx(alone(task, 3), abs=1e-5)


def test_the_mean_of_the_shards_gradients_is_the_gradient_of_the_batch() -> None:
    task = TASKS["perceptron"]
    model, batch = task.model(0), next(task.batches(0))
    _, gradients = of_shards(model, batch, 8)
    loss(model(batch[0]), batch[1]).backward()  # type: ignore[no-untyped-call]
    whole = torch.cat(
        [parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None]
    )
    assert torch.allclose(averaging(BASELINE, 8)(gradients), whole, atol=1e-6)
    assert not torch.allclose(gradients[0], whole, atol=1e-3), "a worker's gradient is its shard's"


def test_a_batch_that_cannot_be_shared_evenly_is_refused() -> None:
    batch = torch.zeros(12, 64), torch.zeros(12, dtype=torch.long)
    with pytest.raises(
        ValueError, match="samples of a batch on 8 workers: got 12, expected a multiple of 8"
    ):
        of_shards(TASKS["perceptron"].model(0), batch, 8)


def test_a_rounded_mean_differs_and_is_near() -> None:
    gradients = torch.randn(8, 1000, generator=torch.Generator().manual_seed(0))
    means = {variant: averaging(variant, 8)(gradients) for variant in VARIANTS}
    error = {
        variant: float((mean - gradients.double().mean(0)).norm() / means[BASELINE].norm())
        for variant, mean in means.items()
    }
    assert error[BASELINE] < 1e-6
    assert 0 < error[REORDERED] < 1e-6
    assert all(
        1e-3 < error[variant] < 0.02
        for variant in VARIANTS
        if variant.codec in ("bfloat16", "mxint8")
    ), error
    assert all(0.03 < error[variant] < 0.3 for variant in VARIANTS if variant.codec == "mxfp4"), (
        error
    )


def gradients_of_all_sizes(seed: int) -> torch.Tensor:
    made = torch.Generator().manual_seed(seed)
    return torch.randn(4, 256, generator=made) * 10.0 ** torch.randint(
        -12, 4, (4, 256), generator=made
    )


@pytest.mark.parametrize("codec", ["mxint8", "mxfp8", "mxfp4", "bfloat16", "float16"])
def test_what_is_sent_and_what_is_kept_are_the_gradient_exactly(codec: str) -> None:
    gradients, residual = gradients_of_all_sizes(1).clamp(-6e4, 6e4), torch.zeros(1)
    sent, kept = fed_back(codec, gradients, residual)
    assert torch.equal(sent + kept, gradients)
    assert not torch.equal(sent, gradients)
    again, nothing = fed_back(codec, sent, residual)
    assert torch.equal(again, sent), "what a codec carries it carries unchanged"
    assert not nothing.any()


def backwards(codec: str, gradients: torch.Tensor, residual: torch.Tensor) -> Batch:
    """The planted fault: what was kept back is taken away a second time."""
    sent, kept = fed_back(codec, gradients, residual)
    return sent, -kept


def average_sent(
    feed: Callable[[str, torch.Tensor, torch.Tensor], Batch], steps: int = 200
) -> torch.Tensor:
    """Return what a worker with one gradient sends on average, less the gradient."""
    gradient, residual, total = (
        torch.linspace(-0.03, 1, 32)[None],
        torch.zeros(1),
        torch.zeros(1, 32),
    )
    for _ in range(steps):
        sent, residual = feed("mxfp4", gradient, residual)
        total = total + sent
    return total / steps - gradient


def test_feedback_sends_everything_in_the_end_and_with_the_sign_reversed_it_does_not() -> None:
    assert average_sent(fed_back).abs().max() < 0.01
    assert average_sent(backwards).abs().max() > 0.02


@pytest.mark.integration  # seconds
def test_feedback_with_the_sign_reversed_trains_worse() -> None:
    task = TASKS["perceptron"]._replace(steps=30)
    for seed in range(3):
        right, wrong = (
            sum(train(task, seed, FED, 8, feed)[0][-20:]) / 20 for feed in (fed_back, backwards)
        )
        assert wrong > right + 0.02


def test_scores_do_not_depend_on_later_symbols() -> None:
    symbols = torch.randint(TOKENS, (2, CONTEXT), generator=torch.Generator().manual_seed(0))
    other = symbols.clone()
    other[:, 20:] = (other[:, 20:] + 1) % TOKENS
    first, second = (transformer(0)(each).detach() for each in (symbols, other))
    assert torch.allclose(first[:, :20], second[:, :20], atol=1e-6)
    assert not torch.allclose(first[:, 20:], second[:, 20:], atol=1e-3)


def test_the_committed_table_has_every_training_once() -> None:
    table = read()
    assert [*table[KEY].itertuples(index=False, name=None)] == [case.key for case in rows.cases()]
    for row in table.itertuples():
        assert len(row.curve.split()) == TASKS[row.model].steps / rows.EVERY
        last = [float(value) for value in row.curve.split()[-rows.LAST // rows.EVERY :]]
        assert row.loss == pytest.approx(sum(last) / len(last), abs=1e-5)


@pytest.mark.integration  # seconds
def test_the_committed_table_begins_as_training_does_here() -> None:
    """Another processor may round otherwise: ten steps are few enough for that not to matter."""
    curves = read().set_index(KEY).curve
    for case in rows.cases():
        if case.model == "perceptron" and case.seed == 7:
            first = float(curves[case.key].split()[0])
            assert float(rows.trained(case, steps=10)[-1]) == pytest.approx(first, rel=1e-3)


def test_a_run_that_was_cut_off_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[rows.Case] = []

    def quick(case: rows.Case) -> tuple[object, ...]:
        made.append(case)
        if len(made) == 3:
            raise KeyboardInterrupt
        return *case.key, 0.5, 0.9, "0.5"

    monkeypatch.setattr(rows, "SEEDS", {"perceptron": 1})
    monkeypatch.setattr(rows, "trained", quick)
    table = tmp_path / "new" / "trainings.csv"
    with pytest.raises(KeyboardInterrupt):
        rows.main(table)
    assert not table.exists()
    rows.main(table)
    assert made[:2] + made[3:] == rows.cases()
    assert [path.name for path in table.parent.iterdir()] == ["trainings.csv"]
    assert [*read(table)[KEY].itertuples(index=False, name=None)] == [
        case.key for case in rows.cases()
    ]


def invented(change: Callable[[Variant, int], float]) -> Rows:
    """A table of five seeds, in which a variant adds this to the loss of a seed."""
    trainings = [
        (model, workers, *variant, seed, 2.0 + 0.1 * seed + change(variant, seed), 0.9, "")
        for model in TASKS
        for workers in rows.WORKERS
        for variant in VARIANTS
        for seed in range(5)
    ]
    return pd.DataFrame(trainings, columns=[*COLUMNS])


def test_a_tie_is_called_a_tie() -> None:
    for change in (
        lambda *_: 0.0,
        lambda variant, seed: 0.01 * (-1) ** seed if variant != BASELINE else 0.0,
    ):
        found = differences(invented(change))
        assert len(found) == 2 * 2 * (len(VARIANTS) - 1)
        assert ((found.low <= 0) & (found.high >= 0)).all()


def test_a_variant_that_changes_the_loss_is_found_with_its_change() -> None:
    found = differences(
        invented(lambda variant, seed: 0.22 + 0.001 * seed if variant == FED else 0.0)
    )
    seen = found[(found.low > 0) | (found.high < 0)]
    assert seen[["variant", "model"]].value_counts().to_dict() == {
        (FED.name, model): 2 for model in TASKS
    }
    assert seen["mean"].tolist() == pytest.approx([0.222 / 2.2] * 4)


def test_an_interval_is_student_s_of_the_paired_differences() -> None:
    """Computed by hand, 1, 2, 3 have the mean 2, and 2.4841 either way.

    Seeds themselves differ by more.
    """
    table = invented(lambda variant, seed: seed + 1.0 if variant == RING else 0.0)
    found = differences(table[table.seed < 3])
    (one,) = found[
        (found.variant == RING.name) & (found.model == "perceptron") & (found.workers == 8)
    ].itertuples()
    assert [end * 2.1 for end in (one.low, one.mean, one.high)] == pytest.approx(
        [-0.4841, 2, 4.4841], abs=1e-4
    )
    assert (found[found.variant != RING.name]["mean"] == 0).all()
    against = differences(table, other=RING)
    assert ((against["mean"] < 0) == (against.variant != RING.name)).all()


def test_trainings_without_their_pair_are_refused() -> None:
    table = invented(lambda *_: 0.0)
    alone = (table.algorithm == "ring") & (table.dtype == "bfloat16") & (table.seed == 4)
    with pytest.raises(
        ValueError,
        match=r"trainings of ring bf16: got none of \('perceptron', 8, 4\), expected each",
    ):
        differences(table[~alone])
    with pytest.raises(ValueError, match="seeds for an interval: got 1, expected at least 2"):
        differences(table[table.seed == 0])

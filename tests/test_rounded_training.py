"""Training with rounded sums: workers add up to one process, feedback loses nothing, and the rows are all there."""

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pytest
import torch
from torch.optim import SGD

from collectives_book.rounded_training import comparison, figures, rows
from collectives_book.rounded_training.comparison import difference, differences
from collectives_book.rounded_training.models import CONTEXT, TASKS, TOKENS, Batch, Task, loss, transformer
from collectives_book.rounded_training.table import Trained, read
from collectives_book.rounded_training.training import averaging, fed_back, of_shards, train
from collectives_book.rounded_training.variants import BASELINE, REORDERED, VARIANTS, Variant

RING, FED = Variant("ring", "bfloat16"), Variant("parameter_server/mxfp4", feedback=True)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """As the rows are made: on several threads sums inside a worker are taken in another order."""
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
    whole = torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])
    assert torch.allclose(averaging(BASELINE, 8)(gradients), whole, atol=1e-6)
    assert not torch.allclose(gradients[0], whole, atol=1e-3), "a worker's gradient is its shard's"


def test_a_batch_that_cannot_be_shared_evenly_is_refused() -> None:
    batch = torch.zeros(12, 64), torch.zeros(12, dtype=torch.long)
    with pytest.raises(ValueError, match="samples of a batch on 8 workers: got 12, expected a multiple of 8"):
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
    assert all(1e-3 < error[variant] < 0.02 for variant in VARIANTS if variant.wire in ("bfloat16", "mxint8")), error
    assert all(0.03 < error[variant] < 0.3 for variant in VARIANTS if variant.wire == "mxfp4"), error


def gradients_of_all_sizes(seed: int) -> torch.Tensor:
    made = torch.Generator().manual_seed(seed)
    return torch.randn(4, 256, generator=made) * 10.0 ** torch.randint(-12, 4, (4, 256), generator=made)


@pytest.mark.parametrize("wire", ["mxint8", "mxfp8", "mxfp4", "bfloat16", "float16"])
def test_what_is_sent_and_what_is_kept_are_the_gradient_exactly(wire: str) -> None:
    gradients, residual = gradients_of_all_sizes(1).clamp(-6e4, 6e4), torch.zeros(1)
    sent, kept = fed_back(wire, gradients, residual)
    assert torch.equal(sent + kept, gradients)
    assert not torch.equal(sent, gradients)
    again, nothing = fed_back(wire, sent, residual)
    assert torch.equal(again, sent), "what a wire carries it carries unchanged"
    assert not nothing.any()


def backwards(wire: str, gradients: torch.Tensor, residual: torch.Tensor) -> Batch:
    """The planted fault: what was kept back is taken away a second time."""
    sent, kept = fed_back(wire, gradients, residual)
    return sent, -kept


def average_sent(feed: Callable[[str, torch.Tensor, torch.Tensor], Batch], steps: int = 200) -> torch.Tensor:
    """What a worker with one gradient sends on average."""
    gradient, residual, total = torch.linspace(-0.03, 1, 32)[None], torch.zeros(1), torch.zeros(1, 32)
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
        right, wrong = (sum(train(task, seed, FED, 8, feed)[0][-20:]) / 20 for feed in (fed_back, backwards))
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
    assert rows.missing(table) == []
    assert len(table) == len([*rows.cases()]) == len({row[:6] for row in table})
    for row in table:
        assert len(row.curve.split()) == TASKS[row.model].steps / rows.EVERY
        last = [float(value) for value in row.curve.split()[-rows.LAST // rows.EVERY :]]
        assert row.loss == pytest.approx(sum(last) / len(last), abs=1e-5)


@pytest.mark.integration  # seconds
def test_the_committed_table_begins_as_training_does_here() -> None:
    """Another processor may round otherwise: ten steps are few enough for that not to matter."""
    for row in read():
        if row.model == "perceptron" and row.seed == 7:
            case = rows.Case(row.model, row.workers, Variant(row.algorithm, row.dtype, bool(row.feedback)), row.seed)
            assert float(rows.trained(case, steps=10).curve) == pytest.approx(float(row.curve.split()[0]), rel=1e-3)


def test_a_run_that_was_cut_off_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[rows.Case] = []

    def quick(case: rows.Case) -> Trained:
        made.append(case)
        if len(made) == 3:
            raise KeyboardInterrupt
        return Trained(case.model, case.workers, *case.variant.columns, case.seed, 0.5, 0.9, "0.5")

    monkeypatch.setattr(rows, "SEEDS", {"perceptron": 1})
    monkeypatch.setattr(rows, "trained", quick)
    table = tmp_path / "new" / "trainings.csv"
    with pytest.raises(KeyboardInterrupt):
        rows.main(table)
    assert not table.exists()
    rows.main(table)
    assert made[:2] + made[3:] == [*rows.cases()]
    assert [path.name for path in table.parent.iterdir()] == ["trainings.csv"]
    assert rows.missing(read(table)) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b\n", "heading of odd.csv: got a,b, expected model,workers"),
        (",".join(Trained._fields) + "\nperceptron,8\n", "line 2 of odd.csv: got 'perceptron,8', expected model"),
    ],
)
def test_an_odd_table_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "odd.csv").write_text(text)
    with pytest.raises(ValueError, match=said):
        read(tmp_path / "odd.csv")


def invented(change: Callable[[Variant, int], float]) -> list[Trained]:
    """A table of five seeds, in which a variant adds this to the loss of a seed."""
    return [
        Trained(model, workers, *variant.columns, seed, 2.0 + 0.1 * seed + change(variant, seed), 0.9, "")
        for model in TASKS
        for workers in rows.WORKERS
        for variant in VARIANTS
        for seed in range(5)
    ]


def test_a_tie_is_called_a_tie() -> None:
    for change in (lambda *_: 0.0, lambda variant, seed: 0.01 * (-1) ** seed if variant != BASELINE else 0.0):
        table = invented(change)
        found = differences(table)
        assert not any(one.is_seen for one in found)
        assert comparison.changed(found) == []
        assert figures.message(found) == "The final loss of no model changes with the summation variant"
        assert "perceptron, 8 workers: " in figures.changes(found).alt


def test_a_way_that_changes_the_loss_is_named_with_its_change() -> None:
    table = invented(
        lambda variant, seed: 0.22 + 0.001 * seed if variant.wire == "mxfp4" and not variant.feedback else 0.0
    )
    found = differences(table)
    assert "two-shot mxfp4" in figures.message(found)
    changed = comparison.changed(found)
    assert [(group[0].model, group[0].variant.wire) for group in changed] == [(model, "mxfp4") for model in TASKS]
    assert changed[0][0].share == pytest.approx(0.101, abs=1e-3)


def test_a_difference_is_paired_by_seed() -> None:
    table = invented(lambda variant, _: 0.001 if variant == RING else 0.0)
    found = difference(table, "perceptron", 8, RING)
    assert (found.low, found.mean, found.high) == pytest.approx((0.001, 0.001, 0.001))
    with pytest.raises(ValueError, match=r"seeds of ring bf16: got \[0, 1, 2, 3\], expected \[0, 1, 2, 3, 4\]"):
        difference([row for row in table if row[2:6] != ("ring", "bfloat16", 0, 4)], "perceptron", 8, RING)
    with pytest.raises(ValueError, match="column"):
        difference(table, "perceptron", 8, RING, of="speed")

"""The digits are scikit-learn's, and batches have every sample once and can be resumed."""

from importlib.metadata import PackageNotFoundError
from itertools import islice

import pytest
import torch

from collectives_book import digits as data
from collectives_book.digits import batches, digits


@pytest.mark.integration  # importing scikit-learn takes a second
def test_the_digits_are_those_that_scikit_learn_loads() -> None:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    learned, tested = digits()
    ours = sorted(
        [*map(float, image), int(label)]
        for part in (learned, tested)
        for image, label in zip(*part, strict=True)
    )
    theirs = sorted(
        [*map(float, image / 16), int(label)] for image, label in zip(images, labels, strict=True)
    )
    assert ours == theirs
    assert (len(learned.labels), len(tested.labels)) == (1500, 297)


def test_an_epoch_has_every_sample_once_and_the_next_another_order() -> None:
    first, second = (
        torch.cat(list(islice(batches(1500, 128, first=begin), 12))) for begin in (0, 12)
    )
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(1500))
    assert first.tolist() != second.tolist()
    assert [len(batch) for batch in islice(batches(1500, 128), 13)] == [*([128] * 11), 92, 128]


@pytest.mark.parametrize("done", [0, 1, 11, 12, 13, 30])
def test_batches_go_on_where_they_were(done: int) -> None:
    whole = list(islice(batches(1500, 128, seed=3), done + 3))
    resumed = list(islice(batches(1500, 128, seed=3, first=done), 3))
    assert [batch.tolist() for batch in resumed] == [batch.tolist() for batch in whole[done:]]


def test_an_absent_scikit_learn_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(data, "distribution", absent)
    with pytest.raises(
        ImportError, match=r"scikit-learn is not installed; `pip install .*\[training\]"
    ):
        digits()

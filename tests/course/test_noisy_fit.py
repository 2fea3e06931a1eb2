"""The samples of noisy-fit: a fit that weights sizes alike is right for any seed, one that does not is wrong."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from collectives_course import assignment
from collectives_course.criterion import Submission
from collectives_course.verdict import Failed
from course.wrong import ASSIGNMENTS

MADE = assignment.read(ASSIGNMENTS / "measure-and-predict")
(NOISY_FIT,) = [each for each in MADE.criteria if each.name == "noisy-fit"]
Fit = Callable[[Any, Any], tuple[float, float]]


def _medians(sizes: Any, seconds: Any) -> tuple[Any, Any]:
    distinct = np.unique(sizes)
    return distinct, np.array([np.median(seconds[sizes == size]) for size in distinct])


def weighted(sizes: Any, seconds: Any) -> tuple[float, float]:
    distinct, typical = _medians(sizes, seconds)
    beta, alpha = np.polyfit(distinct, typical, 1, w=1 / typical)
    return float(alpha), float(beta)


def unweighted(sizes: Any, seconds: Any) -> tuple[float, float]:
    beta, alpha = np.polyfit(*_medians(sizes, seconds), 1)
    return float(alpha), float(beta)


def passes(fit: Fit, seed: int) -> bool:
    submission = Submission(MADE.folder / "reference", MADE.facts.files[0], MADE.variant(seed), seed)
    submission.call = lambda _function, *samples, file="": fit(*samples)  # type: ignore[method-assign]
    try:
        NOISY_FIT.check(submission)
    except Failed:
        return False
    return True


@pytest.mark.parametrize(("fit", "expected"), [(weighted, 400), (unweighted, 0)])
def test_noisy_samples_need_weights(fit: Fit, expected: int) -> None:
    assert sum(passes(fit, seed) for seed in range(400)) == expected

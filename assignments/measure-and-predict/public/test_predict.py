"""Public tests: `pytest` runs them.

The grader's network is noisy, and its alpha and beta are secret.
"""

import math

import predict
import pytest
from variant import MESSAGES, MOST, PEER, UNIT

from collectives_course.local import run
from collectives_course.world import Network


def test_measure_times_messages():
    played = run(predict.measure, [[] for _ in range(PEER + 1)], Network(alpha=5e-6, beta=1e-9))
    sizes, seconds = played.values[0]
    assert all(size % UNIT == 0 and size <= MOST for size in sizes)
    assert seconds == pytest.approx([5e-6 + 1e-9 * size for size in sizes])
    assert played.messages_sent(PEER + 1)[0] <= MESSAGES


def test_fit_finds_a_line():
    sizes = [8, 800, 80_000, 8_000_000]
    assert predict.fit(sizes, [2e-5 + 4e-10 * size for size in sizes]) == pytest.approx(
        (2e-5, 4e-10)
    )


def test_crossing_on_sixteen_ranks():
    assert predict.crossing(16, 5e-6, 1e-9) == pytest.approx(16_127, rel=0.03)


def test_measured_crossing_is_between_two_sizes():
    assert predict.measured_crossing([100, 400], [2.0, 1.0], [1.0, 2.0]) == pytest.approx(200)
    assert predict.measured_crossing([100, 400], [1.0, 1.0], [2.0, 2.0]) == 0
    assert math.isinf(predict.measured_crossing([100, 400], [2.0, 2.0], [1.0, 1.0]))

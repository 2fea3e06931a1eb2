"""Steps of a ring played by tiles, some of them carried forward, against a plain loop over the same steps."""

import numpy as np
import pytest

from collectives.simulator import passing_on

LATENCY, FIXED, PER_BYTE = 3e-6, 1e-6, 1e-9


def played(steps, free, latency, fixed, per_byte, sizes):
    """When each row is free: its message begins when its source's has arrived, and when the row is free."""
    for step in range(1, steps + 1):
        arrived = np.roll(free + latency, 1)
        free = np.maximum(arrived, free) + fixed + per_byte * np.roll(sizes, step)
    return free


def costs(p, period, rng):
    """Latency and fixed cost of each row: dearer after so many rows, as at the border of a node; 0 for random ones."""
    if not period:
        return LATENCY * rng.random(p), FIXED * rng.random(p)
    dear = np.arange(p) % period == period - 1
    return np.where(dear, 5 * LATENCY, LATENCY), np.where(dear, 3 * FIXED, FIXED)


@pytest.mark.integration  # a plain loop over thousands of steps: ten seconds
@pytest.mark.parametrize("period", [1, 6, 108, 0])
@pytest.mark.parametrize("p", [1, 5, 700, 4 * passing_on.ROWS + 17])
def test_tiles_equal_a_plain_loop(p, period):
    rng = np.random.default_rng(p + period)
    latency, fixed = costs(p, period, rng)
    halves = np.where(np.arange(p) < p // 2, 5000, 4000)
    for sizes in (np.full(p, 8), np.full(p, 10**6), halves, rng.integers(1, 10**5, p)):
        for begin in (np.zeros(p), 1e-3 * rng.random(p)):
            for steps in (1, 63, 2500):
                rows = latency, fixed, np.full(p, PER_BYTE), sizes
                found = passing_on._played(steps, begin.copy(), *rows)
                assert np.allclose(found, played(steps, begin, *rows), rtol=1e-9, atol=0)


@pytest.mark.parametrize(("period", "steps"), [(1, 64), (6, 66), (108, 108), (0, passing_on.STEPS)])
def test_a_tile_is_played_for_whole_periods(period, steps):
    latency, fixed = costs(3000, period, np.random.default_rng(1))
    assert passing_on._whole_periods(latency, fixed, np.full(3000, PER_BYTE)) == steps


def test_clocks_are_even_only_if_all_have_advanced_by_the_same_time():
    now = np.arange(100.0)
    assert passing_on._is_even(now - 5, now)
    late = now.copy()
    late[50] += 1e-9
    assert not passing_on._is_even(now - 5, late)

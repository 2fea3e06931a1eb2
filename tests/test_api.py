"""Our collectives on real ranks: a launch for each p, thousands of checks (tests/ranks/api_cases.py)."""

from collections import Counter

import pytest

from collectives.algorithms import executable
from collectives.launch import launch
from places import PATIENCE
from sweep import each

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("p", each([1, 2, 3, 5, 8], few=[1, 3]))
def test_every_collective_as_torch_does_it(p: int) -> None:
    _need_all_right(p, "loopback")


@pytest.mark.extended
def test_hosts_of_two_ranks(allowed: None) -> None:
    _need_all_right(6, "cluster:100us,1GB/s,2")


def _need_all_right(p: int, where: str) -> None:
    events = launch("api_cases", {}, p, where=where, timeout=2 * PATIENCE)
    failed = [event["case"] for event in events if not event["ok"]]
    assert failed == []
    counted = Counter(tuple(event["case"].split()[:2]) for event in events)
    for collective, algorithm in executable():
        assert counted[collective, algorithm] >= 6 * 7, (collective, algorithm)
    assert len(events) > 2000

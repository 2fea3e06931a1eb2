"""Every function of torch.distributed on our back end does what it does on gloo: a launch for each p, random cases."""

from collections import Counter

import pytest

from collectives.launch import launch
from places import PATIENCE
from sweep import each

pytestmark = pytest.mark.integration

# Rounds of all functions, for each number of ranks.
ROUNDS = {1: 8, 2: 8, 5: 12}


@pytest.mark.parametrize("p", each(ROUNDS, few=[2]))
def test_random_calls_end_as_on_gloo(p: int) -> None:
    settings = {"seed": p, "rounds": ROUNDS[p], "backend": "collectives"}
    events = launch("torch_cases", settings, p, timeout=PATIENCE)
    assert [event for event in events if event["differs"]] == []
    counted = Counter(event["case"] for event in events)
    assert set(counted.values()) == {ROUNDS[p]}
    assert len(counted) >= 20

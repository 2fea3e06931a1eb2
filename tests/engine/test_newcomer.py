"""A newcomer's first change to the engine is small: a transport, or an op."""

import pytest

from collectives.algorithms import executable
from collectives.launch import launch
from places import PATIENCE, TASKS

pytestmark = pytest.mark.integration
ALGORITHMS = sum(collective == "all_reduce" for collective, _ in executable())


@pytest.mark.parametrize(
    ("what", "transport", "ops"),
    [("transport", "tcp", 2), ("op", "tcp", 1), ("op", "shared_memory", 1)],
)
def test_all_reduces_with_one_more(
    what: str, transport: str, ops: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(TASKS)
    monkeypatch.setenv("COLLECTIVES_TRANSPORT", transport)
    events = launch("newcomer", {"what": what}, 3, timeout=PATIENCE)
    assert len(events) == ops * ALGORITHMS
    assert [event["case"] for event in events if not event["ok"]] == []

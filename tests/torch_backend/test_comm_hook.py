"""DistributedDataParallel with our hook trains as one process does that sees the whole batch."""

from typing import Any

import pytest

from collectives.launch import launch
from places import PATIENCE

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    return {event["case"]: event for event in launch("hook_cases", {}, 3, timeout=PATIENCE)}


@pytest.mark.parametrize("algorithm", ["auto", "two_tree", "ring"])
def test_the_hook_trains_as_one_process_does(seen: dict[str, Any], algorithm: str) -> None:
    assert seen[algorithm]["apart"] < 1e-6


def test_an_error_names_its_bucket(seen: dict[str, Any]) -> None:
    assert "bucket 0: " in seen["rnig"]["said"]
    assert "no algorithm 'rnig'" in seen["rnig"]["said"]

"""DDP and FSDP2 on our back end learn what one process learns, by every algorithm.

Also compiled, and with PowerSGD.
"""

from typing import Any

import pytest

from collectives.algorithms import executable, names
from collectives.launch import launch
from places import PATIENCE
from sweep import each

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("p", each([1, 2, 5], few=[2]))
def test_ddp_and_fsdp_equal_one_process(p: int) -> None:
    events = launch("wrapped_cases", {}, p, timeout=PATIENCE)
    trained: dict[str, set[Any]] = {}
    for event in events:
        trained.setdefault(event["wrapper"], set()).add(event["algorithm"])
        assert len(event["apart"]) == p
        assert max(event["apart"]) < 1e-6, event
    assert trained["ddp"] == {*names("all_reduce", executable()), "auto"}
    assert trained["fsdp"] == {*names("all_gather"), *names("reduce_scatter"), "auto"}
    assert {*trained} == {"ddp", "fsdp", "compiled", "one bucket", "many", "joined"}

"""A rank that dies, falls silent or calls differently ends the call on every rank, with the reason.

Nothing is left.
"""

import json
import re
import sys
from typing import Any

import faults
import pytest
from faults import NAMES, ODD, RANKS

from command import finished
from places import PATIENCE
from sweep import each

pytestmark = pytest.mark.integration

FAILED = (
    r"all_reduce by ring failed on rank {rank}, in step \d+, (receiving from|sending to) rank \d"
)
BUCKET = "bucket 0 in DistributedDataParallel"
DIFFERENCES = {
    "shape": r"elements (\d+) against (?!\1)\d+",
    "dtype": r"dtype float(16|32) against float(16|32)",
    "op": r"op (SUM|MAX) against (SUM|MAX)",
    "order": r"collective all_\w+ against all_\w+, op \w+ against \w+, elements \d+ against \d+",
}


SILENT = (
    rf"rank {ODD} gave no sign in time \(.*\): not done within the timeout of {faults.TIMEOUT:g} s"
)
CAUSES = {"killed": rf"rank {ODD}: it has gone", "silent": SILENT} | {
    fault: f"ranks must call alike, but its call differs from this rank's: {how}"
    for fault, how in DIFFERENCES.items()
}

# Those for every tier.
FEW = (
    "killed-sync",
    "killed-ddp",
    "silent-async",
    "shape-ddp",
    "dtype-async",
    "op-ddp",
    "order-sync",
)


@pytest.fixture(scope="module")
def seen(request: pytest.FixtureRequest) -> dict[str, list[dict[str, Any]]]:
    """What the ranks told of each fault that is asked for: one process forks the ranks of all."""
    asked = [
        item.callspec.params.get("name")
        for item in request.session.items
        if hasattr(item, "callspec")
    ]
    command = [
        sys.executable,
        faults.__file__,
        *(name for name in NAMES if name in asked),
        "nothing-left",
    ]
    done = finished(command, check=True, seconds=3 * PATIENCE)
    return {told["fault"]: told["ranks"] for told in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("name", each(NAMES, few=FEW))
def test_every_rank_learns_what_is_wrong(seen: dict[str, list[dict[str, Any]]], name: str) -> None:
    """The collective, the algorithm, the step, the peer, the cause, and the bucket."""
    fault, _, way = name.rpartition("-")
    for rank, told in enumerate(seen[name]):
        if rank == ODD and fault not in DIFFERENCES:
            continue
        assert told["raised"] == "RuntimeError", (rank, told)
        # The rank that is out of order makes another call.
        failed = FAILED.replace("all_reduce", "all_(reduce|gather)") if fault == "order" else FAILED
        assert re.search(failed.format(rank=rank), told["said"]), (rank, told)
        assert re.search(CAUSES[fault], told["said"]), (rank, told)
        if way == "ddp" and not (fault == "order" and rank == ODD):
            assert BUCKET in told["said"], (rank, told)


def test_a_destroyed_group_leaves_nothing(seen: dict[str, list[dict[str, Any]]]) -> None:
    """No socket, no thread, no file: four times the same count."""
    assert len(seen["nothing-left"]) == RANKS
    for told in seen["nothing-left"]:
        first, *others = told["left"]
        assert (first["sockets"], first["threads"], first["names"]) == (0, 1, ["MainThread"])
        assert others == [first] * 3

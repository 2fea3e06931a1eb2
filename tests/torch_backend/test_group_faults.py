"""A rank that dies, falls silent or calls differently ends the call on every rank, with the reason; nothing is left."""

import json
import re
import subprocess
import sys
from typing import Any

import faults
import pytest
from faults import FAULTS, NAMES, ODD, RANKS

pytestmark = pytest.mark.integration

FAILED = r"all_reduce by ring failed on rank {rank}, in step \d+, (receiving from|sending to) rank \d"
BUCKET = r"bucket 0 in DistributedDataParallel"
DIFFERENCES = {
    "shape": r"elements (\d+) against (?!\1)\d+",
    "dtype": r"dtype float(16|32) against float(16|32)",
    "op": r"op (SUM|MAX) against (SUM|MAX)",
    "order": r"collective all_\w+ against all_\w+, op \w+ against \w+, elements \d+ against \d+",
}


@pytest.fixture(scope="module")
def seen() -> dict[str, list[dict[str, Any]]]:
    command = [sys.executable, faults.__file__, *NAMES, "nothing-left"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=True)
    return {told["fault"]: told["ranks"] for told in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("name", NAMES)
def test_every_rank_learns_what_is_wrong(seen: dict[str, list[dict[str, Any]]], name: str) -> None:
    """The collective, the algorithm, the step, the peer, the cause, and the bucket."""
    fault, _, way = name.rpartition("-")
    assert set(FAULTS) >= set(DIFFERENCES)
    for rank, told in enumerate(seen[name]):
        if fault in DIFFERENCES:
            cause = rf"ranks must call alike, but its call differs from this rank's: {DIFFERENCES[fault]}"
        elif rank == ODD:
            continue
        else:
            cause = rf"rank {ODD}: (it has gone|not done within {faults.TIMEOUT:g} s)"
        assert told["raised"] == "RuntimeError", (rank, told)
        # The rank that is out of order makes another call.
        called = FAILED.replace("all_reduce", "all_(reduce|gather)") if fault == "order" else FAILED
        assert re.search(called.format(rank=rank), told["said"]), (rank, told)
        assert re.search(cause, told["said"]), (rank, told)
        if way == "ddp" and not (fault == "order" and rank == ODD):
            assert re.search(BUCKET, told["said"]), (rank, told)


def test_a_destroyed_group_leaves_nothing(seen: dict[str, list[dict[str, Any]]]) -> None:
    """No socket, no thread of ours, and not one file or thread more than after the first group."""
    assert len(seen["nothing-left"]) == RANKS
    for told in seen["nothing-left"]:
        first, *others = told["left"]
        assert first["sockets"] == 0
        assert first["names"] == ["MainThread"]
        assert others == [first] * len(others)

"""torch's own tests of process groups end on our back end as the committed table says (`torch_tests.py` writes it)."""

import pytest
import torch_tests
from torch_tests import cause, outcomes, table

# Which of them run: each kind of call once, and DistributedDataParallel.
CHOSEN = (
    "test_DistributedDataParallelCPU",
    "test_all_gather_coalesced_simple",
    "test_all_reduce_coalesced_max",
    "test_all_reduce_sum_complex",
    "test_all_reduce_sum_async",
    "test_all_to_all_single_unequal_split",
    "test_barrier_timeout_full_group",
    "test_gather_full_group",
    "test_isend",
    "test_reduce_product",
    "test_scatter_object_list",
    "test_sparse_all_reduce_sum",
)


def test_the_table_is_of_all_tests_and_explains_every_failure() -> None:
    rows = table()
    assert len(rows) >= 285
    assert sum(row["gloo"] == "passed" for row in rows) >= 120
    worse = [row for row in rows if row["gloo"] == "passed" != row["collectives"]]
    assert len(worse) <= 10
    assert [row["test"] for row in worse if not row["why"]] == []


@pytest.mark.extended
def test_those_chosen_end_as_the_table_says() -> None:
    known = {row["test"]: row["collectives"] for row in table()}
    found = {outcome.test: outcome for outcome in outcomes("collectives", CHOSEN)}
    assert {test: found[test].outcome for test in CHOSEN} == {
        test: known[test] for test in CHOSEN
    }, found


def test_a_failure_is_known_by_what_a_rank_raised() -> None:
    traceback = (
        "Traceback (most recent call last):\n  ...\nRuntimeError: Process 0 exited with error code 10 and exception:\n"
        "Traceback (most recent call last):\n  ...\nValueError: no\n\n"
    )
    assert cause(traceback) == "ValueError: no"
    assert torch_tests.TABLE.is_file()

"""A group of ours: order, memory, dtypes, its neighbours, and errors that reach every rank.

One launch for each p.
"""

import re
from typing import Any

import pytest

from collectives.launch import launch
from places import PATIENCE
from sweep import each

pytestmark = pytest.mark.integration

RIGHT = [
    "calls_keep_their_order",
    "futures_hold_the_outputs",
    "what_lies_between_stays",
    "our_functions_take_the_group",
    "several_at_once",
    "messages_between_ranks",
    "a_subgroup_is_one_of_ours",
    "built_in_hooks_average_as_over_gloo",
]
DIFFERS = r"collective (broadcast|reduce) against (broadcast|reduce)"
SPLITS = r"splits of rank 0 and rank \d do not fit: got 1 elements, expected 0"


@pytest.mark.parametrize("p", each([1, 2, 3, 5], few=[1, 3]))
def test_a_group_of_ours(p: int) -> None:
    seen = {
        event["case"]: event["seen"] for event in launch("group_cases", {}, p, timeout=PATIENCE)
    }
    assert {case: seen[case] for case in RIGHT} == {case: [True] * p for case in RIGHT}
    assert seen["every_dtype_moves"] == [[]] * p
    assert seen["what_is_refused_is_left_alone"] == [[]] * p
    if p > 1:
        everyone_says(DIFFERS, seen["nobody_goes_on_alone"])
        everyone_says(SPLITS, seen["splits_that_do_not_fit"])
        everyone_says(
            r"not done within the timeout of 0\.5 s|^nothing$", seen["its_timeout_may_be_set"]
        )
        for rank, said in enumerate(seen["a_subgroup_s_errors_name_global_ranks"]):
            other, of = (
                {p - 1: p - 2, p - 2: p - 1}.get(rank),
                r"\(in process group last two of 2 ranks\)",
            )
            failed = rf"failed on rank {rank}, .* rank {other}: .*elements \d against \d.* {of}"
            assert re.search(failed if p > 2 and other is not None else "^nothing$", said), said
        *waited, late = seen["what_waits_ends_with_its_group"]
        assert [len(said) for said in waited] == [4] * (p - 1)
        for said in waited:
            everyone_says("the process group was destroyed", said)
        everyone_says("was destroyed|it has gone|Connection refused", late)
        plain, hooked = zip(*seen["an_error_names_its_bucket"], strict=True)
        everyone_says(
            r"algorithm (tree|one_shot) against .*bucket 0 in DistributedDataParallel", plain
        )
        everyone_says(r"bucket 0: .*algorithm (tree|one_shot) against ", hooked)


def everyone_says(what: str, said: Any) -> None:
    for each_one in said:
        assert re.search(what, each_one, flags=re.DOTALL), said

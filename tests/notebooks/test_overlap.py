"""Overlap on real ranks: which all-reduces there are, in which order and when, and that gradients stay the same."""

import json
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed as dist

from collectives.launch import launch
from collectives.simulator import overlap
from collectives.simulator.overlap import BACKWARD, FORWARD, REDUCE, Activity, computing
from collectives_book.overlap.layers import Stack, widths_of
from places import PATIENCE
from ranks import overlap_cases

RANKS = 3
BUCKETS = [1, 2, 4]


@pytest.fixture(scope="module")
def seen() -> dict[tuple[str, int], dict[str, Any]]:
    events = launch("overlap_cases", {"buckets": BUCKETS}, RANKS, timeout=PATIENCE)
    return {(event["case"], event["asked"]): event for event in events}


@pytest.mark.integration
@pytest.mark.parametrize("buckets", BUCKETS)
@pytest.mark.parametrize("algorithm", ["ring", "two_tree"])
def test_each_gradient_is_reduced_once_and_the_last_layers_first(
    seen: Any, algorithm: str, buckets: int
) -> None:
    case = seen[algorithm, buckets]
    sizes = [4 * a * b for a, b in pairwise(overlap_cases.WIDTHS)]
    assert [*map(tuple, case["reduced"])] == [*enumerate(case["called"])]
    assert sum(case["called"]) == case["bytes"] == sum(sizes)
    borders = [sum(sizes[layer:]) for layer in range(len(sizes))]
    assert {*accumulate(case["called"])} <= {*borders}, (
        "buckets hold whole layers, from the last to the first"
    )
    assert (len(case["called"]) == 1) == (buckets == 1)
    assert case["wrong"] == 0
    torch.testing.assert_close(
        torch.tensor(case["gradients"]), torch.tensor(seen["ring", 1]["gradients"])
    )


@pytest.mark.integration
@pytest.mark.parametrize("buckets", BUCKETS)
@pytest.mark.parametrize("algorithm", ["ring", "two_tree"])
def test_the_first_all_reduce_begins_before_the_backward_pass_ends(
    seen: Any, algorithm: str, buckets: int
) -> None:
    case = seen[algorithm, buckets]
    assert case["marks"] == 2 * len(overlap_cases.WIDTHS)
    assert (case["first"] < case["first_layer"]) == (buckets > 1)
    spans = [Activity(*span) for span in case["spans"]]
    passes = [(FORWARD, nth) for nth in range(5)] + [(BACKWARD, nth) for nth in reversed(range(5))]
    assert [(span.what, span.nth) for span in spans if span.what != REDUCE] == passes
    reduced = [span for span in spans if span.what == REDUCE]
    assert all(one.end <= other.begin for one, other in pairwise(reduced))
    assert sum(span.bytes for span in reduced) == case["bytes"]


@pytest.mark.integration
@pytest.mark.parametrize("buckets", BUCKETS)
def test_planted_faults_are_caught(seen: Any, buckets: int) -> None:
    assert seen["summed twice", buckets]["wrong"] > 0
    assert seen["left out", buckets]["wrong"] > 0
    assert sum(seen["left out", buckets]["called"]) < seen["left out", buckets]["bytes"]
    twice = seen["averaged twice", buckets]
    assert twice["wrong"] == 0, "an average of averages is the same, so only counting tells"
    assert sum(twice["called"]) == 2 * twice["bytes"]


def test_one_rank_has_nothing_to_average() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        case = overlap_cases.case(overlap_cases.hook("ring"), 2, [])
    finally:
        dist.destroy_process_group()
    assert case["wrong"] == 0
    assert sum(size for _, size in case["reduced"]) == case["bytes"]


def test_a_backward_pass_waits_before_its_gradient_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waited: list[Any] = []
    monkeypatch.setattr("collectives_book.overlap.layers.time.sleep", waited.append)
    stack = Stack([4, 3, 2], seconds=3.0)
    for nth, layer in enumerate(stack.layers):
        layer.weight.register_hook(lambda _, nth=nth: waited.append(f"gradient {nth}"))
    stack(torch.ones(1, 4).requires_grad_()).sum().backward()
    assert waited == [1.0, 1.0, 2.0, "gradient 1", 2.0, "gradient 0"]


@pytest.mark.parametrize(("layers", "nbytes"), [(1, 4), (16, 16 << 20), (8, 1_200_000)])
def test_widths_make_gradients_of_about_the_size(layers: int, nbytes: int) -> None:
    widths = widths_of(layers, nbytes)
    assert len(widths) == layers + 1
    assert 4 * sum(a * b for a, b in pairwise(widths)) == pytest.approx(nbytes, rel=0.01)


def test_a_timeline_is_a_trace_with_two_lines_for_each_rank(tmp_path: Path) -> None:
    spans = [*computing(0, [0.0, 1.0, 1.0, 3.0]), Activity(1, REDUCE, 0, 3.5, 4.0, 128)]
    overlap.write(tmp_path / "trace.json", spans)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {event["args"]["name"] for event in events if event["ph"] == "M"} == {"rank 0", "rank 1"}
    shown = [(event["pid"], event["tid"], event["name"]) for event in events if event["ph"] == "X"]
    assert shown == [
        (0, 0, "forward layer 0"),
        (0, 0, "backward layer 0"),
        (1, 1, "all-reduce bucket 0"),
    ]
    assert (events[-1]["ts"], events[-1]["dur"], events[-1]["args"]) == (
        3.5e6,
        0.5e6,
        {"bytes": 128},
    )

"""Divided models equal one process and send what they should; schedules end.

The experiment's rows.
"""

from collections import Counter
from collections.abc import Callable
from itertools import product
from math import isclose
from typing import Any

import pytest
import torch

from collectives.engine.call import Performed
from collectives.launch import RankError, launch
from collectives_book.figures import measured
from collectives_book.model_parallel import figures, volume
from collectives_book.model_parallel.experiment import ModelParallel
from collectives_book.model_parallel.pipeline_schedules import (
    BACKWARD,
    FORWARD,
    SCHEDULES,
    WEIGHTS,
    Action,
    bubble,
    gpipe,
    interleaved,
    kept,
    one_forward_one_backward,
    timetable,
    zero_bubble,
)
from collectives_book.model_parallel.split_steps import MeteredAllReduce, model
from sweep import each

SIZES = list(product((1, 2, 3, 4, 7), (1, 2, 3, 4, 8, 13)))
EVEN = {FORWARD: 1.0, BACKWARD: 2.0}


@pytest.fixture
def on_ranks() -> Callable[..., list[dict[str, Any]]]:
    """Do the checks of a kind on p real ranks."""
    return lambda what, p, timeout: launch("split_cases", {"what": what}, p, timeout=timeout)


@pytest.mark.integration
@pytest.mark.parametrize("p", each([1, 2, 3, 4, 5], few=[1, 2, 3, 4]))
@pytest.mark.parametrize(("what", "checks", "faults"), [("tensor", 27, 5), ("pipeline", 9, 2)])
def test_divided_models_equal_one_process_bit_for_bit(
    what: str, checks: int, faults: int, p: int, on_ranks: Callable[..., Any]
) -> None:
    events = on_ranks(what, p, 60)
    assert [event["case"] for event in events if not event["ok"]] == []
    assert len(events) == checks + faults * (p > 1)


@pytest.mark.integration
@pytest.mark.parametrize("p", each([2, 4], few=[2]))
def test_torch_s_own_pipelining_has_our_order_over_gloo_and_over_our_back_end(
    p: int, on_ranks: Callable[..., Any]
) -> None:
    events = on_ranks("torch's pipeline", p, 60)
    assert [event["case"] for event in events if not event["ok"]] == []
    assert len(events) == 8


@pytest.mark.integration
def test_a_stage_that_goes_away_ends_the_others(on_ranks: Callable[..., Any]) -> None:
    with pytest.raises(RankError, match=r"rank \d of 2 .*(ended|timed out)"):
        on_ranks("silent", 2, 2)


def orders(name: str, stages: int, count: int) -> list[list[Action]]:
    return [SCHEDULES[name](stage, stages, count) for stage in range(stages)]


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_ends_idles_as_the_formula_says_and_keeps_what_it_says(name: str) -> None:
    for stages, count in SIZES:
        for stage, order in enumerate(orders(name, stages, count)):
            assert Counter(order) == Counter(Action(kind, i) for kind in EVEN for i in range(count))
            assert kept(order) == (count if name == "gpipe" else min(count, stages - stage))
        table = timetable(orders(name, stages, count), EVEN)
        end = max(spans[-1].end for spans in table)
        assert end == 3 * (count + stages - 1)
        assert 1 - 3 * count / end == pytest.approx(bubble(stages, count))


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("chunks", [1, 2, 3])
def test_an_interleaved_stage_does_each_pass_once_and_idles_as_the_formula_says(
    stages: int, chunks: int
) -> None:
    for count in (stages, 3 * stages):
        orders = [interleaved(stage, stages, count, chunks) for stage in range(stages)]
        passes: Counter[Action] = Counter()
        for kind, i, chunk in product((FORWARD, BACKWARD), range(count), range(chunks)):
            action = Action(kind, i, chunk)
            passes[action] += 1
        for order in orders:
            assert Counter(order) == passes
        table = timetable(orders, EVEN)
        end = max(spans[-1].end for spans in table)
        assert 1 - 3 * count * chunks / end == pytest.approx(bubble(stages, count, chunks))
    with pytest.raises(ValueError, match=f"multiple of the {stages + 1} stages"):
        interleaved(0, stages + 1, stages + 2)


def test_interleaved_stages_have_torch_s_order() -> None:
    from torch.distributed.pipelining.schedules import ScheduleInterleaved1F1B

    stages, count, chunks = 4, 12, 3
    torchs: Any = object.__new__(ScheduleInterleaved1F1B)  # its order needs no process group
    torchs.pp_group_size = stages
    torchs.microbatches_per_round = stages
    torchs.n_local_stages = chunks
    torchs._n_microbatches = count
    torchs.number_of_rounds = count // stages
    kinds = {
        "FORWARD": FORWARD,
        "FULL_BACKWARD": BACKWARD,
        "BACKWARD": BACKWARD,
    }
    for stage in range(stages):
        order = []
        for operation in torchs._calculate_single_rank_operations(stage):
            if operation is None:  # the stage idles
                continue
            kind = kinds[operation.computation_type.name]
            chunk = operation.stage_index // stages
            order.append(Action(kind, operation.microbatch_index, chunk))
        assert order == interleaved(stage, stages, count, chunks)


def test_zero_bubble_idles_a_third_and_makes_every_gradient_once() -> None:
    halves = {
        FORWARD: 1.0,
        BACKWARD: 1.0,
        WEIGHTS: 1.0,
    }
    for stages, count in SIZES:
        orders = [zero_bubble(stage, stages, count) for stage in range(stages)]
        passes: Counter[Action] = Counter()
        for kind, i in product(halves, range(count)):
            action = Action(kind, i)
            passes[action] += 1
        for order in orders:
            assert Counter(order) == passes
            assert kept(order) <= min(count, stages)
        end = max(spans[-1].end for spans in timetable(orders, halves))
        whole = [one_forward_one_backward(stage, stages, count) for stage in range(stages)]
        end_of_whole = max(spans[-1].end for spans in timetable(whole, EVEN))
        assert end <= end_of_whole
        if count >= stages:
            assert end == 3 * count + stages - 1


def test_weights_before_their_backward_pass_would_wait_for_ever() -> None:
    forward, backward, weights = zero_bubble(0, 1, 1)
    order = [weights, forward, backward]
    seconds = {
        FORWARD: 1.0,
        BACKWARD: 1.0,
        WEIGHTS: 1.0,
    }
    with pytest.raises(ValueError, match="stage 0 waits for ever to run weights 0"):
        timetable([order], seconds)


def test_a_message_makes_the_way_there_and_back_longer() -> None:
    """GPipe's first micro-batch crosses s - 1 links, and its last gradient crosses them back."""
    for stages, count in SIZES:
        table = timetable(orders("gpipe", stages, count), EVEN, message=0.25)
        assert max(spans[-1].end for spans in table) == 3 * (count + stages - 1) + 2 * 0.25 * (
            stages - 1
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda order: order[::-1], r"stage 1 waits for ever to run backward 1"),
        (lambda order: order[:2], r"stage 0 waits for ever to run backward 0, expected"),
        (lambda order: [*order[1:], order[0]], r"stage 1 waits for ever to run backward 0"),
    ],
    ids=["backward first", "no backward", "a forward too late"],
)
def test_stages_that_would_wait_for_ever_are_named_before_anything_runs(
    change: Callable[[list[Action]], list[Action]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        timetable([gpipe(0, 2, 2), change(gpipe(1, 2, 2))], EVEN)


@pytest.mark.parametrize("p", [2, 3, 4, 8])
def test_the_closed_forms_are_what_the_ring_sends(p: int) -> None:
    width, batch, blocks = 16, 24, 2
    assert volume.parameters(width, blocks) == sum(
        weight.numel() for part in model(width, blocks, torch.device("cpu")) for weight in part
    )
    meter = MeteredAllReduce("p2p", "ring")
    meter.calls = [(Performed("ring", 1), volume.parameters(width))] * blocks
    assert isclose(meter.bytes_sent(p) or 0, volume.data_parallel(p, width, blocks))
    meter.calls = [(Performed("ring", 1), batch * width)] * 2 * blocks
    assert isclose(meter.bytes_sent(p) or 0, volume.tensor_parallel(p, width, batch, blocks))
    of_a_library = MeteredAllReduce("gloo", "default")
    of_a_library.calls = [(Performed("default"), 100)]
    assert of_a_library.bytes_sent(p) is None


@pytest.mark.parametrize("width", [1, 16, 1000])
def test_at_the_crossing_both_send_the_same(width: int) -> None:
    batch = volume.crossing(width)
    for p, blocks in ((2, 1), (5, 3)):
        data = volume.data_parallel(p, width, blocks)
        assert volume.tensor_parallel(p, width, int(batch), blocks) <= data
        assert volume.tensor_parallel(p, width, int(batch) + 1, blocks) > data


GOOD: dict[str, Any] = {
    "ranks": 3,
    "backend": "p2p",
    "algorithms": ["ring"],
    "where": "loopback",
    "widths": [2, 5],
    "batches": [3, 40],
    "blocks": 2,
    "stages": 2,
    "schedules": ["gpipe", "1f1b"],
    "micro_batches": [1, 3],
    "stage_width": 4,
    "stage_batch": 5,
    "forward": "3ms",
    "repetitions": 2,
    "output": "out/rows",
}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Any:
    stem = tmp_path_factory.mktemp("model_parallel") / "rows"
    table, record = ModelParallel.given(GOOD | {"output": str(stem)}).run()
    assert record["settings"][0]["stages"] == 2
    assert len(record["environment"]) == 3
    return table


@pytest.mark.integration
def test_every_step_equals_one_process_and_sends_what_the_closed_form_says(rows: Any) -> None:
    steps = measured.part(rows, "step")
    assert sorted(zip(steps.way, steps.width, steps.batch, strict=True)) == sorted(
        (way, width, batch) for way in ("data", "tensor") for width in (2, 5) for batch in (3, 40)
    )
    assert steps.difference.max() < 1e-5
    assert [row.sent for row in steps.itertuples()] == pytest.approx(
        [figures.closed_form(row) for row in steps.itertuples()]
    )
    assert dict(zip(steps.way, steps.calls, strict=True)) == {"data": 2, "tensor": 4}
    assert "wire" not in steps, "only emulated hosts count"


@pytest.mark.integration
def test_every_pipeline_equals_one_process_and_idles_as_its_passes_say(rows: Any) -> None:
    table = measured.part(rows, "pipeline")
    assert table.difference.max() < 1e-5
    assert table.sent.tolist() == [volume.pipeline(2, 4, 5)] * 4
    assert table.formula.tolist() == pytest.approx([1 / 2, 1 / 4] * 2)
    assert dict(
        zip(zip(table.schedule, table.micro_batches, strict=True), table.kept, strict=True)
    ) == {
        ("gpipe", 1): 1,
        ("gpipe", 3): 3,
        ("1f1b", 1): 1,
        ("1f1b", 3): 2,
    }
    actions = measured.part(rows, "action")
    assert len(actions) == 2 * 2 * 2 * (1 + 3)
    passes = actions.assign(busy=actions.end_us - actions.start_us).groupby(
        ["schedule", "micro_batches"], sort=False
    )
    idle = 1 - passes.busy.sum() / (2 * passes.end_us.max())
    for share, shares in zip(idle, table.bubble, strict=True):
        assert 0 < share < 1
        assert min(abs(shares - share)) < 1e-4, "of the step whose passes are there"
    waited = actions.end_us - actions.start_us
    assert (
        waited >= 0.99 * 3000 / actions.micro_batches * (1 + (actions.action == "backward"))
    ).all()

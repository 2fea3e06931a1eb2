"""The experiment about divided models: its parameters, rows of real ranks, and figures."""

from typing import Any

import pytest

from collectives_book import ExperimentError
from collectives_book.figures import measured
from collectives_book.model_parallel import figures, holdings, volume
from collectives_book.model_parallel.experiment import ModelParallel

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


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"stages": 4}, "stages: got 4, expected at most one for each of the 3 ranks"),
        ({"micro_batches": [1, 6]}, "micro_batches: got 6, expected at most the 5 samples"),
        ({"schedules": ["zigzag"]}, "schedules.0: Input should be 'gpipe' or '1f1b', got 'zigzag'"),
        ({"backend": "nccl2"}, "unknown backend 'nccl2'"),
        ({"where": "moon"}, "unknown where 'moon'"),
        ({"algorithms": ["rnig"]}, "no algorithm 'rnig' for 'all_reduce'"),
        ({"widths": [0]}, "widths.0: Input should be greater than or equal to 1, got 0"),
        ({"batches": []}, "batches: List should have at least 1 item"),
        ({"forward": "soon"}, "invalid time 'soon'"),
        ({"forward": "2000s"}, "forward: Input should be less than or equal to 60"),
        ({"brances": 3}, "unknown field 'brances'"),
    ],
)
def test_wrong_parameters_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ExperimentError) as caught:
        ModelParallel.given(GOOD | given)
    assert message in str(caught.value)


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
def test_every_pipeline_equals_one_process_and_idles_at_least_as_the_formula_says(rows: Any) -> None:
    table = measured.part(rows, "pipeline")
    assert table.difference.max() < 1e-5
    assert table.sent.tolist() == [volume.pipeline(2, 4, 5)] * 4
    assert table.formula.tolist() == pytest.approx([1 / 2, 1 / 4] * 2)
    assert dict(zip(zip(table.schedule, table.micro_batches, strict=True), table.kept, strict=True)) == {
        ("gpipe", 1): 1,
        ("gpipe", 3): 3,
        ("1f1b", 1): 1,
        ("1f1b", 3): 2,
    }
    assert all(0 < share < 1 for shares in table.bubble for share in shares)
    actions = measured.part(rows, "action")
    assert len(actions) == 2 * 2 * 2 * (1 + 3)
    waited = actions.end_us - actions.start_us
    assert (waited >= 0.99 * 3000 / actions.micro_batches * (1 + (actions.action == "backward"))).all()


@pytest.mark.integration
def test_alternative_texts_have_the_rows_numbers(rows: Any) -> None:
    assert "tensor from" in figures.sent(figures.steps(rows, 5)).alt
    assert "of 3 micro-batches, measured. gpipe: stages idle" in figures.timeline(rows, 3).alt
    assert "gpipe from " in figures.idle(rows, 1e-3).alt


def test_the_picture_of_holdings_is_drawn() -> None:
    assert b"tensor parallel" in holdings.holdings().light

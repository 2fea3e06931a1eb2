"""Figures of recorded rows: no panel is empty, few series in each, and an alternative text that is short."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from collectives.bench.results import read
from collectives.figures import style
from collectives.figures.style import Picture
from collectives_book.asynchronous import figures as asynchronous
from collectives_book.data_parallel import figures as data_parallel
from collectives_book.figures import kit, measured
from collectives_book.model_parallel import figures as model_parallel
from collectives_book.overlap import figures as overlap
from collectives_book.scaling import experiment as scaling_experiment
from collectives_book.scaling import figures as scaling
from collectives_book.straggler import figures as straggler
from places import ROOT

pytestmark = pytest.mark.integration  # draws every figure of recorded rows: twenty seconds

REFERENCE = ROOT / "experiments" / "results" / "reference" / "slow-motion"
MOST = 12  # entries of a legend: more cannot be told apart


def rows(name: str) -> Any:
    if name == "scaling":
        return scaling_experiment.results(REFERENCE / name)[0]
    return read(REFERENCE / name)[0]


def widest(table: Any) -> Any:
    return model_parallel.steps(table, int(measured.part(table, "step").width.max()))


def late(table: Any) -> Any:
    return table[(table.slow == "link") & (table["mode"] != "all_reduce")]


DRAWN: dict[str, tuple[str, Callable[[Any], Picture]]] = {
    "time against size": ("scaling", scaling.time_against_size),
    "time against hosts": ("scaling", lambda table: scaling.time_against_hosts(table, [4, 1 << 20, 16 << 20])),
    "bandwidth": ("scaling", scaling.bandwidth_against_size),
    "a slow link": ("straggler", lambda table: straggler.against_factor(table[table.bytes == table.bytes.max()])),
    "a slow host": ("straggler", lambda table: straggler.against_position(table[table.bytes == table.bytes.max()])),
    "a step": ("overlap", lambda table: overlap.timeline(*overlap.extremes(table))),
    "exposed time": ("overlap", overlap.exposed),
    "speed": ("weak-scaling", overlap.speed),
    "efficiency": ("weak-scaling", overlap.efficiency),
    "losses": ("data-parallel", data_parallel.losses),
    "times": ("data-parallel", data_parallel.times),
    "resumed": ("data-parallel", data_parallel.resumed),
    "rates": ("data-parallel", data_parallel.rates),
    "updates": ("asynchronous", lambda table: asynchronous.rates(table, {})),
    "staleness": ("asynchronous", lambda table: asynchronous.staleness(late(table))),
    "loss": ("asynchronous", lambda table: asynchronous.loss(late(table))),
    "sent": ("model-parallel", lambda table: model_parallel.sent(widest(table))),
    "idle": ("model-parallel", model_parallel.idle),
}


@pytest.mark.parametrize("name", DRAWN)
def test_a_figure_can_be_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    painted: list[Figure] = []

    def svg(paint: Callable[..., None], theme: style.Theme, width: float, height: float) -> bytes:
        painted.append(Figure(figsize=(width, height), layout="constrained"))
        paint(painted[-1], theme)
        return b""

    monkeypatch.setattr(style, "_svg", svg)
    source, draw = DRAWN[name]
    assert 10 < len(draw(rows(source)).alt.split()) <= kit.WORDS
    for figure in painted:
        assert all(axes.has_data() for axes in figure.axes)
        assert all(len(legend.get_texts()) <= MOST for legend in figure.legends)


def test_every_recorded_run_says_when_it_was_measured() -> None:
    stems = [path.with_suffix("") for path in Path(REFERENCE.parent).rglob("*.parquet")]
    assert stems
    assert all("date" in read(stem)[1] for stem in stems)

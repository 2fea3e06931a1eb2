"""Figures of recorded rows: at most five series in a panel, names that do not overlap, a message above each."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from collectives.bench.results import read
from collectives.figures import style
from collectives.figures.style import Picture
from collectives_book.asynchronous import figures as asynchronous
from collectives_book.data_parallel import figures as data_parallel
from collectives_book.figures import by_hand as kit
from collectives_book.figures import measured
from collectives_book.model_parallel import figures as model_parallel
from collectives_book.overlap import figures as overlap
from collectives_book.scaling import experiment as scaling_experiment
from collectives_book.scaling import figures as scaling
from collectives_book.straggler import figures as straggler
from collectives_book.weak_scaling import figures as weak_scaling
from places import ROOT

pytestmark = pytest.mark.integration  # draws every figure of recorded rows: ten seconds

REFERENCE = ROOT / "experiments" / "results" / "reference" / "slow-motion"


def rows(name: str) -> Any:
    if name == "scaling":
        return scaling_experiment.results(REFERENCE / name)[0]
    return read(REFERENCE / name)[0]


def widest(table: Any) -> Any:
    return model_parallel.steps(table, int(measured.part(table, "step").width.max()))


DRAWN: dict[str, tuple[str, Callable[[Any], Picture]]] = {
    "time against size": ("scaling", scaling.time_against_size),
    "time against hosts": ("scaling", lambda table: scaling.time_against_hosts(table, [4, 1 << 20, 16 << 20])),
    "bandwidth": ("scaling", scaling.bandwidth_against_size),
    "one slow link": ("straggler", lambda table: straggler.time(table[table.bytes == table.bytes.max()])),
    "exposed time": ("overlap", overlap.exposed),
    "speed": ("weak-scaling", weak_scaling.speed),
    "efficiency": ("weak-scaling", weak_scaling.efficiency),
    "losses": ("data-parallel", data_parallel.losses),
    "resumed": ("data-parallel", data_parallel.resumed),
    "loss": ("asynchronous", lambda table: asynchronous.loss(table[table.slow == "link"])),
    "sent": ("model-parallel", lambda table: model_parallel.sent(widest(table))),
    "idle": ("model-parallel", model_parallel.idle),
}


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that are drawn in the light theme, as matplotlib has them."""
    found: list[Figure] = []

    def svg(paint: Callable[..., None], theme: style.Theme, width: float, height: float) -> bytes:
        figure = Figure(figsize=(width, height), layout="constrained")
        paint(figure, theme)
        figure.draw_without_rendering()
        found.append(figure)
        return b""

    monkeypatch.setattr(style, "_svg", svg)
    return found


@pytest.mark.parametrize("name", DRAWN)
def test_a_figure_can_be_read(name: str, drawn: list[Figure]) -> None:
    source, draw = DRAWN[name]
    draw(rows(source))
    figure = drawn[0]
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert figure.get_suptitle() or all(titles), "a message above"
    for axes in figure.axes:
        assert len(kit._labelled(axes)) <= kit.MOST_SERIES + 1, "five series, and a bound"
        boxes = [Text.get_window_extent(text) for text in axes.texts]  # without their thin lines
        assert not any(Bbox.intersection(a, b) for nth, a in enumerate(boxes) for b in boxes[:nth]), axes.texts


def test_every_recorded_run_says_when_it_was_measured() -> None:
    stems = [path.with_suffix("") for path in Path(REFERENCE.parent).rglob("*.parquet")]
    assert stems
    assert all("date" in read(stem)[1] for stem in stems)

"""Figures: the same bytes every time, both themes, and a description that comes from the data."""

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from collectives.algorithms import ALGORITHMS, names
from collectives.bench import Settings
from collectives.bench.results import read
from collectives.figures.layout import SHAPES
from collectives.figures.schedules import space_time, steps, two_trees, walk
from collectives.figures.style import MARKS, NEUTRAL, Picture, colours, hues
from collectives_book.all_reduce_sweep import figures
from collectives_book.collectives_sweep import figures as panels
from collectives_book.figures import by_hand as kit
from collectives_book.figures import measured
from places import ROOT


def rows() -> pd.DataFrame:
    def row(backend: str, algorithm: str, nbytes: int, us: float) -> dict[str, object]:
        return {
            "collective": "all_reduce",
            "backend": backend,
            "algorithm": algorithm,
            "ranks": 4,
            "bytes": nbytes,
            "median_us": us,
            "low_us": us * 0.9,
            "high_us": us * 1.2,
            "busbw": nbytes / us / 1e3 * 1.5,
        }

    return pd.DataFrame(
        [
            row("p2p", "ring", 4, 900.0),
            row("gloo", "default", 4, 300.0),
            row("p2p", "ring", 1 << 20, 2000.0),
            row("gloo", "default", 1 << 20, 3000.0),
        ]
    )


def eight() -> pd.DataFrame:
    """Two collectives by ours and gloo, a third by ours alone."""
    third = rows()[rows().backend == "p2p"].assign(collective="gather")
    two = [rows().assign(collective=name) for name in ("all_reduce", "broadcast")]
    return pd.concat([*two, third], ignore_index=True)


PICTURES = {
    "walk": lambda: walk(ALGORITHMS["all_reduce", "ring"](4)),
    "space_time": lambda: space_time(ALGORITHMS["all_reduce", "two_tree"](8)),
    "steps": lambda: steps(ALGORITHMS["all_reduce", "hierarchical_ring"](8), "hierarchical_ring"),
    "a switch": lambda: steps(ALGORITHMS["all_reduce", "in_network"](6, segments=2), "in_network"),
    "two_trees": lambda: two_trees(9),
    "time": lambda: figures.time_against_size(rows()),
    "panels": lambda: panels.time_against_size(eight()),
    "bandwidth": lambda: figures.bandwidth_against_size(rows()),
}


@pytest.mark.integration
@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_reproducible_and_has_two_themes(name: str) -> None:
    one, again = PICTURES[name](), PICTURES[name]()
    assert one == again
    assert one.light != one.dark
    for svg in (one.light, one.dark):
        assert ET.fromstring(svg).tag.endswith("svg")
    html = one._repr_html_()
    assert html.count(f'alt="{one.alt}"') == 2
    shown = [tag for tag in re.findall("<img[^>]*>", html) if "display: none" not in tag]
    assert len(shown) == 1, "without the site's style sheet a reader sees it once"
    assert 'class="only-light"' in shown[0]
    assert "only-dark" in html


@pytest.mark.integration
def test_alternative_texts_say_what_is_shown() -> None:
    assert "ranks 0, 2, 4, 6, 8; in the second: ranks 0, 1, 3, 5, 7; rank 0 is interior in both" in two_trees(9).alt
    assert "no rank is interior in both" in two_trees(8).alt
    assert "56 arrows" not in space_time(ALGORITHMS["all_reduce", "two_tree"](8)).alt
    assert "28 arrows between ranks over" in space_time(ALGORITHMS["all_reduce", "two_tree"](8)).alt
    assert (
        "6 steps, 4 chunks; messages in each step: 4, 4, 4, 4, 4, 4." in steps(ALGORITHMS["all_reduce", "ring"](4)).alt
    )
    assert "22 steps, the first 18 of them drawn" in steps(ALGORITHMS["all_reduce", "ring"](12)).alt
    assert "every rank holds 4 complete chunks" in walk(ALGORITHMS["all_reduce", "ring"](4)).alt
    alt = figures.time_against_size(rows()).alt
    assert "ring from 900 µs at 4 B to 2 ms at 1 MiB; gloo (its own choice) from 300 µs at 4 B to 3 ms at 1 MiB." in alt
    assert len(panels.time_against_size(eight()).alt.split()) <= kit.WORDS


@pytest.mark.integration
def test_a_walk_counts_chunks_from_0() -> None:
    drawn = walk(ALGORITHMS["all_reduce", "ring"](4)).light.decode()
    assert all(f"<!-- {text} -->" in drawn for text in ("a₀", "d₃", "abcd₀"))
    assert "₄" not in drawn


def test_pictures_draw_messages_not_rows() -> None:
    """A gather by doubling on 3 ranks has six rows; two pairs of ranks have two each."""
    gather = ALGORITHMS["all_gather", "recursive_doubling"](3)
    assert sum(map(len, gather.steps())) == 6
    assert "4 arrows" in space_time(gather).alt
    assert "messages in each step: 1, 2, 1." in steps(gather).alt


def test_the_table_has_the_medians() -> None:
    assert figures.table(rows()).to_dict() == {
        "ring": {"4 B": "900", "1 MiB": "2,000"},
        "gloo (its own choice)": {"4 B": "300", "1 MiB": "3,000"},
    }


@pytest.mark.integration
def test_one_repetition_has_an_interval_without_width() -> None:
    """Computed from the bus bandwidth its ends may be off by the last bit, on either side."""
    many = rows()[:1].loc[[0] * 60].assign(bytes=range(4, 64), median_us=[1000 / 7 * n for n in range(1, 61)])
    many = many.assign(low_us=many.median_us, high_us=many.median_us, busbw=many.bytes / many.median_us / 1e3 * 1.5)
    assert figures.bandwidth_against_size(many).light
    assert figures.time_against_size(many.assign(low_us=many.median_us + 1e-3)).light


def test_panels_say_who_has_what() -> None:
    assert panels.table(eight(), 4).to_dict() == {
        "ours": {"all-reduce": "900", "broadcast": "900", "gather": "900"},
        "gloo": {"all-reduce": "300", "broadcast": "300", "gather": "none"},
    }
    assert panels._title(eight()[lambda each: each.collective == "broadcast"]) == "broadcast: ours"


def test_ties_are_called_ties() -> None:
    """Of rows whose intervals overlap none is named the fastest."""
    tied = rows().assign(low_us=100.0)
    assert (
        panels._title(eight().assign(low_us=100.0)[lambda each: each.collective == "broadcast"]) == "broadcast: a tie"
    )
    assert figures.highest(rows(), "{:.1f}".format) == "0.8, by ring with 1 MiB"
    assert (
        figures.highest(tied, "{:.1f}".format)
        == "0.8, by ring with 1 MiB; gloo (its own choice) cannot be told from it"
    )


@pytest.mark.parametrize(
    ("repetitions", "said"),
    [([21], "with 97.33% intervals."), ([3, 5], "with 75% to 93.75% intervals."), ([1], "with single samples,")],
)
def test_the_confidence_in_a_record_is_that_of_its_repetitions(repetitions: list[int], said: str) -> None:
    settings = [
        {"ranks": 4, "where": "loopback", "dtype": "float32", "warmups": 1, "repetitions": n} for n in repetitions
    ]
    here = {"processor": "x", "usable_cores": 2, "memory_gib": 1.0, "system": "y", "torch": "z"}
    assert said in measured.machine({"settings": settings, "environment": [here]})


def test_an_algorithm_looks_the_same_in_all_collectives() -> None:
    """Figures ask for a mark and a shape by name alone."""
    for (_, name), each in ALGORITHMS.items():
        assert (MARKS[name], SHAPES[name]) == (each.mark, each.shape), name


@pytest.mark.parametrize("collective", sorted({collective for collective, _ in ALGORITHMS}))
def test_every_algorithm_has_its_own_look_within_its_collective(collective: str) -> None:
    looks = [MARKS[name] for name in [*names(collective), "gloo"] if MARKS[name] != NEUTRAL]
    assert len({look.colour for look in looks}) == len(looks)
    assert len({look.marker for look in looks}) == len(looks)


def test_every_chunk_has_its_own_hue() -> None:
    assert len(set(hues(8))) == 8


@pytest.mark.integration  # seconds
@pytest.mark.parametrize("k", [0, 1, 2, 7, 64, 128])
def test_hues_are_those_of_seaborn(k: int) -> None:
    import seaborn

    assert hues(k) == [tuple(hue) for hue in seaborn.color_palette("husl", k)]
    assert colours(k) == list(seaborn.color_palette("husl", k).as_hex())


def test_the_readmes_picture_is_what_the_code_draws(tmp_path: Path) -> None:
    drawn: Picture = two_trees(8)
    drawn.save(tmp_path / "two-trees")
    for theme in ("light", "dark"):
        kept = ROOT / "chapters" / "images" / f"two-trees-{theme}.svg"
        assert kept.read_bytes() == (tmp_path / f"two-trees-{theme}.svg").read_bytes()


def ended(lines: dict[str, list[float]]) -> Figure:
    """A figure of these lines, labelled."""
    figure = Figure(figsize=(kit.WIDTH, 3), layout="constrained")
    axes = figure.subplots()
    for name, values in lines.items():
        axes.plot(range(len(values)), values, label=name)
    kit.labels(figure)
    figure.draw_without_rendering()
    return figure


@pytest.mark.parametrize(
    "lines",
    [
        {"ring": [0, 1], "tree": [1, 1.001], "gloo (its own choice)": [2, 1.002], "apart": [0, 3]},
        {"long": [0.0, 1.0, 2.0], "short": [0.0, 1.0], "a name of so many letters": [0.0, 1.0, 2.0]},
        {f"line {i}": [0.0, 1.0] for i in range(5)},
    ],
    ids=["near", "short", "equal"],
)
def test_names_at_ends_of_lines_do_not_overlap(lines: dict[str, list[float]]) -> None:
    figure = ended(lines)
    boxes = [Text.get_window_extent(text) for text in figure.axes[0].texts]  # without its thin line
    assert [text.get_text().replace("\n", " ") for text in figure.axes[0].texts] == list(lines)
    assert not any(Bbox.intersection(a, b) for nth, a in enumerate(boxes) for b in boxes[:nth])
    assert max(box.y1 for box in boxes) <= figure.axes[0].bbox.y1 + 3, "no name is beside the title"
    assert not figure.legends


def test_names_are_in_the_order_of_the_ends() -> None:
    texts = ended({"low": [0, 1], "high": [0, 1.002], "middle": [0, 1.001]}).axes[0].texts
    assert [text.get_text() for text in sorted(texts, key=lambda text: Text.get_window_extent(text).y0)] == [
        "low",
        "middle",
        "high",
    ]


def test_six_series_are_five_and_a_grey_one() -> None:
    """The library is kept, and what is the fastest somewhere."""
    more = [
        rows()[rows().backend == "p2p"].assign(algorithm=name, median_us=5000.0) for name in ("tree", "a", "b", "c")
    ]
    many = pd.concat([*more, rows()], ignore_index=True)
    named = many.assign(series=measured.names(many))
    assert measured.prominent(named, list(dict.fromkeys(named.series))) == [
        "gloo (its own choice)",
        "ring",
        "tree",
        "a",
        "b",
    ]


def test_a_caption_names_where_when_command_machine_and_confidence() -> None:
    stem = ROOT / "experiments" / "results" / "reference" / "slow-motion" / "scaling"
    machine = {"processor": "AMD EPYC", "usable_cores": 2, "memory_gib": 23.5, "system": "Linux 6.18"}
    versions = {"python": "3.11.7", "torch": "2.13.0+cpu", "commit": "c853583"}
    record = read(stem)[1] | {"date": "2026-11-21", "environment": [machine | versions]}
    caption = measured.sourced(two_trees(8), record, stem).caption
    assert caption == (
        "Measured on 2 to 32 ranks, emulated hosts on one machine, joined by slow links · 2026-11-21 · "
        "AMD EPYC, 2 cores, 23.5 GiB, Linux 6.18 · Python 3.11.7, torch 2.13.0+cpu, commit c853583 · "
        "5 repetitions, 93.75% intervals · collectives run experiments/scaling.ipynb --preset slow-motion."
    )


def test_a_caption_is_not_beside_the_images_of_one_theme() -> None:
    """The theme has ``.only-dark ~ figcaption { display: none }``."""
    assert "</div><figcaption>it</figcaption></figure>" in replace(two_trees(8), caption="it")._repr_html_()


def test_one_repetition_is_in_the_singular() -> None:
    record = {"settings": [{"repetitions": 1}, {"repetitions": 1}]}
    assert measured.sureness(record) == "1 repetition, single samples, without intervals"
    assert measured.sureness({"settings": [{"repetitions": 1}, {"repetitions": 5}]}).startswith("1 to 5 repetitions, ")


def test_the_command_of_rows_without_a_notebook_is_that_of_bench() -> None:
    settings = Settings(collective="broadcast", algorithms=["binomial", "chain"], ranks=3, bytes=[4, 8]).model_dump()
    assert measured.command({"settings": [settings]}, "results/mine/broadcasts") == (
        "collectives bench --collective broadcast --ranks 3 --where loopback --repetitions 20 --warmups 3 "
        "--algorithm binomial chain --backend p2p --bytes 4 8"
    )
    record = {"settings": [settings, settings | {"ranks": 5}], "variables": {"COLLECTIVES_TRANSPORT": "tcp"}}
    said = measured.command(record, "results/mine/broadcasts")
    assert said.startswith("COLLECTIVES_TRANSPORT=tcp collectives bench --collective broadcast --ranks 3 5 --where")

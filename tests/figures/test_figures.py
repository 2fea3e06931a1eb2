"""Figures: the same bytes every time, both themes, and a description that comes from the data."""

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from collectives.algorithms import ALGORITHMS, build, names
from collectives.algorithms.library_trees import library_trees
from collectives.backends import backend
from collectives.bench import Settings
from collectives.bench.results import read
from collectives.figures.layout import SHAPES
from collectives.figures.schedules import space_time, steps, walk
from collectives.figures.style import MARKS, NEUTRAL, Picture, colours, hues
from collectives.figures.trees import side_by_side, two_trees
from collectives_book.figures import kit, measured
from collectives_book.figures.charts import Curves, Dots, Panels
from collectives_book.figures.decisions import Decision, decisions
from collectives_book.figures.fields import FAINT, fields
from collectives_book.figures.lanes import lanes
from places import ROOT

# An interval without width, as one repetition has it, and its ends off by the last bit.
ROWS = pd.DataFrame(
    [
        ("ring", 4, 900.0, 800.0, 1000.0),
        ("ring", 1 << 20, 2000.0, 2000.0, 2000.0),
        ("tree", 4, 300.0, 300.0, 300.001),
    ],
    columns=["algorithm", "bytes", "us", "low", "high"],
)
AXES = kit.BYTES, kit.US
WINNERS = pd.DataFrame(
    [
        ("ring", 2, 4, "here"),
        ("tree", 2, 8, "here"),
        ("", 4, 4, "here"),
        ("ring", 4, 8, "here"),
    ],
    columns=["winner", "ranks", "bytes", "on"],
)
SPANS = pd.DataFrame(
    [("rank 0", 0.0, 1.0, "sends", "one"), ("rank 1", 1.0, 2.0, "waits", "one")],
    columns=["lane", "begin", "end", "what", "run"],
)
# How each is drawn, and a part of its alternative text.
PICTURES = {
    "walk": (
        lambda: walk(build("all_reduce", "ring", 4)),
        "every rank holds 4 complete chunks",
    ),
    "space and time": (
        lambda: space_time(build("all_reduce", "two_tree", 8)),
        ": 28 arrows between ranks over",
    ),
    "messages, not rows": (
        lambda: space_time(build("all_gather", "recursive_doubling", 3)),
        "4 arrows",
    ),
    "steps": (
        lambda: steps(build("all_reduce", "ring", 4)),
        "6 steps, 4 chunks; messages in each step: 4, 4, 4, 4",
    ),
    "nodes": (
        lambda: steps(build("all_reduce", "hierarchical_ring", 8), "hierarchical_ring"),
        "8 steps, 8 chunks",
    ),
    "a switch": (
        lambda: steps(build("all_reduce", "in_network", 6, segments=2), "in_network"),
        "3 steps",
    ),
    "two trees": (
        lambda: two_trees(9),
        "ranks 0, 2, 4, 6, 8; in the second: ranks 0, 1, 3, 5, 7; rank 0 is interior",
    ),
    "a library's trees": (
        lambda: side_by_side(library_trees("torchcomms", 9), "its trees"),
        "in both: 1, 2, 3.",
    ),
    "curves": (
        lambda: (
            Curves(ROWS, "bytes", "us", "algorithm", AXES, panels=Panels("algorithm"))
            .points(("low", "high"))
            .picture("Time")
        ),
        "2 ms at 1 MiB",
    ),
    "dots": (
        lambda: (
            Dots(ROWS, "us", "bytes", kit.US, "algorithm").points(("low", "high")).picture("Time")
        ),
        "1048576, ring 2 ms",
    ),
    "fields": (
        lambda: fields(
            WINNERS,
            "bytes",
            "ranks",
            "winner",
            (kit.BYTES, kit.RANKS),
            "Who wins",
            facet="on",
        ),
        "here: ring in 2 of 4",
    ),
    "fields with initials": (
        lambda: fields(
            WINNERS,
            "bytes",
            "ranks",
            "winner",
            (kit.BYTES, kit.RANKS),
            "Who wins",
            facet="on",
            columns=4,
        ),
        "here: ring in 2 of 4",
    ),
    "decisions": (
        lambda: decisions([Decision("Is it small?", "One shot")], "A ring", "What to take"),
        "What to take. Is it small? One shot; A ring.",
    ),
    "lanes": (
        lambda: lanes(
            SPANS,
            kit.SECONDS,
            "A timeline",
            {"sends": "#4269d0", "waits": "faint"},
            facet="run",
        ),
        "one",
    ),
}


@pytest.mark.integration
@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_reproducible_has_two_themes_and_says_what_it_shows(
    name: str,
) -> None:
    draw, said = PICTURES[name]
    one = draw()
    assert one == draw()
    assert said in one.alt
    assert len(one.alt.split()) <= kit.WORDS
    assert one.light != one.dark
    for svg in (one.light, one.dark):
        assert ET.fromstring(svg).tag.endswith("svg")
    html = replace(one, caption="it")._repr_html_()
    assert html.count(f'alt="{one.alt}"') == 2
    shown = [tag for tag in re.findall("<img[^>]*>", html) if "display: none" not in tag]
    assert len(shown) == 1, "without the site's style sheet a reader sees it once"
    assert 'class="only-light"' in shown[0]
    # The theme has ``.only-dark ~ figcaption { display: none }``: a caption is not beside the
    # images.
    assert "</div><figcaption>it</figcaption></figure>" in html


def test_no_rows_are_no_figure_but_a_sentence() -> None:
    none = ROWS[:0]
    curves = Curves(none, "bytes", "us", "algorithm", AXES).points(("low", "high"))
    assert curves.picture("Time").alt == kit.nothing().alt
    assert Dots(none, "us", "bytes", kit.US).points().picture("Time").alt == kit.nothing().alt


def test_a_walk_counts_chunks_from_0() -> None:
    drawn = walk(build("all_reduce", "ring", 4)).light.decode()
    assert all(f"<!-- {text} -->" in drawn for text in ("a₀", "d₃", "abcd₀"))
    assert "₄" not in drawn


def test_an_algorithm_looks_the_same_in_all_collectives_and_unlike_the_others_in_each() -> None:
    """Figures ask for a mark and a shape by name alone."""
    for (collective, name), each in ALGORITHMS.items():
        assert (MARKS[name], SHAPES[name]) == (each.mark, each.shape), name
        marks = [MARKS[one] for one in names(collective)] + [backend("gloo").mark]
        looks = [look for look in marks if look != NEUTRAL]
        assert (
            len({look.colour for look in looks})
            == len({look.marker for look in looks})
            == len(looks)
        )


@pytest.mark.integration  # importing seaborn takes seconds
@pytest.mark.parametrize("k", [0, 1, 2, 7, 128])
def test_every_chunk_has_a_hue_of_seaborn_s(k: int) -> None:
    import seaborn

    assert hues(k) == [tuple(hue) for hue in seaborn.color_palette("husl", k)]
    assert colours(k) == list(seaborn.color_palette("husl", k).as_hex())


def test_the_readmes_picture_is_what_the_code_draws(tmp_path: Path) -> None:
    drawn: Picture = two_trees(8)
    drawn.save(tmp_path / "two-trees")
    assert "no rank is interior in both" in drawn.alt
    for theme in ("light", "dark"):
        kept = ROOT / "chapters" / "images" / f"two-trees-{theme}.svg"
        assert kept.read_bytes() == (tmp_path / f"two-trees-{theme}.svg").read_bytes()


def test_a_caption_has_what_one_needs_to_measure_again() -> None:
    stem = ROOT / "experiments" / "results" / "reference" / "slow-motion" / "scaling"
    machine = {
        "processor": "AMD EPYC",
        "usable_cores": 2,
        "memory_gib": 23.5,
        "system": "Linux 6.18",
    }
    versions = {"python": "3.11.7", "torch": "2.13.0+cpu", "commit": "c853583"}
    record = read(stem)[1] | {"date": "2026-11-21", "environment": [machine | versions]}
    assert measured.sourced(two_trees(8), record, stem).caption == (
        "Measured on 2 to 32 ranks, emulated hosts on one machine, joined by slow links · 2026-11-21 · "
        "AMD EPYC, 2 cores, 23.5 GiB, Linux 6.18 · Python 3.11.7, torch 2.13.0+cpu, commit c853583 · "
        "5 repetitions, 93.75% confidence intervals · collectives run experiments/scaling.ipynb --preset slow-motion."
    )


def test_the_command_of_rows_without_a_notebook_is_that_of_bench() -> None:
    settings = Settings(
        collective="broadcast", algorithms=["binomial", "chain"], ranks=3, bytes=[4, 8]
    ).model_dump()
    prepared = settings | {"back_to_back": True, "persistent": True}
    record = {
        "settings": [settings, settings | {"ranks": 5}],
        "variables": {"COLLECTIVES_TRANSPORT": "tcp"},
    }
    one = "COLLECTIVES_TRANSPORT=tcp collectives bench broadcast binomial chain -p 3 5 "
    one += "--where loopback --repetitions 20 --warmups 3 --backend p2p --bytes 4 8"
    assert measured.command(record, "results/mine/broadcasts") == one
    other = f"{one.replace('3 5', '3')} --back-to-back --persistent"
    both = record | {"settings": [*record["settings"], prepared]}
    assert measured.command(both, "results/mine/broadcasts") == f"{one} && {other}"


@pytest.mark.integration
def test_names_are_written_where_there_is_room_and_small_wins_are_faint() -> None:
    def drawn(columns: int, ahead: str | None) -> str:
        rows = WINNERS.assign(ahead=[0.5, 0.05, 0.5, 0.5])
        options: Any = {"facet": "on", "columns": columns, "ahead": ahead}
        axes = (kit.BYTES, kit.RANKS)
        picture = fields(rows, "bytes", "ranks", "winner", axes, "Who wins", **options)
        return picture.light.decode()

    cover = f"opacity: {1 - FAINT:g}"
    assert drawn(1, "ahead").count(cover) == 1
    assert cover not in drawn(1, None)
    assert "<!-- ring -->" in drawn(1, None)
    assert "<!-- R -->" not in drawn(1, None)
    assert "<!-- R -->" in drawn(4, None)

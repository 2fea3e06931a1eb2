"""The explorer of closed forms in Chromium: it computes what Python computes, and its sliders and labels work."""

import random
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect
from test_player_browser import SCRIPTS, STATIC, WIDEST, page

from browsers import TELEPHONE, needs_browser
from collectives.bounds import lower_bound
from collectives.figures.explorer import OFFERED, Explorer, explorer, explorer_data

__all__ = ["page"]

STYLES = ("player.css", "explorer.css")
COMPUTED = """
([data, cases]) => cases.map((at) => {
  const values = costForms.valuesOf(at);
  const times = data.algorithms.map((each) => [each.name, costForms.secondsOf(each, data, values)]);
  return [Object.fromEntries(times.filter(([, seconds]) => seconds !== null)), costForms.boundOf(data, values)];
})
"""

pytestmark = [
    pytest.mark.extended,
    needs_browser,
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("explorer")
    for name in (*SCRIPTS, *STYLES):
        shutil.copy(STATIC / name, folder)
    styles = "".join(f'<link rel="stylesheet" href="{name}">' for name in STYLES)
    scripts = "".join(f'<script defer src="{name}"></script>' for name in SCRIPTS)
    (folder / "page.html").write_text(
        '<!doctype html><html lang="en" data-theme="light"><head><meta charset="utf-8"><title>Explorer</title>'
        f'<meta name="viewport" content="width=device-width">{styles}{scripts}</head>'
        f"<body>{explorer()._repr_html_()}</body></html>",
        encoding="utf8",
    )
    return folder


def opened(page: Page, folder: Path) -> Locator:
    page.goto((folder / "page.html").as_uri())
    shown = page.locator("cost-explorer")
    expect(shown).to_have_attribute("data-ready", "true")
    return shown


def slide(shown: Locator, name: str, to: Any) -> None:
    """Move a slider to one of the values that it offers."""
    offered = explorer_data(explorer())[name]
    shown.locator(f"input[data-of={name}]").fill(str(offered.index(to)))


def cases() -> Iterator[Explorer]:
    """Each number of ranks with each number of ranks per node, all else by chance."""
    chance = random.Random(34)
    for p in OFFERED["p"]:
        for g in OFFERED["ranks_per_node"]:
            n, alpha, rate = (chance.choice(OFFERED[name]) for name in ("n", "alpha", "rate"))
            yield Explorer(p, n, alpha, rate, chance.choice([None, *OFFERED["adding"]]), g)


def test_it_computes_what_python_computes(page: Page, folder: Path) -> None:
    opened(page, folder)
    asked = list(cases())
    data = explorer_data(explorer())
    found = page.evaluate(COMPUTED, [data, [asdict(each) for each in asked]])
    assert any("hierarchical_ring" in times for times, _ in found)
    for case, (times, bound) in zip(asked, found, strict=True):
        assert times == pytest.approx(case.seconds(), rel=1e-9, abs=0), case
        gamma = 1 / case.adding if case.adding else 0.0
        least = lower_bound("all_reduce", case.p, case.n, case.alpha, 1 / case.rate, gamma)
        assert bound == pytest.approx(least, rel=1e-9, abs=0), case


def test_sliders_change_the_winner(page: Page, folder: Path) -> None:
    shown = opened(page, folder)
    verdict = shown.get_by_role("status")
    expect(verdict).to_have_text(
        "On 64 ranks, with 25 MiB, halving doubling, optimal and swing tie with 2.12 ms; parameter server and ring, "
        "the next, take 1.3 times as long."
    )
    slide(shown, "n", 8)
    expect(verdict).to_contain_text("with 8 B, recursive doubling and swing doubling tie with 30 µs;")
    slide(shown, "p", 63)
    slide(shown, "n", 1 << 34)
    expect(verdict).to_contain_text("On 63 ranks, with 16 GiB, optimal is the fastest with ")
    ranks = shown.get_by_label("Ranks, p")
    ranks.press("ArrowRight")
    expect(ranks).to_have_attribute("aria-valuetext", "64")
    slide(shown, "ranks_per_node", 8)
    expect(verdict).to_contain_text("multi channel ring is the fastest")
    expect(shown.get_by_text("lower bound", exact=True)).to_have_count(0)
    told = verdict.inner_text()
    slide(shown, "adding", 1e9)
    expect(verdict).not_to_have_text(told)


def test_a_label_hides_its_curve_and_shows_it_again(page: Page, folder: Path) -> None:
    shown = opened(page, folder)
    curves = shown.locator(".ce-curve:not(.ce-leader)")
    count = curves.count()
    for name in ("optimal", "swing"):
        label = shown.get_by_role("button", name=name, exact=True)
        label.press("Enter")
        expect(label).to_be_focused()
        expect(label).to_have_attribute("aria-pressed", "false")
    expect(curves).to_have_count(count - 2)
    expect(shown.get_by_role("status")).to_contain_text("halving doubling is the fastest with 2.12 ms; parameter")
    label.press(" ")
    expect(label).to_have_attribute("aria-pressed", "true")
    expect(curves).to_have_count(count - 1)
    shown.locator(".ce-labels button").evaluate_all("all => all.forEach(it => it.click())")
    expect(shown.get_by_role("status")).to_have_text("On 64 ranks, with 25 MiB, no algorithm is shown.")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("g", [1, 16])
def test_it_fits_a_telephone_and_labels_stay_apart(page: Page, folder: Path, theme: str, g: int) -> None:
    page.set_viewport_size(TELEPHONE)
    shown = opened(page, folder)
    page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
    for p in (2, 64, 24_576):
        slide(shown, "p", p)
        slide(shown, "ranks_per_node", g)
        assert page.evaluate("document.documentElement.scrollWidth") <= TELEPHONE["width"]
        assert page.evaluate(WIDEST) <= TELEPHONE["width"]
        boxes = [box for each in shown.locator(".ce-labels > *").all() if (box := each.bounding_box())]
        assert all(below["y"] >= above["y"] + 23.5 for above, below in pairwise(boxes))
        assert boxes[-1]["y"] + boxes[-1]["height"] <= bottom(shown.locator("svg"))


def bottom(shown: Locator) -> float:
    box = shown.bounding_box()
    assert box is not None
    return box["y"] + box["height"]


def test_without_javascript_the_times_are_there(browser: Browser, folder: Path) -> None:
    with browser.new_context(java_script_enabled=False) as context, context.new_page() as page:
        page.goto((folder / "page.html").as_uri())
        assert page.locator("cost-explorer p").inner_text() == explorer().sentence()

"""The built site in Chromium, without a network: what a reader sees, on a desk and on a telephone.

A page is opened once: for both colour schemes, and for axe.
"""

from typing import Any, NamedTuple

import pytest
from axe_playwright_python import base
from playwright.sync_api import Browser, Page, expect
from test_site import DOCUMENTS, SITE, TOC, needs_site

from browsers import TELEPHONE, needs_browser
from collectives.algorithms import ALGORITHMS

WIDEST_PICTURE = """
    Math.max(0, ...[...document.querySelectorAll("article :is(img, svg)")]
        .filter(it => !it.closest("figure.drawn"))  // which is scrolled: UNMARKED looks at it
        .map(picture => picture.getBoundingClientRect().right))
"""
# What can be scrolled sideways in the article, and does not show that there is more.
UNMARKED = """
    [...document.querySelectorAll("article *")]
        .filter(it => it.scrollWidth > it.clientWidth + 1 && /auto|scroll/.test(getComputedStyle(it).overflowX))
        .filter(it => !it.closest("schedule-player, textarea"))
        .filter(it => !getComputedStyle(it).backgroundImage.includes("gradient"))
        .map(it => it.outerHTML.slice(0, 120))
"""
UNTYPESET = """
    [...document.querySelectorAll("article .math")].filter(it => !it.querySelector("mjx-container"))
        .concat([...document.querySelectorAll("mjx-merror")]).map(it => it.outerHTML.slice(0, 200))
"""

DESK = {"width": 1280, "height": 720}

pytestmark = [
    pytest.mark.extended,
    needs_site,
    needs_browser,
]


def choose(page: Page, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    page.wait_for_function(f"document.documentElement.dataset.theme == '{scheme}'")


def test_the_index_shows_the_race_on_its_first_screen(page: Page, complaints: list[str]) -> None:
    page.goto("index.html")
    page.wait_for_url(f"**/{TOC['root']}.html")
    expect(page.locator("schedule-race")).to_have_attribute("data-playing", "true")
    lanes = page.locator("schedule-race .sp-lane")
    for size in ({"width": 1400, "height": 900}, TELEPHONE):
        page.set_viewport_size(size)
        box = lanes.first.bounding_box()
        assert box is not None
        assert box["y"] + box["height"] < size["height"]
    page.wait_for_load_state("networkidle")
    assert not complaints


@pytest.mark.parametrize("opened", DOCUMENTS, indirect=True)
def test_a_page_is_typeset_and_fits_a_telephone(opened: tuple[Page, list[str]]) -> None:
    page, complaints = opened
    for scheme in ("light", "dark"):
        choose(page, scheme)
        assert page.evaluate("document.documentElement.scrollWidth") <= TELEPHONE["width"]
        assert page.evaluate(WIDEST_PICTURE) <= TELEPHONE["width"]
        page.evaluate("window.MathJax?.startup?.promise")
        assert not page.evaluate(UNTYPESET)
        assert not page.evaluate(UNMARKED)
    assert not complaints


class Allowed(NamedTuple):
    """What axe finds in the theme and we leave there."""

    rule: str
    selector: str
    reason: str


ALLOWED = [
    Allowed("region", ".sidebar-primary-item", "the theme's logo, a link to the first page, is in no landmark"),
    Allowed("color-contrast", ".genindextable a", "the theme's colour of a link in bold on a striped row of the index"),
]


def violations(page: Page, rules: list[str] | None = None) -> list[str]:
    """What axe finds and the list does not allow: rule, place, and what is wrong."""
    options: dict[str, Any] = {"resultTypes": ["violations"], "preload": False}
    found = page.evaluate("options => axe.run(options)", options | ({"runOnly": rules} if rules else {}))
    return [
        f"{rule['id']} at {node['target']}: {node['failureSummary']}"
        for rule in found["violations"]
        for node in rule["nodes"]
        if not is_allowed(page, rule["id"], node["target"])
    ]


def is_allowed(page: Page, rule: str, target: list[str]) -> bool:
    node = page.locator(target[-1]).first
    return any(rule == it.rule and node.evaluate("(it, at) => it.closest(at) !== null", it.selector) for it in ALLOWED)


@pytest.mark.parametrize("opened", [*DOCUMENTS, "search", "genindex"], indirect=True)
def test_axe_finds_nothing(opened: tuple[Page, list[str]]) -> None:
    page, _ = opened
    page.set_viewport_size(DESK)
    choose(page, "light")
    page.evaluate(base.AXE_SCRIPT)
    assert not violations(page)
    choose(page, "dark")
    assert not violations(page, ["color-contrast"])


def test_next_leads_from_the_start_through_every_page_and_every_algorithm_from_disk(browser: Browser) -> None:
    """The files alone, without a server or a network: all pages in order, a player for every algorithm on them."""
    faults: list[str] = []
    visited, playable = [], set()
    with browser.new_context(offline=True) as context, context.new_page() as page:
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto((SITE / "index.html").as_uri())
        page.wait_for_url("**/preface.html")
        while len(visited) <= len(DOCUMENTS):
            address = page.url.partition("#")[0]  # the playground's carries its schedule
            visited.append(address.removeprefix(SITE.as_uri() + "/").removesuffix(".html"))
            for player in page.locator("schedule-player[collective]").all():
                choice = player.locator("select").first
                choice.wait_for()
                collective = player.get_attribute("collective")
                playable |= {
                    (collective, value) for value in choice.evaluate("it => [...it.options].map(o => o.value)")
                }
            if not page.locator("a.right-next").count():
                break
            page.locator("a.right-next").click()
            page.wait_for_load_state()
    assert visited == DOCUMENTS
    assert playable == set(ALGORITHMS)
    assert faults == []

"""The built site in Chromium, without a network: what a reader sees on a desk, a telephone and paper, and finds."""

import re
from typing import Any
from urllib.parse import quote

import pytest
from axe_playwright_python import base
from playwright.sync_api import Browser, Page, expect
from test_site import DOCUMENTS, SITE, TOC, article, needs_site

from browsers import TELEPHONE, needs_browser
from places import ROOT

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
UNREADY = (
    ":is(schedule-player, schedule-race, schedule-playground, cost-explorer):not([data-ready])"
)
DESK = {"width": 1280, "height": 720}
PAPER = {"width": 794, "height": 1123}  # A4 in CSS pixels
SHOWN = "all => all.filter(it => it.checkVisibility()).map(it => it.outerHTML.slice(0, 120))"
# Inside a closed dropdown nothing has a height.
# All of it but its heading takes no room. The buttons of a live cell are not printed.
CLOSED = """
all => all.filter(it => [...it.children].slice(1).every(part => part.getBoundingClientRect().height == 0))
  .map(it => it.textContent)
"""
INKS = "all => [...new Set(all.map(it => getComputedStyle(it).color))]"
# With code, tables, a player and answers in dropdowns.
PLAYED = next(each for each in DOCUMENTS if "two-tree" in each)
# What axe finds in the theme and we leave there: its logo is in no landmark, a link in bold on a
# striped row.
ALLOWED = {"region": ".sidebar-primary-item", "color-contrast": ".genindextable a"}
ORDER = (ROOT / "chapters" / "_ext" / "search_order.js").read_text(encoding="utf8")
EXPLAINED = dict(re.findall(r'^  "([^"]+)": "([^"]+)",$', ORDER, re.MULTILINE))

pytestmark = [pytest.mark.extended, needs_site, needs_browser]


def violations(page: Page, rules: list[str] | None = None) -> list[str]:
    """What axe finds and the list does not allow: rule, place, and what is wrong."""
    options: dict[str, Any] = {"resultTypes": ["violations"], "preload": False}
    found = page.evaluate(
        "options => axe.run(options)", options | ({"runOnly": rules} if rules else {})
    )
    return [
        f"{rule['id']} at {node['target']}: {node['failureSummary']}"
        for rule in found["violations"]
        for node in rule["nodes"]
        if not page.locator(node["target"][-1]).first.evaluate(
            "(it, at) => at && it.closest(at) !== null", ALLOWED.get(rule["id"])
        )
    ]


@pytest.mark.parametrize("document", [*DOCUMENTS, "search", "genindex"])
def test_a_page_is_typeset_fits_a_telephone_and_has_no_fault_for_axe(
    page: Page, complaints: list[str], document: str
) -> None:
    page.emulate_media(color_scheme="light", reduced_motion="reduce")
    page.set_viewport_size(TELEPHONE)
    page.goto(f"{document}.html")
    page.evaluate("window.MathJax?.startup?.promise")
    expect(page.locator(UNREADY)).to_have_count(0)
    page.evaluate(base.AXE_SCRIPT)
    for scheme, rules in (("light", None), ("dark", ["color-contrast"])):
        page.emulate_media(color_scheme=scheme)
        expect(page.locator(f"html[data-theme={scheme}]")).to_be_attached()
        page.set_viewport_size(TELEPHONE)
        assert page.evaluate("document.documentElement.scrollWidth") <= TELEPHONE["width"]
        assert page.evaluate(WIDEST_PICTURE) <= TELEPHONE["width"]
        assert not page.evaluate(UNTYPESET)
        assert not page.evaluate(UNMARKED)
        page.set_viewport_size(DESK)
        assert not violations(page, rules)
    assert not complaints


PLANTED = """
async () => {
    const script = options => Object.assign(document.createElement("script"), options);
    const refused = [];
    addEventListener("securitypolicyviolation", it => refused.push(it.blockedURI));
    document.body.append(script({ textContent: "window.planted = 1" }));
    document.body.append(script({ src: "https://example.org/x.js" }));
    document.body.insertAdjacentHTML("beforeend", `<img src="" onerror="window.planted = 1">`);
    await fetch("https://example.org/x").catch(() => {});
    await new Promise(done => setTimeout(done, 500));
    return [window.planted ?? 0, refused.sort()];
}
"""


def test_a_planted_script_and_one_of_another_host_do_not_run(page: Page) -> None:
    page.goto(f"{PLAYED}.html")
    here, there = ["inline", "inline"], ["https://example.org/x", "https://example.org/x.js"]
    assert page.evaluate(PLANTED) == [0, [*there, *here]]


def test_the_index_shows_the_race_on_its_first_screen(page: Page, complaints: list[str]) -> None:
    page.goto("index.html")
    page.wait_for_url(f"**/{TOC['root']}.html")
    expect(page.locator("schedule-race")).to_have_attribute("data-playing", "true")
    for size in ({"width": 1400, "height": 900}, TELEPHONE):
        page.set_viewport_size(size)
        box = page.locator("schedule-race .sp-lane").first.bounding_box()
        assert box is not None
        assert box["y"] + box["height"] < size["height"]
    page.wait_for_load_state("networkidle")
    assert not complaints


def test_a_site_on_disk_needs_no_server(browser: Browser) -> None:
    faults: list[str] = []
    with browser.new_context(offline=True) as context, context.new_page() as page:
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto((SITE / "index.html").as_uri())
        page.wait_for_url(f"**/{TOC['root']}.html")
        for document, element in (
            (PLAYED, "schedule-player"),
            ("chapters/playground", "schedule-playground"),
        ):
            page.goto((SITE / f"{document}.html").as_uri())
            expect(page.locator(element).first).to_have_attribute("data-ready", "true")
    assert not faults


def test_paper_has_the_article_alone_in_dark_ink_with_dropdowns_open(page: Page) -> None:
    page.set_viewport_size(PAPER)
    page.goto(f"{PLAYED}.html")
    page.wait_for_load_state("networkidle")
    for scheme in ("light", "dark"):
        page.emulate_media(media="print", color_scheme=scheme, reduced_motion="reduce")
        expect(page.locator(f"html[data-theme={scheme}]")).to_be_attached()
        for hidden in (
            ".bd-sidebar-primary, .bd-header, .copybtn",
            "schedule-player :is(button, input)",
            ".only-dark",
        ):
            assert not page.locator(hidden).evaluate_all(SHOWN)
        words = page.locator(
            "article section p:not(schedule-player p), article pre, article pre span"
        )
        assert words.evaluate_all(INKS) == ["rgb(31, 35, 40)"]
        assert page.evaluate("document.documentElement.scrollWidth") <= PAPER["width"]
    assert page.locator("article details:not([open])").count()
    assert not page.locator("article details").evaluate_all(CLOSED)


def first_found(page: Page, query: str) -> str:
    page.goto(f"search.html?q={quote(query)}")
    return str(page.locator("ul.search li a").first.get_attribute("href")).partition(".html")[0]


def test_search_finds_the_chapter_that_explains_a_term_or_has_it_as_title(
    page: Page, complaints: list[str]
) -> None:
    titles = {article(each).select("h1")[0].get_text().rstrip("#"): each for each in DOCUMENTS[::5]}
    asked = titles | EXPLAINED | {"parameter server": "chapters/parameter-server"}
    assert {term: first_found(page, term) for term in asked} == asked
    page.wait_for_load_state("networkidle")
    complaints.clear()  # of requests that the next search has ended
    term, chapter = next(iter(EXPLAINED.items()))
    assert first_found(page, term.upper()) == chapter
    page.wait_for_load_state("networkidle")  # each result's page is asked for, to quote it
    assert not complaints

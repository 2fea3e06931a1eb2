"""Pages of the built site on paper."""

import pytest
from playwright.sync_api import Page
from test_site import DOCUMENTS, needs_site

from browsers import needs_browser

PAPER = {"width": 794, "height": 1123}  # A4 in CSS pixels
SHOWN = "all => all.filter(it => it.checkVisibility()).map(it => it.outerHTML.slice(0, 120))"
AROUND = ".bd-sidebar-primary, .bd-sidebar-secondary, .bd-header, .bd-header-article, .prev-next-footer, .copybtn"
PRESSED = "schedule-player :is(button, input)"
WORDS = "article section p:not(schedule-player p), article pre, article pre span"
INKS = "all => [...new Set(all.map(it => getComputedStyle(it).color))]"
# Inside a closed dropdown nothing has a height.
CLOSED = "all => all.filter(it => it.lastElementChild.getBoundingClientRect().height == 0).map(it => it.textContent)"
# With code, tables, a player and answers in dropdowns.
PLAYED = next(each for each in DOCUMENTS if "two-tree" in each)

pytestmark = [
    pytest.mark.extended,
    needs_site,
    needs_browser,
]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_paper_has_the_article_alone_in_dark_ink(page: Page, scheme: str) -> None:
    page.set_viewport_size(PAPER)
    page.emulate_media(media="print", color_scheme=scheme, reduced_motion="reduce")
    page.goto(f"{PLAYED}.html")
    page.wait_for_load_state("networkidle")
    assert not page.locator(AROUND).evaluate_all(SHOWN)
    assert not page.locator(PRESSED).evaluate_all(SHOWN)
    assert not page.locator("article .only-dark").evaluate_all(SHOWN)
    assert page.locator(WORDS).evaluate_all(INKS) == ["rgb(31, 35, 40)"]
    assert page.evaluate("document.documentElement.scrollWidth") <= PAPER["width"]


def test_dropdowns_are_open_on_paper(page: Page) -> None:
    page.emulate_media(media="print")
    page.goto(f"{PLAYED}.html")
    assert page.locator("article details:not([open])").count()
    assert not page.locator("article details").evaluate_all(CLOSED)

"""The built site in Chromium, without a network: what a reader sees, on a desk and on a telephone."""

import shutil
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from test_site import DOCUMENTS, SITE, TOC, needs_site

from collectives.algorithms import ALGORITHMS

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
# Chromium's own traffic would be mistaken for the page's.
QUIET = ["--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
WIDEST_PICTURE = """
    Math.max(0, ...[...document.querySelectorAll("article :is(img, svg)")]
        .map(picture => picture.getBoundingClientRect().right))
"""
TELEPHONE = {"width": 390, "height": 844}

pytestmark = [
    pytest.mark.extended,
    needs_site,
    pytest.mark.skipif(CHROMIUM is None, reason=f"no browser: none of {', '.join(NAMES)} is installed"),
]


class Quiet(SimpleHTTPRequestHandler):
    """Serves files and says nothing."""

    def log_message(self, *_: object) -> None: ...


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(SITE))) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield chromium
        chromium.close()


@pytest.fixture
def complaints() -> list[str]:
    return []


@pytest.fixture
def page(browser: Browser, site: str, complaints: list[str]) -> Iterator[Page]:
    """A page that writes down everything that goes wrong in it, and every address outside the site."""

    def note_address(url: str) -> None:
        if not url.startswith((site, "data:", "blob:")):
            complaints.append(f"asks another host: {url}")

    def note_line(kind: str, text: str, url: str) -> None:
        if kind == "error" and not url.endswith("/favicon.ico"):  # Chromium looks for one by itself
            complaints.append(f"console: {text} {url}")

    with browser.new_context(base_url=site) as context, context.new_page() as page:
        page.on("request", lambda request: note_address(request.url))
        page.on("requestfailed", lambda request: complaints.append(f"failed: {request.url}"))
        page.on("response", lambda it: it.status >= 400 and complaints.append(f"{it.status}: {it.url}"))
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        page.on("console", lambda line: note_line(line.type, line.text, line.location["url"]))
        yield page


def test_the_index_shows_the_measured_plot(page: Page, complaints: list[str]) -> None:
    page.goto("index.html")
    page.wait_for_url(f"**/{TOC['root']}.html")
    measured = 'article :is(img[alt^="Measured"], svg[aria-label^="Measured"])'
    plot = page.locator(measured).first
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    assert box is not None
    assert min(box["width"], box["height"]) > 100
    page.wait_for_load_state("networkidle")
    assert not complaints


def test_formulas_are_typeset(page: Page, complaints: list[str]) -> None:
    page.goto("chapters/cost-model.html")
    page.locator("article mjx-container").first.wait_for(state="visible")
    page.wait_for_load_state("networkidle")
    assert page.locator("mjx-merror").count() == 0
    assert not complaints


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_page_fits_a_telephone(page: Page, complaints: list[str], document: str, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size(TELEPHONE)
    page.goto(f"{document}.html")
    page.wait_for_load_state("networkidle")
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    assert page.evaluate("document.documentElement.scrollWidth") <= TELEPHONE["width"]
    assert page.evaluate(WIDEST_PICTURE) <= TELEPHONE["width"]
    assert not complaints


def test_next_leads_from_the_start_through_every_page_and_every_algorithm_from_disk(browser: Browser) -> None:
    """The files alone, without a server or a network: all pages in order, a player for every algorithm on them."""
    faults: list[str] = []
    visited, playable = [], set()
    with browser.new_context(offline=True) as context, context.new_page() as page:
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto((SITE / "index.html").as_uri())
        page.wait_for_url("**/preface.html")
        while len(visited) <= len(DOCUMENTS):
            visited.append(page.url.removeprefix(SITE.as_uri() + "/").removesuffix(".html"))
            for player in page.locator("schedule-player").all():
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

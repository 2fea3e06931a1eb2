"""The built site, served to a browser in which nothing may go wrong."""

from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from playwright.sync_api import Browser, Page, expect

from places import PATIENCE, ROOT

# Playwright waits five seconds for what a page is to become, which a busy machine does not keep.
expect.set_options(timeout=PATIENCE * 1000)


class Quiet(SimpleHTTPRequestHandler):
    """Serves files and says nothing."""

    def log_message(self, *_: object) -> None: ...


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(Quiet, directory=str(ROOT / "_build" / "html"))
    ) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture
def complaints() -> list[str]:
    return []


@pytest.fixture
def page(browser: Browser, site: str, complaints: list[str]) -> Iterator[Page]:
    """A page that writes down everything that goes wrong in it, and every address outside the site."""

    def note_address(url: str) -> None:
        if not url.startswith((site, "data:", "blob:")):
            complaints.append(f"asks another host: {url}")

    with browser.new_context(base_url=site) as context, context.new_page() as page:
        page.on("request", lambda request: note_address(request.url))
        page.on("requestfailed", lambda request: complaints.append(f"failed: {request.url}"))
        page.on(
            "response", lambda it: it.status >= 400 and complaints.append(f"{it.status}: {it.url}")
        )
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        page.on(
            "console",
            lambda line: line.type == "error" and complaints.append(f"console: {line.text}"),
        )
        yield page

"""axe on every page of the built site, in light and in dark."""

from typing import Any, NamedTuple

import pytest
from axe_playwright_python import base
from playwright.sync_api import Page
from test_site import DOCUMENTS, needs_site

from browsers import needs_browser

pytestmark = [
    pytest.mark.extended,
    needs_site,
    needs_browser,
]


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


@pytest.mark.parametrize("document", [*DOCUMENTS, "search", "genindex"])
def test_axe_finds_nothing(page: Page, document: str) -> None:
    page.emulate_media(color_scheme="light", reduced_motion="reduce")
    page.goto(f"{document}.html")
    page.wait_for_load_state("networkidle")
    page.evaluate(base.AXE_SCRIPT)
    assert not violations(page)
    page.emulate_media(color_scheme="dark", reduced_motion="reduce")
    page.wait_for_function("document.documentElement.dataset.theme == 'dark'")
    assert not violations(page, ["color-contrast"])

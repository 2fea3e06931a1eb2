"""The site's search: the chapter that explains a term comes first."""

import re
from urllib.parse import quote

import pytest
from playwright.sync_api import Page
from test_site import DOCUMENTS, article, needs_site

from browsers import needs_browser
from places import ROOT

ORDER = (ROOT / "chapters" / "_ext" / "search_order.js").read_text(encoding="utf8")
EXPLAINED = dict(re.findall(r'^  "([^"]+)": "([^"]+)",$', ORDER, re.MULTILINE))
CHAPTERS = [each for each in DOCUMENTS if each.startswith("chapters/")]

pytestmark = [
    pytest.mark.extended,
    needs_site,
    needs_browser,
]


def first_found(page: Page, query: str) -> str:
    page.goto(f"search.html?q={quote(query)}")
    return str(page.locator("ul.search li a").first.get_attribute("href")).partition(".html")[0]


def test_words_that_name_a_page(page: Page) -> None:
    assert first_found(page, "two-tree") == "chapters/two-tree-all-reduce"
    assert first_found(page, "Recursive doubling") == "chapters/recursive-doubling-and-halving"
    assert first_found(page, "parameter server") == "chapters/parameter-server"


def test_a_term_leads_to_the_chapter_that_explains_it(page: Page, complaints: list[str]) -> None:
    assert not [term for term, chapter in EXPLAINED.items() if term not in article(chapter).get_text().lower()]
    assert {term: first_found(page, term) for term in EXPLAINED} == EXPLAINED
    page.wait_for_load_state("networkidle")
    complaints.clear()  # of requests that the next search has ended
    term, chapter = next(iter(EXPLAINED.items()))
    assert first_found(page, term.upper()) == chapter
    page.wait_for_load_state("networkidle")  # each result's page is asked for, to quote it
    assert not complaints


def test_a_chapter_is_found_first_by_its_title(page: Page) -> None:
    for document in CHAPTERS:
        title = article(document).select_one("h1")
        assert title is not None
        assert first_found(page, title.get_text().rstrip("#")) == document

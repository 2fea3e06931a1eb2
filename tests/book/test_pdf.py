"""The printed book: a bookmark for every page, numbered sheets, links that stay inside."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bs4 import BeautifulSoup
from pypdf import PdfReader
from test_site import DOCUMENTS, SITE, TOC, needs_site, parse

from places import script

PDF = script("pdf")

SMALL = """
<html><head><link rel="stylesheet" href="../_static/x.css"></head><body><article><h1 id="one">One</h1>
<p><a href="two.html#there">two</a> <a href="#one">up</a> <a href="https://example.org/">out</a>
<a href="../x.csv">rows</a> <img src="a.svg"></p>
<script>run()</script><schedule-player><script type="application/json">{"p": 2}</script></schedule-player>
<details class="hide above-input">code</details><details class="sd-dropdown">answer</details></article></body></html>
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "chapters").mkdir()
    (tmp_path / "chapters" / "one.html").write_text(SMALL)
    return tmp_path


def test_a_page_becomes_a_piece_of_the_book(site: Path) -> None:
    found = PDF.article("chapters/one", site)
    links = [link["href"] for link in found.select("a")]
    assert links == ["#chapters-two--there", "#chapters-one--one", "https://example.org/"]
    assert found.img["src"] == (site / "chapters" / "a.svg").as_uri()
    assert found.h2["id"] == "chapters-one--one"
    assert [each.get_text() for each in found.select("script")] == ['{"p": 2}']
    assert [(each.get_text(), each["open"]) for each in found.select("details")] == [("answer", "")]


def test_the_contents_have_every_part_and_page(site: Path) -> None:
    soup = BeautifulSoup(PDF.book((("", ["chapters/one"]), ("A & B", [])), site), "html.parser")
    assert [link["href"] for link in soup.select("nav a")] == ["#chapters-one"]
    assert [heading.get_text() for heading in soup.select("h1")] == ["A & B"]
    assert soup.select_one("link")["href"] == (site / "_static" / "x.css").as_uri()
    assert [page for _, pages in PDF.contents() for page in pages] == DOCUMENTS


def test_a_page_shows_the_link_to_the_pdf_if_there_is_one(site: Path) -> None:
    page, pdf = site / "chapters" / "one.html", site.parent / "book.pdf"
    pdf.write_bytes(b"pdf")
    page.write_text('<a href="../genindex.html">Index</a> <!--pdf <a href="../book.pdf">PDF</a> --> <!-- else -->')
    PDF.offer(pdf, site)
    assert page.read_text() == '<a href="../genindex.html">Index</a> <a href="../book.pdf">PDF</a> <!-- else -->'
    assert (page.parent / "../book.pdf").read_bytes() == b"pdf"


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> PdfReader:
    path = tmp_path_factory.mktemp("pdf") / "book.pdf"
    PDF.write(path)
    return PdfReader(path)


def bookmarks(outline: list[Any]) -> Iterator[Any]:
    for each in outline:
        yield from bookmarks(each) if isinstance(each, list) else [each]


def words(text: str) -> str:
    return "".join(text.split())


@pytest.mark.extended
@needs_site
@pytest.mark.timeout(900)
def test_every_page_has_a_bookmark_that_leads_to_its_title(printed: PdfReader) -> None:
    outline = list(bookmarks(printed.outline))
    found = {words(each.title): each for each in reversed(outline)}
    titles = [
        parse(SITE / f"{page}.html").select_one("article h1").get_text().strip().rstrip("#") for page in DOCUMENTS
    ]
    assert {words(each) for each in (*titles, *(part["caption"] for part in TOC["parts"]))} <= set(found)
    for title in titles:
        sheet = printed.pages[printed.get_destination_page_number(found[words(title)])]
        assert words(title) in words(sheet.extract_text())


@pytest.mark.extended
@needs_site
@pytest.mark.timeout(900)
def test_sheets_have_numbers_and_links_stay_inside(printed: PdfReader) -> None:
    assert len(printed.pages) > 2 * len(DOCUMENTS)
    assert all(str(nth) in sheet.extract_text().split() for nth, sheet in enumerate(printed.pages, start=1) if nth > 1)
    targets = {
        str(note.get_object().get("/A", {}).get("/URI", ""))
        for sheet in printed.pages
        for note in sheet.get("/Annots", [])
    }
    assert not [target for target in targets if target.startswith("file:")]

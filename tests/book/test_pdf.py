"""The printed book: a bookmark for every page, numbered sheets, links that stay inside."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bs4 import BeautifulSoup
from pypdf import PdfReader
from test_site import DOCUMENTS, TOC, article, needs_site

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
    page.write_text(
        '<a href="../genindex.html">Index</a> <!--pdf <a href="../book.pdf">PDF</a> --> <!-- else -->'
    )
    PDF.offer(pdf, site)
    assert (
        page.read_text()
        == '<a href="../genindex.html">Index</a> <a href="../book.pdf">PDF</a> <!-- else -->'
    )
    assert (page.parent / "../book.pdf").read_bytes() == b"pdf"


def bookmarks(outline: list[Any]) -> Iterator[Any]:
    for each in outline:
        yield from bookmarks(each) if isinstance(each, list) else [each]


def words(text: str) -> str:
    return "".join(text.split())


@pytest.mark.extended
@needs_site
@pytest.mark.timeout(900)
def test_the_printed_book_has_bookmarks_numbered_sheets_and_no_link_to_a_file(
    tmp_path: Path,
) -> None:
    PDF.write(tmp_path / "book.pdf")
    printed = PdfReader(tmp_path / "book.pdf")
    found = {words(each.title): each for each in reversed(list(bookmarks(printed.outline)))}
    titles = [article(page).select("h1")[0].get_text().strip().rstrip("#") for page in DOCUMENTS]
    assert {words(each) for each in (*titles, *(part["caption"] for part in TOC["parts"]))} <= set(
        found
    )
    sheets = [sheet.extract_text() for sheet in printed.pages]
    for title in titles:
        assert words(title) in words(
            sheets[printed.get_destination_page_number(found[words(title)])]
        )
    assert all(str(nth) in text.split() for nth, text in enumerate(sheets, start=1) if nth > 1)
    notes = [note.get_object() for sheet in printed.pages for note in sheet.get("/Annots", [])]
    assert not [
        note for note in notes if str(note.get("/A", {}).get("/URI", "")).startswith("file:")
    ]

"""The built site in _build/html, as files. tests/book/test_site_browser.py opens it in a browser."""

import json
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat
import pytest
import yaml
from bs4 import BeautifulSoup, Tag

from places import ROOT

SITE = ROOT / "_build" / "html"
TOC = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf8"))
CHAPTERS = [entry for part in TOC["parts"] for entry in part["chapters"]]
DOCUMENTS = [TOC["root"], *(each["file"] for entry in CHAPTERS for each in (entry, *entry.get("sections", [])))]
NOTEBOOKS = [ROOT / f"{name}.ipynb" for name in DOCUMENTS if name.startswith("experiments/results/")]
FETCHES = "script[src], link[href], img[src], source[src], iframe[src], video[src], audio[src], object[data]"
FILE_NAME = re.compile(r"\.(svg|png|jpe?g|gif|webp)$", re.IGNORECASE)

needs_site = pytest.mark.skipif(not (SITE / "index.html").exists(), reason="no site: run `make book`")
pytestmark = [pytest.mark.extended, needs_site]


@cache
def parse(page: Path) -> BeautifulSoup:
    return BeautifulSoup(page.read_text(encoding="utf8"), "html.parser")


def pages() -> list[Path]:
    return sorted(page for page in SITE.rglob("*.html") if "_static" not in page.parts)


def article(document: str) -> Tag:
    """What the page says, without the theme around it."""
    (found,) = parse(SITE / f"{document}.html").select("article")
    return found


def is_elsewhere(url: str) -> bool:
    return bool(urlsplit(url).netloc)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_page_of_the_contents_is_built(document: str) -> None:
    assert article(document).select_one("h1")


def test_index_leads_to_the_preface_from_wherever_the_site_lies() -> None:
    page = parse(SITE / "index.html")
    first = f"{TOC['root']}.html"
    refresh, link, icon = (page.select_one(one) for one in ("meta[http-equiv=Refresh]", "a", "link[rel=icon]"))
    assert refresh is not None
    assert link is not None
    assert icon is not None
    assert (refresh["content"], link["href"]) == (f"0; url={first}", first)
    # Named, or the browser asks for /favicon.ico; empty, because a redirect would abort a request for it.
    assert icon["href"] == "data:,"


def test_no_page_fetches_from_another_host() -> None:
    found = [
        (page.name, url)
        for page in pages()
        for tag in parse(page).select(FETCHES)
        for url in [str(tag.get("src") or tag.get("href") or tag.get("data"))]
        if is_elsewhere(url)
    ]
    # A script in the page may name an address to fetch later.
    found += [
        (page.name, url)
        for page in pages()
        for script in parse(page).select("script:not([src])")
        for url in re.findall(r"https?://[^\s'\"]+", script.get_text())
    ]
    assert not found


def test_no_style_sheet_fetches_from_another_host() -> None:
    fetch = re.compile(r"(?:url\(|@import)\s*['\"]?((?:https?:)?//[^'\")\s]+)")
    sheets = {sheet.name: sheet.read_text(encoding="utf8") for sheet in SITE.rglob("*.css")}
    sheets |= {page.name: str(tag) for page in pages() for tag in parse(page).select("style, [style]")}
    assert not [(name, url) for name, text in sheets.items() for url in fetch.findall(text)]


def has_alternative(tag: Tag) -> bool:
    if tag.name == "img":
        alt = str(tag.get("alt", "")).strip()
        return bool(alt) and not FILE_NAME.search(alt)  # myst-nb falls back to the name of the file
    title = tag.find("title", recursive=False)
    named = tag.get("aria-label") or tag.get("aria-labelledby") or title
    return tag.get("aria-hidden") == "true" or (tag.get("role") == "img" and bool(named))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_picture_has_an_alternative_text(document: str) -> None:
    pictures = [tag for tag in article(document).select("img, svg") if not tag.find_parent("svg")]
    assert not [str(tag)[:200] for tag in pictures if not has_alternative(tag)]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_no_page_shows_an_error_or_a_warning(document: str) -> None:
    outputs = article(document).select(".output.stderr, .output.traceback, .system-message, .problematic")
    assert not [output.get_text()[:500] for output in outputs]
    shown = [cell.get_text() for cell in article(document).select("pre:not(.doctest pre)")]  # an example may raise
    assert not [text[:500] for text in shown if "Traceback (most recent call last)" in text]


def broken_links(page: Path) -> list[str]:
    """The page's links to this site that name no file, or no anchor in it."""
    broken = []
    for tag in parse(page).select("a[href], link[href], script[src], img[src]"):
        url = urlsplit(str(tag.get("href") or tag.get("src")))
        if url.scheme or url.netloc:
            continue
        target = (page.parent / unquote(url.path)).resolve() if url.path else page
        if target.name == "playground.html" and url.fragment.startswith("c="):
            continue  # what the playground opens with
        # "#" and "" are buttons of the theme.
        if not target.is_file() or (url.fragment and not has_anchor(target, unquote(url.fragment))):
            broken.append(url.geturl())
    return broken


@cache
def anchors(page: Path) -> set[str]:
    return {str(tag["id"]) for tag in parse(page).select("[id]")}


def has_anchor(page: Path, anchor: str) -> bool:
    return anchor in anchors(page)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_no_page_shows_a_role_as_text(document: str) -> None:
    """In an output, roles need ``render_markdown_format: myst`` at the head of the page."""
    page = (SITE / f"{document}.html").read_text(encoding="utf8")
    assert not re.findall(r"\{(?:doc|ref|term|cite:[pt])\}\s*<code", page)


def test_every_link_within_the_site_leads_somewhere() -> None:
    broken = {page.relative_to(SITE).as_posix(): broken_links(page) for page in pages()}
    assert not {page: links for page, links in broken.items() if links}


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_an_executed_notebook_ran_to_its_end(notebook: Path) -> None:
    """A failed one would be published with its traceback, and the build would be green."""
    record = json.loads(notebook.read_text(encoding="utf8"))["metadata"]["papermill"]
    assert record["end_time"]
    assert not record["exception"]


def outputs(notebook: Path) -> list[object]:
    """What the cells show; their streams are left out, as the build joins pieces of them."""
    cells = json.loads(notebook.read_text(encoding="utf8"))["cells"]
    return [[shown for shown in cell.get("outputs", []) if shown["output_type"] != "stream"] for cell in cells]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_the_build_did_not_run_an_executed_notebook_again(notebook: Path) -> None:
    """Its outputs are a measurement; a second run would replace them with another one."""
    built = ROOT / "_build" / "jupyter_execute" / notebook.relative_to(ROOT)
    assert outputs(built) == outputs(notebook)


def weight(paths: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in paths if path.is_file())


def test_the_site_is_below_26_mb() -> None:
    """Every file of it, downloads too: notebooks with their figures are 7 MB."""
    files = {*SITE.rglob("*")} - {SITE / "book.pdf"}  # of `make pdf`
    heavy = sorted(files, key=lambda path: -path.stat().st_size)[:10]
    assert weight(files) < 26e6, [path.relative_to(SITE).as_posix() for path in heavy]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_page_is_below_1_mb(document: str) -> None:
    """Its HTML and the figures that it shows in one theme; style sheets and scripts are common to all pages."""
    page = SITE / f"{document}.html"
    figures = {page.parent / str(tag["src"]) for tag in article(document).select("img[src]:not(.only-dark)")}
    assert page.stat().st_size < 1e6
    assert weight([page, *figures]) < 1e6


def test_titles_tell_pages_apart() -> None:
    titles = {document: heading(document) for document in DOCUMENTS}
    assert len({title.lower() for title in titles.values()}) == len(titles)
    data = [document for document, title in titles.items() if title.startswith("Data: ")]
    assert data == [document for document in DOCUMENTS if document.startswith("experiments/")]


def heading(document: str) -> str:
    return str(parse(SITE / f"{document}.html").select_one("meta[property='og:title']")["content"])


def test_every_page_has_a_description_of_its_own() -> None:
    said = {document: described(document) for document in DOCUMENTS}
    assert not [document for document, text in said.items() if len(text) < 40]
    assert len(set(said.values())) == len(said)


def described(document: str) -> str:
    (tag,) = parse(SITE / f"{document}.html").select("meta[name=description]")
    return str(tag["content"])


def test_the_icon_is_there() -> None:
    assert all(parse(SITE / f"{document}.html").select_one("link[rel=icon]") for document in DOCUMENTS)
    assert (SITE / "_static" / "card.png").is_file()


WITH_CELLS = [document for document in DOCUMENTS if (ROOT / "_build/jupyter_execute" / f"{document}.ipynb").exists()]


@pytest.mark.parametrize("document", WITH_CELLS)
def test_a_page_with_cells_can_be_downloaded_as_a_notebook(document: str) -> None:
    page = SITE / f"{document}.html"
    (link,) = {str(tag["href"]) for tag in parse(page).select("a.btn[href$='.ipynb']")}
    notebook = nbformat.read(page.parent / link, as_version=4)
    nbformat.validate(notebook)
    assert any(cell.get("outputs") for cell in notebook.cells)


@pytest.mark.parametrize("document", [each for each in DOCUMENTS if not each.startswith("experiments/")])
def test_a_page_can_be_downloaded_as_plain_markdown(document: str) -> None:
    text = (SITE / "_sources" / f"{document}.md").read_text(encoding="utf8")
    assert text.startswith("# ")
    assert not re.findall(r"\{(?:doc|ref|term|cite:[pt])\}`|^[`:]{3,}\{.*", text, re.MULTILINE)


def test_every_page_leads_to_the_index_and_the_sidebar_to_no_data() -> None:
    for document in DOCUMENTS:
        sidebar = parse(SITE / f"{document}.html").select_one(".bd-sidebar-primary")
        assert sidebar is not None
        assert sidebar.select_one("a[href$='genindex.html']")
        assert not sidebar.select("a[href*='results/quick']")

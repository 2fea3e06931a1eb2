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

from collectives.core.contracts import CONTRACTS
from places import ROOT

SITE = ROOT / "_build" / "html"
TOC = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf8"))
CHAPTERS = [entry for part in TOC["parts"] for entry in part["chapters"]]
DOCUMENTS = [
    TOC["root"],
    *(each["file"] for entry in CHAPTERS for each in (entry, *entry.get("sections", []))),
]
NOTEBOOKS = [
    ROOT / f"{name}.ipynb" for name in DOCUMENTS if name.startswith("experiments/results/")
]
WITH_CELLS = [
    document
    for document in DOCUMENTS
    if (ROOT / "_build/jupyter_execute" / f"{document}.ipynb").exists()
]
MYST = r"\{(?:doc|ref|term|cite:[pt])\}`|^[`:]{3,}\{.*"  # its roles and directives
FILE_NAME = re.compile(r"\.(svg|png|jpe?g|gif|webp)$", re.IGNORECASE)

needs_site = pytest.mark.skipif(
    not (SITE / "index.html").exists(), reason="no site: run `make book`"
)
pytestmark = [pytest.mark.extended, needs_site]


@cache
def parse(page: Path) -> BeautifulSoup:
    return BeautifulSoup(page.read_text(encoding="utf8"), "html.parser")


def article(document: str) -> Tag:
    """What the page says, without the theme around it."""
    (found,) = parse(SITE / f"{document}.html").select("article")
    return found


def has_alternative(tag: Tag) -> bool:
    if tag.name == "img":
        alt = str(tag.get("alt", "")).strip()
        return bool(alt) and not FILE_NAME.search(alt)  # myst-nb falls back to the name of the file
    named = (
        tag.get("aria-label") or tag.get("aria-labelledby") or tag.find("title", recursive=False)
    )
    return tag.get("aria-hidden") == "true" or (tag.get("role") == "img" and bool(named))


def weight(paths: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in paths if path.is_file())


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_page_is_whole(document: str) -> None:
    """It has a title, alternative texts, no error, role or dashed option as text, and is below 1 MB in one theme."""
    page, shown = SITE / f"{document}.html", article(document)
    assert shown.select_one("h1")
    pictures = [tag for tag in shown.select("img, svg") if not tag.find_parent("svg")]
    assert not [str(tag)[:200] for tag in pictures if not has_alternative(tag)]
    faults = shown.select(".output.stderr, .output.traceback, .system-message, .problematic")
    assert not [fault.get_text()[:500] for fault in faults]
    # An example may raise.
    cells = [cell.get_text() for cell in shown.select("pre:not(.doctest pre)")]
    assert not [text[:500] for text in cells if "Traceback (most recent call last)" in text]
    # In an output, roles need ``render_markdown_format: myst`` at the head of the page.
    assert not re.findall(
        r"\{(?:doc|ref|term|cite:[pt])\}\s*<code", page.read_text(encoding="utf8")
    )
    assert not re.findall(r"\s–[a-z]+", shown.get_text())  # an option whose hyphens became a dash
    figures = {page.parent / str(tag["src"]) for tag in shown.select("img[src]:not(.only-dark)")}
    assert weight([page, *figures]) < 1e6


def broken_links(page: Path) -> list[str]:
    """The page's links to this site that name no file, or no anchor in it."""
    broken = []
    for tag in parse(page).select("a[href], link[href], script[src], img[src]"):
        url = urlsplit(str(tag.get("href") or tag.get("src")))
        target = (page.parent / unquote(url.path)).resolve() if url.path else page
        if (
            url.scheme
            or url.netloc
            or (target.name == "playground.html" and url.fragment.startswith("c="))
        ):
            continue  # elsewhere, or what the playground opens with
        # "#" and "" are buttons of the theme.
        if not target.is_file() or (url.fragment and unquote(url.fragment) not in anchors(target)):
            broken.append(url.geturl())
    return broken


@cache
def anchors(page: Path) -> set[str]:
    return {str(tag["id"]) for tag in parse(page).select("[id]")}


def test_every_link_within_the_site_leads_somewhere() -> None:
    pages = [page for page in sorted(SITE.rglob("*.html")) if "_static" not in page.parts]
    broken = {page.relative_to(SITE).as_posix(): broken_links(page) for page in pages}
    assert not {page: links for page, links in broken.items() if links}


def test_next_leads_through_every_page_and_players_show_every_collective() -> None:
    pages = [parse(SITE / f"{document}.html") for document in DOCUMENTS]
    following = [str(link["href"]) for page in pages for link in page.select("a.right-next")]
    assert [Path(each).stem for each in following] == [Path(each).name for each in DOCUMENTS[1:]]
    assert {
        str(each["collective"])
        for page in pages
        for each in page.select("schedule-player[collective]")
    } == {*CONTRACTS}


def test_the_list_for_programs_has_the_source_of_every_page() -> None:
    listed = re.findall(r"\((.*)\)$", (SITE / "llms.txt").read_text(encoding="utf8"), re.MULTILINE)
    pages = [TOC["root"], *(entry["file"] for entry in CHAPTERS)]
    assert listed == [f"_sources/{page}.md" for page in pages]
    assert [address for address in listed if not (SITE / address).is_file()] == []


def test_titles_and_descriptions_tell_pages_apart() -> None:
    for name in ("meta[property='og:title']", "meta[name=description]"):
        said = {
            str(parse(SITE / f"{each}.html").select(name)[0]["content"]).lower()
            for each in DOCUMENTS
        }
        assert len(said) == len(DOCUMENTS)
        assert all(said)


def test_the_site_is_below_22_mb_and_the_python_of_its_cells_below_35() -> None:
    """Every file of it, downloads too: notebooks with their figures are 5 MB.

    Python is fetched at a reader's first click only.
    """
    python = {*(SITE / "_static" / "python").rglob("*")}
    pages = {*SITE.rglob("*")} - python - {SITE / "book.pdf"}  # of `make pdf`
    for files, most in ((pages, 22e6), (python, 35e6)):
        heavy = sorted(files, key=lambda path: -path.stat().st_size)[:10]
        assert weight(files) < most, [path.relative_to(SITE).as_posix() for path in heavy]


def outputs(notebook: Path) -> list[object]:
    """What the cells show; their streams are left out, as the build joins pieces of them."""
    cells = json.loads(notebook.read_text(encoding="utf8"))["cells"]
    return [
        [shown for shown in cell.get("outputs", []) if shown["output_type"] != "stream"]
        for cell in cells
    ]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_an_executed_notebook_ran_to_its_end_and_the_build_did_not_run_it_again(
    notebook: Path,
) -> None:
    """Its outputs are a measurement, which a second run would replace.

    A failed one would leave the build green.
    """
    record = json.loads(notebook.read_text(encoding="utf8"))["metadata"]["papermill"]
    assert record["end_time"]
    assert not record["exception"]
    built = ROOT / "_build" / "jupyter_execute" / notebook.relative_to(ROOT)
    assert outputs(built) == outputs(notebook)


@pytest.mark.parametrize("document", WITH_CELLS)
def test_a_page_with_cells_can_be_downloaded_as_a_notebook(document: str) -> None:
    page = SITE / f"{document}.html"
    (link,) = {str(tag["href"]) for tag in parse(page).select("a.btn[href$='.ipynb']")}
    notebook = nbformat.read(page.parent / link, as_version=4)
    nbformat.validate(notebook)
    assert any(cell.get("outputs") for cell in notebook.cells)
    if not document.startswith("experiments/"):
        assert "!git init -q collectives" in notebook.cells[0].source
        texts = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
        assert not re.findall(MYST, "\n".join(texts), re.MULTILINE)
    # Or it would have each figure twice.
    assert '<img class="only-dark"' not in nbformat.writes(notebook)


@pytest.mark.parametrize(
    "document", [each for each in DOCUMENTS if not each.startswith("experiments/")]
)
def test_a_page_can_be_downloaded_as_plain_markdown(document: str) -> None:
    text = (SITE / "_sources" / f"{document}.md").read_text(encoding="utf8")
    assert text.startswith("# ")
    assert not re.findall(MYST, text, re.MULTILINE)

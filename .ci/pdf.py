"""Print the built site as one PDF through Chromium: bookmarks, page numbers, players as figures (`make pdf`).

All pages of _toc.yml become one document, so that a link from page to page is a link inside the
PDF, and Chromium numbers the sheets. A part's title is a heading of the first level, a page's of
the second: these are the bookmarks.
"""

import datetime
import html
import re
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import yaml
from bs4 import BeautifulSoup, Tag
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "_build" / "html"
STYLE = Path(__file__).with_name("pdf.css")
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE = 600_000  # milliseconds; Chromium typesets and prints the book in about one minute
PARTS = tuple[tuple[str, list[str]], ...]

# Half of its steps played, a player shows what moves and what has arrived.
READY = """
async () => {
    await customElements.whenDefined("schedule-player").catch(() => {});
    for (const slider of document.querySelectorAll("schedule-player .sp-slider")) {
        slider.value = Math.ceil(slider.max / 2);
        slider.dispatchEvent(new Event("input", { bubbles: true }));
    }
    if (window.MathJax?.startup) await window.MathJax.startup.promise;
    await document.fonts.ready;
}
"""
HIDDEN = re.compile(r"<!--pdf (.*?) -->")  # chapters/_templates/book-links.html
PLAYERS = "[...document.querySelectorAll('schedule-player')].every(it => it.dataset.ready)"


def contents(toc: Path = ROOT / "_toc.yml") -> PARTS:
    """Return the parts of the book, each with its pages.

    What comes before the first part has none of its own.
    """
    given = yaml.safe_load(toc.read_text(encoding="utf8"))
    return ("", [given["root"]]), *(
        (each["caption"], list(below(each["chapters"]))) for each in given["parts"]
    )


def below(entries: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the pages of some entries of the table of contents, each followed by its sections."""
    for each in entries:
        yield each["file"]
        yield from below(each.get("sections", []))


def slug(page: str) -> str:
    """Return a page's name as the beginning of its anchors."""
    return re.sub(r"\W+", "-", page)


def article(page: str, site: Path) -> Tag:
    """Return what a page says, as a piece of the book: anchors, addresses and headings fit the whole."""
    path = site / f"{page}.html"
    (found,) = BeautifulSoup(path.read_text(encoding="utf8"), "html.parser").select("article")
    dropped = "a.headerlink, details.hide, .only-dark, .prev-next-footer, button.copybtn"
    data = "[type='application/json']"  # of a player whose schedule is in its element
    for each in found.select(f"{dropped}, script:not({data})"):
        each.decompose()
    for each in found.select("details"):
        each["open"] = ""
    for each in found.find_all(re.compile(r"^h[1-5]$")):
        each.name = f"h{int(each.name[1]) + 1}"
    for each in found.find_all(id=True):
        if each.name != "svg" and not each.find_parent("svg"):
            each["id"] = f"{slug(page)}--{each['id']}"
    for each in found.find_all(["a", "img"]):
        name = "src" if each.name == "img" else "href"
        if name in each.attrs:
            each[name] = address(str(each[name]), path, site)
    # A file beside the site: the PDF has its name only.
    for each in found.select("a[href^='file:']"):
        each.unwrap()
    found["id"] = slug(page)
    return found


def address(url: str, path: Path, site: Path) -> str:
    """Return where a link or picture of a page leads, seen from the whole book."""
    whole = urlsplit(urljoin(path.as_uri(), url))
    if whole.scheme != "file":
        return url
    target = whole.path.removeprefix(urlsplit(site.as_uri()).path + "/")
    if not target.endswith(".html"):
        return whole.geturl()
    inside = slug(target.removesuffix(".html"))
    return f"#{inside}--{whole.fragment}" if whole.fragment else f"#{inside}"


def head(pages: list[str], site: Path) -> str:
    """Return the style sheets and scripts of all pages, each once, without those of the theme's bars and menus."""
    found: dict[str, str] = {}
    for page in pages:
        path = site / f"{page}.html"
        soup = BeautifulSoup(path.read_text(encoding="utf8"), "html.parser")
        for tag in soup.select(
            "head link[rel=stylesheet], head script[defer], head script:not([src])"
        ):
            name = "href" if tag.name == "link" else "src"
            if name not in tag.attrs and "MathJax" not in tag.get_text():
                continue
            if name in tag.attrs:
                tag[name] = urljoin(path.as_uri(), str(tag[name]))
            if "fontawesome" not in str(tag):
                found.setdefault(str(tag.get(name) or tag), str(tag))
    return "\n".join(found.values())


def book(parts: PARTS, site: Path) -> str:
    """Return the whole book as one HTML document."""
    pages = {page: article(page, site) for _, each in parts for page in each}
    given = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf8"))
    body = [title_page(given["title"], given["author"]), "<nav><p class='name'>Contents</p>"]
    for caption, each in parts:
        links = (
            f'<li><a href="#{slug(page)}">{html.escape(name(pages[page]))}</a></li>'
            for page in each
        )
        body.append(f"<p>{html.escape(caption)}</p><ul>{''.join(links)}</ul>")
    body.append("</nav>")
    for caption, each in parts:
        body += [f'<h1 class="part">{html.escape(caption)}</h1>'] if caption else []
        body += [str(pages[page]) for page in each]
    return (
        f'<!doctype html><html lang="en" data-theme="light" data-mode="light"><head><meta charset="utf-8">'
        f"<title>{html.escape(given['title'])}</title>{head(list(pages), site)}"
        f"<style>{STYLE.read_text(encoding='utf8')}</style></head><body>{''.join(body)}</body></html>"
    )


def title_page(title: str, author: str) -> str:
    """Return title, authors, version, date and licence."""
    today, project = (
        datetime.date.today(),
        tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"],
    )
    return (
        f'<section class="title"><p class="name">{html.escape(title)}</p><p>{html.escape(author)}</p>'
        f"<p>Version {project['version']}, {today.day} {today:%B %Y}</p>"
        "<p>Text and figures: CC BY 4.0. Code: Apache License 2.0.</p></section>"
    )


def name(found: Tag) -> str:
    """Return a page's title."""
    heading = found.find("h2")
    return heading.get_text().strip() if heading else str(found["id"])


def write(to: Path, site: Path = SITE, parts: PARTS | None = None) -> None:
    """Print the site's pages into one PDF, once players and formulas are there."""
    to.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        whole = Path(folder) / "book.html"
        whole.write_text(book(parts or contents(), site), encoding="utf8")
        # Else the one that playwright has installed.
        path = next(filter(None, map(shutil.which, NAMES)), None)
        browser = playwright.chromium.launch(executable_path=path, args=["--disable-gpu"])
        page = browser.new_page(color_scheme="light")
        page.set_default_timeout(PATIENCE)
        page.emulate_media(media="print", color_scheme="light")
        page.goto(whole.as_uri())
        page.wait_for_function(PLAYERS)
        page.evaluate(READY)
        page.pdf(
            path=to, outline=True, tagged=True, prefer_css_page_size=True, print_background=True
        )
        browser.close()


def offer(pdf: Path, site: Path = SITE) -> None:
    """Copy the PDF into the site, and show the link to it that each page hides."""
    shutil.copy(pdf, site)
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf8")
        page.write_text(HIDDEN.sub(r"\1", text), encoding="utf8")


if __name__ == "__main__":
    if not (SITE / "index.html").exists():
        sys.exit(f"no site: got no {SITE / 'index.html'}, expected one; run `make book`")
    print(f"==> pdf: printing {SITE} through Chromium", flush=True)
    write(ROOT / "_build" / "book.pdf")
    offer(ROOT / "_build" / "book.pdf")
    print(f"The book as a PDF: {ROOT / '_build' / 'book.pdf'}")

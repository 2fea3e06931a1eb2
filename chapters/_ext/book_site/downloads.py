"""What a page offers to download: a notebook with its outputs, and the same as one file of plain Markdown."""

import json
import re
from base64 import b64decode
from pathlib import Path
from typing import Any
from urllib.parse import quote

import nbformat

from book_site import anywhere
from book_site.pictures import EMBEDDED, slim
from book_site.plain import PICTURE, Page, markdown

# A figure is there twice, and only the site's style sheet shows one of the two.
DARK = re.compile(r'<img class="only-dark"[^>]*>')
# What an address in quotation marks may hold as it is, besides letters and digits.
PLAIN = " !$'()*+,/:;<=>?@[]{|}"


def offer(app: Any, page: str, _template: str, context: dict[str, Any], doctree: Any) -> None:
    """Have the theme's button name a chapter's notebook, which `write` writes."""
    is_notebook = context.get("page_source_suffix") == ".ipynb"
    if doctree is not None and not is_notebook and executed(app, page).exists():
        context["ipynb_source"] = f"{page}.ipynb"


def write(app: Any, failure: Exception | None) -> None:
    """Write the notebooks, and Markdown in place of the sources that Sphinx has copied."""
    sources = Path(app.outdir) / "_sources"
    for page in app.env.found_docs if failure is None and app.builder.format == "html" else []:
        source = Path(app.env.doc2path(page))
        if source.suffix == ".ipynb":
            nbformat.write(
                with_figures_once(nbformat.read(source, as_version=4)), sources / f"{page}.ipynb"
            )
        elif source.suffix == ".md":
            (sources / f"{page}.md").write_text(_markdown(app, page, source), encoding="utf8")


def _markdown(app: Any, page: str, source: Path) -> str:
    """A page as Markdown; if it has cells, its notebook is written beside it."""
    glue = executed(app, page).with_suffix(".glue.json")
    stored = json.loads(glue.read_text(encoding="utf8")) if glue.exists() else {}
    glued = {name: output["data"].get("text/markdown", "") for name, output in stored.items()}
    of_page = Page(source.parent, names(app.env), glued, app.config)
    if not executed(app, page).exists():
        return of_page.plain(source.read_text(encoding="utf8")) + "\n"
    notebook = with_figures_once(nbformat.read(executed(app, page), as_version=4))
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = of_page.plain(cell.source)
        for output in cell.get("outputs", []):
            if "text/markdown" in output.get("data", {}):
                output.data["text/markdown"] = of_page.plain(output.data["text/markdown"])
    text = markdown(notebook)
    anywhere.prepare(notebook, page, app.config.html_theme_options["repository_url"])
    nbformat.write(notebook, Path(app.outdir) / "_sources" / f"{page}.ipynb")
    return text


def executed(app: Any, page: str) -> Path:
    """Where the build has left a page's cells with their outputs."""
    return Path(app.outdir).parent / "jupyter_execute" / f"{page}.ipynb"


def names(env: Any) -> dict[str, str]:
    """Titles of pages, by their path and by their name alone, and of sections, by their label."""
    titles = {page: title.astext() for page, title in env.titles.items()}
    labels = {label: title for label, (_, _, title) in env.get_domain("std").labels.items()}
    return (
        labels
        | titles
        | {
            page.rpartition("/")[2]: title
            for page, title in titles.items()
            if "results" not in page
        }
    )


def with_figures_once(notebook: Any) -> Any:
    """The notebook without figures for dark pages, and without the bytes of figures as text."""
    for output in (output for cell in notebook.cells for output in cell.get("outputs", [])):
        data = output.get("data", {})
        if PICTURE in data.get("text/html", ""):
            data["text/html"] = EMBEDDED.sub(_slimmed, DARK.sub("", data["text/html"]))
            data.pop("text/plain", None)
    return notebook


def _slimmed(found: re.Match[str]) -> str:
    """Return the figure as text, which is a fifth shorter than Base64."""
    return f'src="data:image/svg+xml,{quote(slim(b64decode(found[1])), safe=PLAIN)}"'

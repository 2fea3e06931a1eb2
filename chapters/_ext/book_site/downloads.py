"""Each page with cells as a notebook to download."""

import re
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

import nbformat

from book_site.pictures import EMBEDDED, slim

# A figure is there twice, and only the site's style sheet shows one of the two.
DARK = re.compile(r'<img class="only-dark"[^>]*>')


def offer(app: Any, page: str, _template: str, context: dict[str, Any], doctree: Any) -> None:
    """Write a chapter's cells beside its source, without outputs, which the page shows; the theme's button names it."""
    executed = Path(app.outdir).parent / "jupyter_execute" / f"{page}.ipynb"
    is_notebook = context.get("page_source_suffix") == ".ipynb"
    if doctree is None or is_notebook or not executed.exists():
        return
    target = Path(app.outdir) / "_sources" / f"{page}.ipynb"
    target.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(without_outputs(nbformat.read(executed, as_version=4)), target)
    context["ipynb_source"] = f"{page}.ipynb"


def without_outputs(notebook: Any) -> Any:
    """The notebook as if no cell had run."""
    for cell in _code(notebook):
        cell.outputs, cell.execution_count = [], None
        cell.metadata.pop("execution", None)
    return notebook


def lighten(app: Any, _: Exception | None) -> None:
    """In the notebooks that papermill executed, keep each figure once, in few bytes."""
    for path in (Path(app.outdir) / "_sources" / "experiments").rglob("*.ipynb"):
        nbformat.write(with_figures_once(nbformat.read(path, as_version=4)), path)


def with_figures_once(notebook: Any) -> Any:
    """The notebook without figures for dark pages, and without the bytes of figures as text."""
    for output in (output for cell in _code(notebook) for output in cell.outputs):
        data = output.get("data", {})
        if '<figure class="drawn">' in data.get("text/html", ""):
            data["text/html"] = EMBEDDED.sub(_slimmed, DARK.sub("", data["text/html"]))
            data.pop("text/plain", None)
    return notebook


def _slimmed(found: re.Match[str]) -> str:
    return found[0].replace(found[1], b64encode(slim(b64decode(found[1]))).decode())


def _code(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]

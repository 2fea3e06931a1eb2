"""`llms.txt`: the pages' titles and sources by part, in the order of the sidebar, for programs that read a site."""

from pathlib import Path
from typing import Any


def write(app: Any, failure: Exception | None) -> None:
    """Write the list; its addresses are relative, because a site may lie below any address."""
    if failure is None and app.builder.format == "html":
        text = "\n".join(_lines(app)) + "\n"
        (Path(app.outdir) / "llms.txt").write_text(text, encoding="utf8")


def _lines(app: Any) -> list[str]:
    root = app.env.external_site_map.root
    lines = [f"# {app.config.html_title}", "", _line(app, root.docname)]
    for part in root.subtrees:
        lines += ["", f"## {part.caption}", ""]
        lines += [_line(app, str(page)) for page in part.items]
    return lines


def _line(app: Any, page: str) -> str:
    title = app.env.titles[page].astext()
    return f"- [{title}](_sources/{page}.md)"

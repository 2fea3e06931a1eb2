"""`index.html`, which leads to the first page at once.

Its icon is empty. Without an icon a browser requests /favicon.ico, which does not exist. A request
for the site's own icon would be aborted by the redirect.
"""

from html import escape
from pathlib import Path
from typing import Any

PAGE = """<!DOCTYPE html>
<html lang="{language}">
<head>
<meta charset="utf-8">
<meta http-equiv="Refresh" content="0; url={first}">
<title>{title}</title>
<link rel="icon" href="data:,">
</head>
<body><a href="{first}">{title}</a></body>
</html>
"""


def lead(app: Any, failure: Exception | None) -> None:
    """Write it, in place of the one without a head that the table of contents' extension writes."""
    if failure is None and app.builder.format == "html":
        page = leading_to(f"{app.config.root_doc}.html", app.config)
        (Path(app.outdir) / "index.html").write_text(page, encoding="utf8")


def leading_to(first: str, config: Any) -> str:
    """The page that leads to the first one."""
    return PAGE.format(
        language=config.language, first=escape(first), title=escape(config.html_title)
    )

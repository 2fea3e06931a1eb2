"""What a screen reader would be told wrongly: empty headings of tables, and the roles of the bibliography."""

import re
from typing import Any

REPAIRS = [
    # The corner above the index of a table is no heading.
    (re.compile(r"<th(?: [^>]*)?>(?:<p></p>)?</th>"), "<td></td>"),
    # docutils writes a role that ARIA has deprecated, and which no list may hold.
    (re.compile(r'role="doc-biblioentry"'), 'role="listitem"'),
]


def repair(_app: Any, _page: str, _template: str, context: dict[str, Any], doctree: Any) -> None:
    """Repair a page's article."""
    for wrong, right in REPAIRS if doctree is not None else []:
        context["body"] = wrong.sub(right, context["body"])

"""What search engines and messengers read in a page's head: its description, and the card that a link is shown as."""

import re
from html import escape
from typing import Any

from docutils import nodes

CARD = "_static/card.png"
SHORTEST, LONGEST = 60, 200
# A paragraph in one of these is not the page's own first one.
APART = (nodes.Admonition, nodes.list_item, nodes.table, nodes.footnote, nodes.topic)


def describe(app: Any, page: str, _template: str, context: dict[str, Any], doctree: Any) -> None:
    """Add the description and the card's tags to a page's head."""
    if doctree is None:
        return
    given = app.env.metadata.get(page, {}).get("description")
    text = shortened(given or first_paragraph(doctree))
    title = app.env.titles[page].astext()
    tags = {
        "og:title": title,
        "og:description": text,
        "og:type": "article",
        "og:site_name": app.config.html_title,
    }
    if app.config.html_baseurl:
        tags |= links(app.config.html_baseurl, f"{page}.html")
    context["metatags"] += f'<meta name="description" content="{escape(text)}">\n' + properties(
        tags
    )


def links(base: str, page: str) -> dict[str, str]:
    """The tags that need the site's address."""
    base = base.rstrip("/") + "/"
    return {"og:url": base + page, "og:image": base + CARD, "twitter:card": "summary_large_image"}


def properties(tags: dict[str, str]) -> str:
    """Tags as a page has them."""
    return "".join(
        f'<meta property="{name}" content="{escape(value)}">\n' for name, value in tags.items()
    )


def first_paragraph(doctree: nodes.Node) -> str:
    """The text of the page's first paragraph of its own, of at least a line.

    Empty if there is none.
    """
    paragraphs = (each for each in doctree.findall(nodes.paragraph) if not _is_apart(each))
    return next((text for text in map(_text, paragraphs) if len(text) > SHORTEST), "")


def _is_apart(node: nodes.Node) -> bool:
    while node.parent is not None:
        node = node.parent
        if isinstance(node, APART):
            return True
    return False


def _text(paragraph: nodes.paragraph) -> str:
    return " ".join(paragraph.astext().split())


def shortened(text: str) -> str:
    """As many whole sentences as fit; as many words, if sentences alone would say little.

    >>> shortened("Every rank sends to the next one. Every rank receives from the one before." + " and" * 40)
    'Every rank sends to the next one. Every rank receives from the one before.'
    >>> shortened("word " * 60)[-9:]
    'word word …'
    """
    if len(text) <= LONGEST:
        return text
    whole = [end.end() for end in re.finditer(r"[.!?](?= )", text[:LONGEST])]
    return (
        text[: whole[-1]]
        if whole and whole[-1] > SHORTEST
        else text[:LONGEST].rsplit(" ", 1)[0] + " …"
    )

"""A handout as plain Markdown: for a reader that has neither the book's directives nor its other pages."""

import re

HEAD = re.compile(r"\A---\n(?:.*\n)*?---\n")
# The end of a fence is as long as its beginning, so a fence inside another is shorter.
DIRECTIVE = re.compile(
    r"^(?P<fence>`{3,}|:{3,})\{(?P<name>[\w-]+)\} *(?P<title>.*)\n(?P<body>(?:.*\n)*?)(?P=fence)$", re.MULTILINE
)
OPTIONS = re.compile(r"\A(?::[\w-]+:.*\n|\n)+")
LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]+)\]\((?!https?://)[^)\s]*(?:\.md|\.html|\.ipynb|#)[^)\s]*\)")
ROLE = re.compile(r"\{[\w:-]+\}`(?:/chapters/)?(?P<text>[^`<]+?)(?: *<[^`>]*>)?`")
PICTURE = re.compile(r"^!\[.*\]\(.*\)$\n?", re.MULTILINE)
SHOWN = {"code-block": "```{title}\n{body}```", "literalinclude": "", "figure": "", "image": "", "code-cell": ""}
OTHERWISE = "**{title}**\n\n{body}"


def prose(handout: str) -> str:
    r"""The text without front matter, code cells and pictures; directives as paragraphs; links to pages as text.

    >>> print(prose("---\nkernel\n---\n# Ring\n\n```{code-cell} ipython3\n1 + 1\n```\n\nSee [trees](../trees.md).\n"))
    # Ring
    <BLANKLINE>
    See trees.
    >>> print(prose("Read {doc}`/chapters/ring-all-reduce`.\n"))
    Read ring-all-reduce.
    >>> print(prose("````{dropdown} A hint\n:open:\n\nCut it.\n```python\nx = 1\n```\n````\n"))
    **A hint**
    <BLANKLINE>
    Cut it.
    ```python
    x = 1
    ```
    """
    text = HEAD.sub("", handout)
    while (made := DIRECTIVE.sub(_shown, text)) != text:
        text = made
    text = PICTURE.sub("", text)
    for named in (LINK, ROLE):
        text = named.sub(r"\g<text>", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def _shown(found: re.Match[str]) -> str:
    title = found["title"] or found["name"].capitalize()
    body = OPTIONS.sub("", found["body"])
    return SHOWN.get(found["name"], OTHERWISE).format(title=title, body=body)

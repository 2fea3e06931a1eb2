"""A page as plain Markdown, which needs no Sphinx to read: the site offers it for download."""

import re
from collections.abc import Mapping
from html import unescape
from pathlib import Path
from typing import Any

import yaml
from sphinx.directives.code import LiteralInclude, LiteralIncludeReader

HEAD = re.compile(r"\A---\n(?:.*\n)*?---\n+")
LABEL = re.compile(r"^\([\w-]+\)=\n", re.MULTILINE)
# The end of a fence is as long as its beginning, so a fence inside another is shorter.
DIRECTIVE = re.compile(
    r"^(?P<fence>`{3,}|:{3,})\{(?P<name>[\w:-]+)\} *(?P<title>.*)\n(?P<body>(?:.*\n)*?)(?P=fence)[ \t]*$",
    re.MULTILINE,
)
OPTION = re.compile(r"^:([\w-]+): *(.*)\n", re.MULTILINE)
# At the head of a directive, not of those inside.
OPTIONS = re.compile(rf"(?:{OPTION.pattern})*", re.MULTILINE)
ROLE = re.compile(r"\{(doc|term|ref|download|cite:[pt])\}`([^`<]*?)(?: *<[^`>]*>)?`")
# A figure's two texts in the HTML of an output.
ALTERNATIVE, CAPTION = re.compile(r'\balt="([^"]*)"'), re.compile(r"<figcaption>(.*?)</figcaption>")
PICTURE = '<figure class="drawn">'


class Page:
    """What directives and roles of a page name: titles of pages and sections, texts of glue, files beside it."""

    def __init__(
        self, folder: Path, titles: Mapping[str, str], glued: Mapping[str, str], config: Any = None
    ) -> None:
        self.folder, self.titles, self.glued, self.config = folder, titles, glued, config

    def plain(self, text: str) -> str:
        r"""MyST without its directives and roles.

        >>> page = Page(Path(), {"ring": "Ring All-Reduce"}, {"one": "Twice."})
        >>> page.plain("See {doc}`ring`, a {term}`ring <Ring>` {cite:p}`baidu2017`.")
        'See Ring All-Reduce, a ring (baidu2017).'
        >>> print(page.plain("````{dropdown} Answer 1\n```{glue:md} one\n:format: commonmark\n```\n````\n"))
        **Answer 1**
        <BLANKLINE>
        Twice.
        """
        text = LABEL.sub("", HEAD.sub("", text))
        while (replaced := DIRECTIVE.sub(self._directive, text)) != text:
            text = replaced
        return re.sub(r"\n{3,}", "\n\n", ROLE.sub(self._role, text)).strip()

    def _directive(self, found: re.Match[str]) -> str:
        name, title = found["name"], found["title"]
        head = OPTIONS.match(found["body"])[0]
        options, body = (
            {key: yaml.safe_load(value) for key, value in OPTION.findall(head)},
            found["body"][len(head) :],
        )
        if name == "glue:md":
            return self.glued.get(title, "")
        if name == "literalinclude":
            return fenced(self._included(title, options).strip(), options.get("language", "text"))
        if name in ("eval-rst", "raw", "bibliography"):
            return ""
        return body if name == "glossary" else f"**{title or name.capitalize()}**\n\n{body}"

    def _included(self, name: str, options: dict[str, Any]) -> str:
        read = {key: LiteralInclude.option_spec[key](str(value)) for key, value in options.items()}
        return str(LiteralIncludeReader(str(self.folder / name), read, self.config).read()[0])

    def _role(self, found: re.Match[str]) -> str:
        role, text = found[1], found[2]
        if role == "cite:p":
            return f"({text})"
        return self.titles.get(text.removeprefix("/"), text) if role in ("doc", "ref") else text


def markdown(notebook: Any) -> str:
    """A notebook whose text is plain already as one Markdown file: text, the code that the page shows, and outputs."""
    return "\n\n".join(part for cell in notebook.cells for part in _parts(cell) if part) + "\n"


def _parts(cell: Any) -> list[str]:
    tags = cell.metadata.get("tags", [])
    if cell.cell_type == "markdown" or "remove-cell" in tags:
        return [cell.source] if cell.cell_type == "markdown" else []
    code = [] if "remove-input" in tags else [fenced(cell.source, "python")]
    return code + [_output(each) for each in cell.outputs]


def _output(output: Any) -> str:
    data = output.get("data", {})
    shown = data.get("text/html", "")
    if PICTURE in shown:
        texts = [*ALTERNATIVE.findall(shown)[:1], *CAPTION.findall(shown)]
        return (
            "*"
            + " ".join(unescape(re.sub(r"<[^>]*>", "", text)) for text in ["Figure:", *texts])
            + "*"
        )
    if "<schedule-" in shown:  # a player
        return ""
    text = output.text if output.output_type == "stream" else data.get("text/plain", "")
    if text.startswith("<IPython.core.display."):  # what it shows has no other text
        return str(data.get("text/markdown", shown))
    return fenced(text, "text") if text.strip() else ""


def fenced(text: str, language: str) -> str:
    """Code or output as Markdown writes it."""
    return f"```{language}\n{text.rstrip()}\n```"

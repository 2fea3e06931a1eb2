"""Findings as one page of HTML that needs nothing else: sentences, places, pictures."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING

from collectives.logs.finding import Finding

if TYPE_CHECKING:
    from collectives.figures.style import Picture

STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --faint: #666; --line: #ddd; --ground: #fff; --act: #b3261e }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e6e6; --faint: #a0a0a0; --line: #3a3a3a; --ground: #121212; --act: #ff8a80 } }
body { max-width: 46rem; margin: 2rem auto; padding: 0 1rem; font: 1rem/1.5 system-ui, sans-serif;
  color: var(--ink); background: var(--ground) }
article { border-top: 1px solid var(--line); padding: .6rem 0 } p { margin: .3rem 0; overflow-wrap: anywhere }
b.act { color: var(--act) } .at { color: var(--faint); font-size: .85rem } img { max-width: 100%; height: auto }
"""


def page(findings: Iterable[tuple[str, Finding]]) -> str:
    """The page: a section for each kind of file; findings from which something follows are marked.

    >>> "<h2>NCCL log</h2>" in page([("NCCL log", Finding("log", "9 lines, 1 of them NCCL's"))])
    True
    """
    sections = [
        f"<h2>{escape(name)}</h2>\n" + "\n".join(_article(found) for _, found in those)
        for name, those in groupby(findings, key=lambda each: each[0])
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8"><title>collectives read</title>\n'
        f'<meta name="viewport" content="width=device-width">\n<style>{STYLE}</style></head>\n'
        f"<body>\n<h1>What the files say</h1>\n{''.join(sections)}\n</body>\n</html>\n"
    )


def _article(found: Finding) -> str:
    mark = ' class="act"' if found.follows else ""
    lines = [f"<p><b{mark}>{escape(found.kind)}</b>: {_text(found.found)}</p>"]
    lines += [f"<p>So: {_text(found.follows)}.</p>"] if found.follows else []
    lines += [f"<p>Try: {_text(found.next)}.</p>"] if found.next else []
    lines += [f'<p class="at">{escape(", ".join(map(str, found.at)))}</p>'] if found.at else []
    drawn = found.draw() if found.draw else None
    return "\n".join(["<article>", *lines, *([_image(drawn)] if drawn else []), "</article>"])


def _text(said: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(said))


def _image(drawn: Picture) -> str:
    light, dark = (f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}" for svg in (drawn.light, drawn.dark))
    return (
        f'<picture><source media="(prefers-color-scheme: dark)" srcset="{dark}">'
        f'<img src="{light}" alt="{escape(drawn.alt)}"></picture>'
    )

"""Figures as files: a page names them, and the same figure on two pages is one file."""

import re
from base64 import b64decode
from hashlib import sha256
from pathlib import Path
from typing import Any

EMBEDDED = re.compile(r'src="data:image/svg\+xml;base64,([^"]+)"')
# Three digits or more of a coordinate in points, of which a screen shows two; factors of a scale are kept.
LONG = re.compile(rb"scale\([^)]*\)|\d+\.\d{3,}")
PATH, COMMAND = re.compile(rb'(?<= d=")[^"]+'), re.compile(rb"\s*([A-Za-z])\s*")
MOVED = re.compile(rb'transform="translate\((-?[\d.]+) 0\)"/>')  # of a letter, the last attribute
UNUSED = re.compile(rb'<!--.*?-->\s*| id="[\w.]+_\d+"')  # comments, and names of groups that nothing refers to


def extract(app: Any, _page: str, _template: str, context: dict[str, Any], doctree: Any) -> None:
    """Write each figure of a page to `_images`, and have the page name the file."""
    if doctree is None:
        return
    folder = Path(app.outdir) / "_images"
    folder.mkdir(exist_ok=True)

    def named(found: re.Match[str]) -> str:
        name = write(b64decode(found[1]), folder)
        return f'src="{context["pathto"](f"_images/{name}", 1)}"'

    context["body"] = EMBEDDED.sub(named, context["body"])


def write(svg: bytes, folder: Path) -> str:
    """Write a figure under a name that depends on its content alone; returns the name."""
    name = f"{sha256(svg).hexdigest()[:16]}.svg"
    (folder / name).write_bytes(slim(svg))
    return name


def slim(svg: bytes) -> bytes:
    """The same figure in fewer bytes: coordinates rounded, no spaces that nobody needs, letters placed by ``x``.

    >>> slim(b'<path d="M 1.2345 2 L 3.5 4.0001" transform="scale(0.015625)"/>')
    b'<path d="M1.23 2L3.5 4" transform="scale(0.015625)"/>'
    >>> slim(b'<use xlink:href="#DejaVuSans-14" transform="translate(63.62 0)"/>')
    b'<use xlink:href="#d14" x="63.62"/>'
    """
    svg = PATH.sub(lambda found: COMMAND.sub(rb"\1", found[0]), LONG.sub(_rounded, svg))
    svg = MOVED.sub(rb'x="\1"/>', svg.replace(b"DejaVuSans-", b"d"))
    return re.sub(rb"\n[ \n]+", b"\n", UNUSED.sub(b"", svg))


def _rounded(found: re.Match[bytes]) -> bytes:
    if found[0].startswith(b"scale"):
        return found[0]
    return f"{float(found[0]):.2f}".rstrip("0").rstrip(".").encode()

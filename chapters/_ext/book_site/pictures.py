"""Figures as files: a page names them, and the same figure on two pages is one file."""

import re
from base64 import b64decode
from hashlib import sha256
from pathlib import Path
from typing import Any

EMBEDDED = re.compile(r'src="data:image/svg\+xml;base64,([^"]+)"')
# Two digits or more of a coordinate in points, of which a screen shows one; factors of a scale are
# kept.
LONG = re.compile(rb"scale\([^)]*\)|\d+\.\d{2,}")
PATH, COMMAND = re.compile(rb'(?<= d=")[^"]+'), re.compile(rb"([A-Za-z])([^A-Za-z]*)")
MOVED = re.compile(rb'transform="translate\((-?[\d.]+) 0\)"/>')  # of a letter, the last attribute
STYLE, GROUP = re.compile(rb'(?<= style=")[^"]+'), re.compile(rb"<(/?)g( [^>]*)?>")
# Comments, what Matplotlib says of the file, and names of groups that nothing refers to.
UNUSED = re.compile(
    rb'<!--.*?-->\s*|<!DOCTYPE.*?>\s*|<metadata>.*?</metadata>\s*| id="[\w.]+_\d+"', re.DOTALL
)


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
    """The same figure in fewer bytes: coordinates rounded, paths by distances, letters placed by ``x``.

    >>> slim(b'<path d="M 1.2345 2 L 3.5 4.0001" transform="scale(0.015625)"/>')
    b'<path d="M1.2 2l2.3 2" transform="scale(0.015625)"/>'
    >>> slim(b'<use xlink:href="#DejaVuSans-14" transform="translate(63.62 0)"/>')
    b'<use xlink:href="#d14" x="63.6"/>'
    """
    svg = PATH.sub(lambda found: by_distances(found[0]), LONG.sub(_rounded, svg))
    svg = MOVED.sub(rb'x="\1"/>', svg.replace(b"DejaVuSans-", b"d"))
    svg = STYLE.sub(
        lambda found: found[0].replace(b": ", b":").replace(b"; ", b";"), UNUSED.sub(b"", svg)
    )
    return re.sub(rb">\s+<", b"><", re.sub(rb"\n[ \n]+", b"\n", without_bare_groups(svg)))


def without_bare_groups(svg: bytes) -> bytes:
    """The same without groups that have no attribute: they change nothing.

    >>> without_bare_groups(b'<g><g clip-path="url(#a)"><g><path/></g></g></g>')
    b'<g clip-path="url(#a)"><path/></g>'
    """
    kept: list[bool] = []

    def tag(found: re.Match[bytes]) -> bytes:
        if found[1]:
            return found[0] if kept.pop() else b""
        kept.append(found[2] is not None)
        return found[0] if kept[-1] else b""

    return GROUP.sub(tag, svg)


def by_distances(path: bytes) -> bytes:
    """A path of M, L, Q, C and z in which each point is given by its distance from the one before.

    Coordinates have one decimal at most, so that the sums of distances are exact.

    >>> by_distances(b"M 10 20 L 15.5 20 L 15.5 19 Q 1 2 3 4 z")
    b'M10 20h5.5v-1q-14.5-17-12.5-15z'
    """
    begin, at, made = (0, 0), (0, 0), list[str]()
    for letter, numbers in COMMAND.findall(path):
        command, given = letter.decode(), [round(10 * float(number)) for number in numbers.split()]
        if command == "M":
            begin = at = given[0], given[1]
            made.append("M" + _joined(given))
        elif command in "zZ":
            at = begin
            made.append("z")
        elif command in "LQC":
            made.append(
                _moved(command.lower(), [value - at[nth % 2] for nth, value in enumerate(given)])
            )
            at = given[-2], given[-1]
        else:
            return path
    return "".join(made).encode()


def _moved(command: str, distances: list[int]) -> str:
    """One command; a line along an axis has a letter of its own."""
    if command == "l" and 0 in distances:
        along = "h" if distances[1] == 0 else "v"
        return along + _joined([distances[along == "v"]])
    return command + _joined(distances)


def _joined(tenths: list[int]) -> str:
    """Numbers one after the other; a minus separates them, too."""
    written = [f"{value / 10:.1f}".removesuffix(".0") for value in tenths]
    return " ".join(written).replace(" -", "-")


def _rounded(found: re.Match[bytes]) -> bytes:
    if found[0].startswith(b"scale"):
        return found[0]
    return f"{float(found[0]):.1f}".removesuffix(".0").encode()

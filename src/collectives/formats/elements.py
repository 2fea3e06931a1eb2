"""The elements of an XML file that nobody has vouched for: no document type, no entity, nothing deep, nothing huge."""

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn
from xml.parsers import expat

from collectives.errors import short

# The largest programs that are published have 1.4 MB and 24,000 steps, four levels deep.
MOST_BYTES, MOST_ELEMENTS, MOST_DEPTH, LONGEST_VALUE = 1 << 24, 1 << 18, 4, 200

WHOLE = re.compile(r"-?\d{1,9}", re.ASCII)


@dataclass(frozen=True)
class Element:
    """One element: its name, its attributes, its children, and the line where it begins."""

    name: str
    attributes: dict[str, str]
    line: int
    children: list["Element"] = field(default_factory=list)

    def fail(self, what: str) -> NoReturn:
        """Raise a ValueError that names the line."""
        raise ValueError(f"line {self.line}: {what}")

    def word(self, name: str, known: Collection[str] = ()) -> str:
        """An attribute, one of the ``known`` words if there are any."""
        if name not in self.attributes:
            self.fail(f"<{self.name}>: got no attribute {name}, expected one")
        value = self.attributes[name]
        if known and value not in known:
            self.fail(f"{name}: got {short(value)}, expected one of {', '.join(known)}")
        return value

    def number(self, name: str, least: int, most: int, default: int | None = None) -> int:
        """An attribute that is a whole number within limits; without a default it must be there."""
        if default is not None and name not in self.attributes:
            return default
        text = self.word(name)
        if not WHOLE.fullmatch(text) or not least <= int(text) <= most:
            self.fail(f"{name}: got {short(text)}, expected a whole number from {least} to {most:,}")
        return int(text)

    def of(self, *names: str) -> list["Element"]:
        """The children, all of which must have one of these names."""
        for child in self.children:
            if child.name not in names:
                child.fail(f"in <{self.name}>: got <{child.name[:40]}>, expected <{'> or <'.join(names) or 'nothing'}>")
        return self.children


def read(path: Path) -> Element:
    """The file's outermost element; ValueError with one line that says what is wrong with the file."""
    try:
        if not path.is_file():
            raise ValueError("there is no such file")
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ValueError(f"the file cannot be read: {error.strerror}") from None
    if len(data) > MOST_BYTES:
        raise ValueError(f"size of the file: got more than {MOST_BYTES:,} bytes, expected at most that")
    return parse(data)


def parse(data: bytes) -> Element:
    """The outermost element of a text."""
    parser, top = expat.ParserCreate(), Element("", {}, 0)
    open_elements, count = [top], 0

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal count
        count += 1
        element = Element(name, attributes, parser.CurrentLineNumber)
        if count > MOST_ELEMENTS:
            element.fail(f"elements: got more than {MOST_ELEMENTS:,}, expected at most that")
        if len(open_elements) > MOST_DEPTH:
            element.fail(f"depth of <{name[:40]}>: got {len(open_elements)}, expected at most {MOST_DEPTH}")
        if any(len(value) > LONGEST_VALUE for value in attributes.values()):
            element.fail(f"an attribute of <{name[:40]}>: got more than {LONGEST_VALUE} characters")
        open_elements[-1].children.append(element)
        open_elements.append(element)

    def refuse(*_: object) -> None:
        raise ValueError(f"line {parser.CurrentLineNumber}: got a document type or an entity, expected elements alone")

    parser.StartElementHandler = start
    parser.EndElementHandler = lambda _: open_elements.pop()
    parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = refuse
    try:
        parser.Parse(data, True)
    except (expat.ExpatError, LookupError, UnicodeError) as error:
        raise ValueError(f"not XML: {error}") from None
    return top.children[0]

"""Build the book's first pages before anything is measured, and print their address (`make book` does).

They are the first parts of `_toc.yml`, and the pages of reference that they point to. None of them
shows a result of an experiment. Links to pages that are still to come are plain text; `make book`
builds these pages again, from clean and with every warning an error, with the others.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
OUTPUT = ROOT / "_build" / "first-pages"
PARTS = 2
REFERENCE = ("chapters/notation", "chapters/glossary", "chapters/references")


def contents() -> dict[str, Any]:
    """Return the book's table of contents."""
    book: dict[str, Any] = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf8"))
    return book


def first_contents() -> dict[str, Any]:
    """Return a table of contents of the first pages.

    What comes before the first part shows results.
    """
    book = contents()
    first, *parts = book["parts"][:PARTS]
    root, *others = first["chapters"]
    reference = {"caption": "Reference", "chapters": [{"file": name} for name in REFERENCE]}
    parts = [{**first, "chapters": others}, *parts, reference]
    return {"format": book["format"], "root": root["file"], "parts": parts}


def documents() -> list[str]:
    """Return the documents of the book, in its order."""
    return list(named(contents()))


def first_documents() -> set[str]:
    """Return the documents of the first pages."""
    return set(named(first_contents()))


def named(entry: Any) -> Iterator[str]:
    """Yield the documents that a part of a table of contents names."""
    if isinstance(entry, dict):
        yield from (value for name, value in entry.items() if name in ("root", "file"))
        for value in entry.values():
            yield from named(value)
    elif isinstance(entry, list):
        for each in entry:
            yield from named(each)


if __name__ == "__main__":
    OUTPUT.mkdir(parents=True, exist_ok=True)
    toc = OUTPUT / "_toc.yml"
    toc.write_text(yaml.safe_dump(first_contents()))
    command = [
        Path(sys.executable).with_name("jupyter-book"),
        "build",
        ROOT,
        "--toc",
        toc,
        "--path-output",
        OUTPUT,
    ]
    done = subprocess.run([*command, "-qq"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{done.stdout}{done.stderr}\nerror: the first pages could not be built")
    print((OUTPUT / "_build" / "html" / "index.html").as_uri())

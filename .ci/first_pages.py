"""Build the book's first pages before anything is measured, so that they can be read meanwhile (`make book` does).

They are the first parts of `_toc.yml`, and the pages of reference that they point to. None of them shows a result of
an experiment. Links to pages that are still to come are plain text; `make book` builds these pages again, from clean
and with every warning an error, with the others.
"""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
OUTPUT = Path("_build") / "first-pages"
PARTS = 2
REFERENCE = ("chapters/notation", "chapters/glossary", "chapters/references")


def main() -> None:
    """Build them, and say where they are and how long that took since `make` began."""
    print("==> first pages: building, half a minute", flush=True)
    (ROOT / OUTPUT).mkdir(parents=True, exist_ok=True)
    toc = ROOT / OUTPUT / "_toc.yml"
    toc.write_text(yaml.safe_dump(contents(yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf8")))))
    build(toc)
    site = ROOT / OUTPUT / "_build" / "html" / "index.html"
    print(f"==> first pages after {elapsed(time.time())}, to read while the rest is made: {site.as_uri()}", flush=True)


def contents(book: dict[str, Any]) -> dict[str, Any]:
    """A table of contents of the first pages; what comes before the first part shows results."""
    first, *parts = book["parts"][:PARTS]
    root, *others = first["chapters"]
    reference = {"caption": "Reference", "chapters": [{"file": name} for name in REFERENCE]}
    parts = [{**first, "chapters": others}, *parts, reference]
    return {"format": book["format"], "root": root["file"], "parts": parts}


def build(toc: Path) -> None:
    """Jupyter Book, without a word about links to pages that are still to come; its log is shown if it fails."""
    command = [str(Path(sys.executable).with_name("jupyter-book")), "build", str(ROOT)]
    options = ["--toc", str(toc), "--path-output", str(ROOT / OUTPUT), "-qq"]
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    done = subprocess.run([*command, *options], cwd=ROOT, check=False, **output)
    if done.returncode:
        sys.exit(f"{done.stdout}\nerror: the first pages could not be built")


def elapsed(now: float) -> str:
    """The time since `make` began, which the Makefile notes in BEGAN."""
    minutes, seconds = divmod(round(now - float(os.environ.get("BEGAN") or now)), 60)
    return f"{minutes} min {seconds} s"


if __name__ == "__main__":
    main()

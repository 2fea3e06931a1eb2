"""All recorded runs as a table, and a reader's own rows beside them."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from collectives.bench.results import read
from collectives.figures.style import with_whole_options
from collectives.units import format_bytes
from collectives_book.figures import measured, statements
from collectives_book.figures.statements import Rows

# Folders of results that the pages show; every other one has a reader's own rows.
BOOKS = ("quick", "reference")

# What two rows must share to be compared.
POINT = ["collective", "where", "ranks", "backend", "algorithm", "bytes"]


def stems(results: Path) -> list[Path]:
    """The recorded runs below a folder: rows with a record beside them."""
    return [path.with_suffix("") for path in sorted(results.rglob("*.parquet")) if path.with_suffix(".json").exists()]


def table(results: Path, chapters: Path) -> Rows:
    """A line for each run of this book: when, on what, how surely, by which command, and the pages that show it."""
    lines = []
    for stem in (stem for book in BOOKS for stem in stems(results / book)):
        _, record = read(stem)
        settings = record.get("settings")
        lines.append(
            {
                "run": stem.relative_to(results).as_posix(),
                "date": record.get("date", "this build"),
                "ranks": _ranks(record),
                "pages": "<br>".join(_link(page) for page in pages(stem.relative_to(results), chapters)),
                "repetitions and confidence": measured.sureness(record) if settings else "",
                "machine": measured.computer(record),
                "versions": measured.versions(record),
                "command": f"<code>{measured.command(record, stem)}</code>",
            }
        )
    return pd.DataFrame(lines).set_index("run")


def html(results: Path, chapters: Path) -> str:
    """The table as a page shows it: four columns, which fit beside the page's two sidebars."""
    runs = table(results, chapters).reset_index()
    sure = runs["repetitions and confidence"].map(lambda text: f", {text}" if text else "")
    whole = runs.command.map(with_whole_options)
    named = {
        "run and command": runs.run.map(lambda run: _notebook(run, results)) + "<br>" + whole,
        "measured": runs.date + ", " + runs.ranks + sure,
        "machine": runs.machine + "; " + runs.versions,
        "shown in": runs.pages,
    }
    return str(pd.DataFrame(named).to_html(index=False, escape=False))


def _notebook(run: str, results: Path) -> str:
    """The name of a run; of one that this build measured, a link to its notebook."""
    name = f"<b>{run}</b>"
    there = (results / f"{run}.ipynb").exists()
    return f'<a href="../experiments/results/{run}.html">{name}</a>' if there else name


def _ranks(record: dict[str, Any]) -> str:
    counts = [each["ranks"] for each in record.get("settings", []) if "ranks" in each]
    return f"{statements.span(counts, '{:.0f}'.format)} ranks" if counts else "simulated"


def _link(page: Path) -> str:
    title = re.search(r"^# (.+)$", page.read_text(encoding="utf8"), re.MULTILINE)
    return f'<a href="{page.stem}.html">{title[1] if title else page.stem}</a>'


def pages(run: Path, chapters: Path) -> list[Path]:
    """The chapters that read a run, as ``slow-motion/scaling``: they name its folder, and its name after a slash."""
    within, folder, name = (re.escape(each) for each in (run.parent.as_posix(), run.parent.name, run.name))
    found = re.compile(rf"/{folder}/{name}(?![\w-])|results/{within}\".*?[/\"]{name}\"", re.DOTALL)
    return [page for page in sorted(chapters.glob("*.md")) if found.search(page.read_text())]


def beside(results: Path) -> Rows:
    """A reader's own rows beside those of the reference: medians of the points that both have, and their ratio.

    Own rows are in any folder of results but the book's two, in a file of the same name as the reference's.
    """
    lines = [line for own in _own(results) for line in _pairs(own, results)]
    return pd.DataFrame(lines, columns=["run", "point", "yours", "reference", "yours over reference"]).set_index("run")


def _own(results: Path) -> list[Path]:
    return [stem for stem in stems(results) if stem.relative_to(results).parts[0] not in BOOKS]


def _pairs(own: Path, results: Path) -> Iterator[dict[str, str]]:
    mine: Rows = read(own)[0]
    for other in (stem for stem in stems(results / "reference") if stem.name == own.name):
        theirs: Rows = read(other)[0]
        if not {*POINT, "median_us"} <= {*mine} & {*theirs}:
            continue
        for row in mine.merge(theirs, on=POINT, suffixes=("", "_reference")).itertuples():
            if row.median_us > 0 and row.median_us_reference > 0:
                yield _line(own.relative_to(results), row)


def _line(run: Path, row: Any) -> dict[str, str]:
    name = measured.label(row.backend, row.algorithm)
    return {
        "run": run.as_posix(),
        "point": f"{name}, {format_bytes(row.bytes)}, {row.ranks} ranks, {row.where}",
        "yours": statements.us(row.median_us),
        "reference": statements.us(row.median_us_reference),
        "yours over reference": f"{row.median_us / row.median_us_reference:.2f}",
    }

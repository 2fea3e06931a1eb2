"""All recorded runs as a table, and a reader's own rows beside them."""

import re
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
    """Return the recorded runs below a folder: rows with a record beside them."""
    return [path.with_suffix("") for path in sorted(results.rglob("*.parquet")) if path.with_suffix(".json").exists()]


def table(results: Path, chapters: Path) -> Rows:
    """Return a line of HTML for each run of this book: its command, when, on what and how surely, and its pages."""
    lines = []
    for stem in (stem for book in BOOKS for stem in stems(results / book)):
        run, record = stem.relative_to(results), read(stem)[1]
        said = [record.get("date", "this build"), _ranks(record), measured.sureness(record)]
        lines.append(
            {
                "run and command": f"{_name(run, results)}<br><code>{measured.command(record, stem)}</code>",
                "measured": ", ".join(filter(None, said)),
                "machine": f"{measured.computer(record)}; {measured.versions(record)}",
                "shown in": "<br>".join(map(_link, pages(run, chapters))),
            }
        )
    return pd.DataFrame(lines).map(with_whole_options)


def _name(run: Path, results: Path) -> str:
    """Return the name of a run; of one that this build measured, a link to its notebook."""
    name = f"<b>{run.as_posix()}</b>"
    there = (results / f"{run}.ipynb").exists()
    return f'<a href="../experiments/results/{run.as_posix()}.html">{name}</a>' if there else name


def _ranks(record: dict[str, Any]) -> str:
    counts = [each["ranks"] for each in record.get("settings", []) if isinstance(each.get("ranks"), int)]
    return f"{statements.span(counts, '{:.0f}'.format)} ranks" if counts else "computed"


def _link(page: Path) -> str:
    title = re.search(r"^# (.+)$", page.read_text(encoding="utf8"), re.MULTILINE)
    return f'<a href="{page.stem}.html">{title[1] if title else page.stem}</a>'


def pages(run: Path, chapters: Path) -> list[Path]:
    """Return the chapters that read a run, as ``slow-motion/scaling``: they name its folder, and then its name.

    Of ``computed/which-all-reduce`` they ask for the rows by its name alone.
    """
    within, folder, name = (re.escape(each) for each in (run.parent.as_posix(), run.parent.name, run.name))
    ways = [rf"/{folder}/{name}(?![\w-])", rf"results/{within}\".*?[/\"]{name}\"", rf"{folder}\.rows\(\"{name}\""]
    found = re.compile("|".join(ways), re.DOTALL)
    return [page for page in sorted(chapters.glob("*.md")) if found.search(page.read_text())]


def beside(results: Path) -> Rows:
    """Return a reader's own rows beside those of the reference: medians of the points that both have, and their ratio.

    Own rows are in any folder of results but the book's two, in a file of the same name as the reference's.
    """
    mine = [stem for stem in stems(results) if stem.relative_to(results).parts[0] not in BOOKS]
    pairs = [(own, other) for own in mine for other in stems(results / "reference") if own.name == other.name]
    return pd.concat(
        [pd.DataFrame(), *(_pairs(own.relative_to(results), read(own)[0], read(other)[0]) for own, other in pairs)]
    )


def _pairs(run: Path, mine: Rows, theirs: Rows) -> Rows:
    if not {*POINT, "median_us"} <= {*mine} & {*theirs}:
        return pd.DataFrame()
    both = mine.merge(theirs, on=POINT, suffixes=("", "_reference"))
    both = both[(both.median_us > 0) & (both.median_us_reference > 0)]
    columns = {
        "algorithm": [*map(measured.label, both.backend, both.algorithm)],
        "buffer": both.bytes.map(format_bytes),
        "ranks": both.ranks,
        "where": both["where"],
        "yours": both.median_us.map(statements.us),
        "reference": both.median_us_reference.map(statements.us),
        "yours over reference": (both.median_us / both.median_us_reference).map("{:.2f}".format),
    }
    return pd.DataFrame(columns).set_index(pd.Index([run.as_posix()] * len(both)))

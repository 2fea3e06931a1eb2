"""All recorded runs as a table, and a reader's own rows beside them."""

import re
from pathlib import Path
from typing import Any

import pandas as pd

from collectives.bench import compare, runs
from collectives.bench.results import read
from collectives.figures.style import with_whole_options
from collectives.units import format_bytes
from collectives_book.figures import measured, statements
from collectives_book.figures.statements import Rows

# Folders of results that the pages show; every other one has a reader's own rows.
BOOKS = ("quick", "reference")


def stems(results: Path) -> list[Path]:
    """Return the recorded runs below a folder: rows with a record beside them."""
    return [
        path.with_suffix("")
        for path in sorted(results.rglob("*.parquet"))
        if path.with_suffix(".json").exists()
    ]


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
    counts = [
        each["ranks"] for each in record.get("settings", []) if isinstance(each.get("ranks"), int)
    ]
    return f"{statements.span(counts, '{:.0f}'.format)} ranks" if counts else "computed"


def _link(page: Path) -> str:
    title = re.search(r"^# (.+)$", page.read_text(encoding="utf8"), re.MULTILINE)
    return f'<a href="{page.stem}.html">{title[1] if title else page.stem}</a>'


def pages(run: Path, chapters: Path) -> list[Path]:
    """Return the chapters that read a run, as ``slow-motion/scaling``: they name its folder, and then its name.

    Of ``computed/which-all-reduce`` they ask for the rows by its name alone.
    """
    within, folder, name = (
        re.escape(each) for each in (run.parent.as_posix(), run.parent.name, run.name)
    )
    ways = [
        rf"/{folder}/{name}(?![\w-])",
        rf"results/{within}\".*?[/\"]{name}\"",
        rf"{folder}\.rows\(\"{name}\"",
    ]
    found = re.compile("|".join(ways), re.DOTALL)
    return [page for page in sorted(chapters.glob("*.md")) if found.search(page.read_text())]


def beside(results: Path) -> Rows:
    """Return a reader's own rows beside those of the reference: both times, their ratio, its interval, and the result.

    Own rows are in any folder of results but the book's two, in a file of the same name as the
    reference's. Points that one of both has are there, too. A run without a partner, or without
    rows of collectives, has a line that says so.
    """
    parts = [_pair(own, results) for own in _own(results)]
    return pd.concat([pd.DataFrame(), *parts]).fillna("")


def differences(results: Path) -> list[str]:
    """Return in which way each own run was made otherwise than the reference, a line for each."""
    pairs = [(own, other) for own in _own(results) for other in _references(own, results)]
    beside = [[_run(stem, results) for stem in pair] for pair in pairs]
    return [
        f"{mine.name}, {what}: {here}; {theirs.name}: {there}"
        for mine, theirs in beside
        if mine.rows and theirs.rows
        for what, (here, there) in compare.differences([mine, theirs]).items()
    ]


def _own(results: Path) -> list[Path]:
    return [stem for stem in stems(results) if stem.relative_to(results).parts[0] not in BOOKS]


def _references(own: Path, results: Path) -> list[Path]:
    return [stem for stem in stems(results / "reference") if stem.name == own.name]


def _run(stem: Path, results: Path) -> runs.Run:
    """Return a run; without rows if they are not those of collectives."""
    name = stem.relative_to(results).as_posix()
    try:
        return runs.read_run(name, [stem.with_name(f"{stem.name}.parquet")])
    except ValueError:
        return runs.Run(name, [], {}, [stem.name])


def _pair(own: Path, results: Path) -> Rows:
    mine, others = _run(own, results), [_run(other, results) for other in _references(own, results)]
    if not others:
        return pd.DataFrame(
            {"result": ["the reference has no run of this name"]}, index=[mine.name]
        )
    compared = [
        row
        for other in others
        for row in compare.compare(other.rows, mine.rows, ("the reference", "yours"))
    ]
    if not mine.rows or not compared:
        return pd.DataFrame({"result": ["no rows of collectives"]}, index=[mine.name])
    return pd.DataFrame([_line(row) for row in compared], index=[mine.name] * len(compared))


def _line(row: dict[str, Any]) -> dict[str, Any]:
    times = {
        name: row[f"{which}_median_us"]
        for name, which in (("yours", "second"), ("reference", "first"))
    }
    return {
        "series": compare.series_of(row),
        "buffer": format_bytes(row["bytes"]),
        **{name: statements.us(time) if time else "" for name, time in times.items()},
        "yours over reference": compare.factor(row["ratio"]) if row["ratio"] else "",
        "interval": f"{compare.factor(row['low'])} to {compare.factor(row['high'])}"
        if row["ratio"]
        else "",
        "result": row["result"],
    }

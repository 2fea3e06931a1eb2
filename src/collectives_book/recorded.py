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
    for book in BOOKS:
        lines += [_about(stem, results, chapters) for stem in stems(results / book)]
    return pd.DataFrame(lines).map(with_whole_options)


def _about(stem: Path, results: Path, chapters: Path) -> dict[str, str]:
    """Return the line of a run."""
    run = stem.relative_to(results)
    _, record = read(stem)
    name = _name(run, results)
    command = measured.command(record, stem)
    how = [
        record.get("date", "this build"),
        _ranks(record),
        measured.sureness(record),
    ]
    links = [_link(page) for page in pages(run, chapters)]
    return {
        "run and command": f"{name}<br><code>{command}</code>",
        "measured": ", ".join(text for text in how if text),
        "machine": f"{measured.computer(record)}; {measured.versions(record)}",
        "shown in": "<br>".join(links),
    }


def _name(run: Path, results: Path) -> str:
    """Return the name of a run; of one that this build measured, a link to its notebook."""
    name = f"<b>{run.as_posix()}</b>"
    there = (results / f"{run}.ipynb").exists()
    return f'<a href="../experiments/results/{run.as_posix()}.html">{name}</a>' if there else name


def _ranks(record: dict[str, Any]) -> str:
    counts = [settings.get("ranks") for settings in record.get("settings", [])]
    counts = [count for count in counts if isinstance(count, int)]
    if not counts:
        return "computed"
    return f"{statements.span(counts, '{:.0f}'.format)} ranks"


def _link(page: Path) -> str:
    title = re.search(r"^# (.+)$", page.read_text(encoding="utf8"), re.MULTILINE)
    return f'<a href="{page.stem}.html">{title[1] if title else page.stem}</a>'


def pages(run: Path, chapters: Path) -> list[Path]:
    """Return the chapters that read a run, as ``slow-motion/scaling``: they name its folder, and then its name.

    Of ``computed/which-all-reduce`` they ask for the rows by its name alone.
    """
    within = re.escape(run.parent.as_posix())
    folder = re.escape(run.parent.name)
    name = re.escape(run.name)
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
    lines = []
    for own in _own(results):
        mine = _run(own, results)
        for reference in _references(own, results):
            theirs = _run(reference, results)
            if not mine.rows or not theirs.rows:
                continue
            for what, (here, there) in compare.differences([mine, theirs]).items():
                lines.append(f"{mine.name}, {what}: {here}; {theirs.name}: {there}")
    return lines


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
    mine = _run(own, results)
    references = _references(own, results)
    if not references:
        return _only("the reference has no run of this name", mine.name)
    lines = []
    for reference in references:
        theirs = _run(reference, results)
        pairs = compare.compare(theirs.rows, mine.rows, ("the reference", "yours"))
        lines += [_line(row) for row in pairs]
    if not mine.rows or not lines:
        return _only("no rows of collectives", mine.name)
    return pd.DataFrame(lines, index=[mine.name] * len(lines))


def _only(result: str, name: str) -> Rows:
    return pd.DataFrame({"result": [result]}, index=[name])


def _line(row: dict[str, Any]) -> dict[str, Any]:
    ratio, interval = "", ""
    if row["ratio"]:
        ratio = compare.factor(row["ratio"])
        interval = f"{compare.factor(row['low'])} to {compare.factor(row['high'])}"
    return {
        "series": compare.series_of(row),
        "buffer": format_bytes(row["bytes"]),
        "yours": _time(row["second_median_us"]),
        "reference": _time(row["first_median_us"]),
        "yours over reference": ratio,
        "interval": interval,
        "result": row["result"],
    }


def _time(microseconds: float | None) -> str:
    """Return a time as text; empty where one of both runs has no such point."""
    return statements.us(microseconds) if microseconds else ""

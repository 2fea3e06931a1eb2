"""The verb ``read``: a job's logs and dumps: what they say, what is wrong, what to try."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collectives.cli import add_json, out, out_row

if TYPE_CHECKING:
    from collectives_logs.finding import Finding


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="or folder or .zip, of one job; nothing in them is run",
    )
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="write one page with pictures, too"
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Print a row for each finding.

    Raises ValueError if no file can be read and is of a known kind.
    """
    from collectives_logs.read import read

    findings = _printed(read([Path(file) for file in arguments.files]), arguments.json)
    if arguments.html:
        from collectives.cli.schedules import write
        from collectives_logs.report import page

        write(arguments.html, page(findings))
    for _ in findings:
        pass


def _printed(
    findings: "Iterator[tuple[str, Finding]]", as_json: bool
) -> "Iterator[tuple[str, Finding]]":
    """Yield the findings, each printed when it is found.

    Where the kind of files changes, its name is a heading.
    """
    before = ""
    for source, found in findings:
        if source != before and not as_json:
            out(f"{source}:")
        before = source
        shown = row(source, found)
        out_row(shown, line(shown), as_json)
        yield source, found


def row(source: str, found: "Finding") -> dict[str, Any]:
    """Return a finding as JSON has it."""
    sentences = {"found": found.found, "follows": found.follows, "next": found.next}
    return {
        "source": source,
        "kind": found.kind,
        **sentences,
        "at": [str(place) for place in found.at],
    }


def line(row: dict[str, Any]) -> str:
    """Return a row as the terminal shows it."""
    text = f"  {row['kind']}: {row['found']}"
    if row["at"]:
        text += f" ({', '.join(row['at'])})"
    if row["follows"]:
        text += f"\n      so: {row['follows']}"
    if row["next"]:
        text += f"\n      try: {row['next']}"
    return text

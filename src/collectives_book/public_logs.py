"""Logs that others published, and what ``collectives read`` says about them, beside what their authors say.

    python -m collectives_book.public_logs FOLDER

reads again the files that lie in FOLDER, known by their hashes, and replaces the committed results.
The repository has no file of others, because not every licence allows it. A row is a log:

    repository      owner/name at GitHub place           a path, or the address of a thread that
    quotes it commit          empty for a thread sha256, bytes   of the file said            by its
    author; empty if they say nothing expected        the kind of finding that says the same, or
    healthy, or empty sources         what it was recognised as found           the kinds of
    findings from which something follows first           the first of them at_first        of a log
    that was read once before anything was changed for it: what was found then false           the
    kinds that the author's words contradict, judged by hand; of a healthy log, all that were found
    false_at_first  the same of what was found at first
"""

import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import pandas as pd

from collectives.files import replace
from collectives_logs.read import read as findings_in
from collectives_logs.sources import LogError

TABLE = Path(__file__).parents[2] / "experiments/results/reference/public-logs.csv"
HEALTHY = "healthy"

# A pandas.DataFrame of logs.
Logs = Any


def rows(path: Path = TABLE) -> Logs:
    """Return the committed rows."""
    return pd.read_csv(path, keep_default_na=False)


def write(logs: Logs, path: Path = TABLE) -> None:
    """Replace the committed rows."""
    replace(path, lambda partial: logs.to_csv(partial, index=False, lineterminator="\n"))


def agrees(expected: str, found: str) -> bool:
    """Return True if what was found says the same as the author.

    >>> agrees("dip", "dip; graph"), agrees("healthy", "dip"), agrees("healthy", "none")
    (True, False, True)
    """
    return found in ("", "none") if expected == HEALTHY else expected in found.split("; ")


def judged(path: Path, expected: str, false: str) -> dict[str, str]:
    """Return the columns that change with what is read in a file."""
    try:
        found = [*findings_in([path])]
    except LogError as error:
        return {
            "sources": "",
            "found": "unreadable",
            "first": str(error).replace(f"{path}: ", ""),
        }
    marked = [each for _, each in found if each.follows]
    kinds = [*dict.fromkeys(each.kind for each in marked)]
    return {
        "sources": ", ".join(dict.fromkeys(source for source, _ in found)),
        "found": "; ".join(kinds),
        "first": f"{marked[0].found}; {marked[0].follows}" if marked else "",
        "false": "; ".join(
            kind for kind in kinds if expected == HEALTHY or kind in false.split("; ")
        ),
    }


def counts(logs: Logs) -> Logs:
    """Return how many logs with a label are right, and how many statements are false, at first and now.

    A log whose answer was known before its label has no first time.
    """
    said = logs[logs.expected != ""]
    faulty, blind = said.expected != HEALTHY, said.at_first != ""
    sets = {
        "faulty, blind": faulty & blind,
        "of these, without a table of a benchmark": faulty
        & blind
        & ~said.sources.str.contains("benchmark"),
        "healthy, blind": ~faulty & blind,
        "faulty, known": faulty & ~blind,
        "healthy, known": ~faulty & ~blind,
    }
    numbers = pd.DataFrame(
        {
            "logs": 1,
            "right at first": [*map(agrees, said.expected, said.at_first)],
            "right now": [*map(agrees, said.expected, said.found)],
            "false at first": said.false_at_first.map(_count),
            "false now": said.false.map(_count),
        },
        said.index,
    ).astype("Int64")
    numbers.loc[~blind, ["right at first", "false at first"]] = pd.NA
    return pd.DataFrame({name: numbers[those].sum(min_count=1) for name, those in sets.items()}).T


def _count(kinds: str) -> int:
    return len(kinds.split("; ")) if kinds else 0


def main(folder: str, to: Path = TABLE) -> None:
    """Read all files of the folder that a row knows, and print what changed."""
    files = {
        sha256(path.read_bytes()).hexdigest(): path
        for path in Path(folder).iterdir()
        if path.is_file()
    }
    before = rows(to).to_dict("records")
    known = [files.get(row["sha256"]) for row in before]
    after = [
        row | (judged(path, row["expected"], row["false"]) if path else {})
        for row, path in zip(before, known, strict=True)
    ]
    write(pd.DataFrame(after), to)
    for old, new in zip(before, after, strict=True):
        if old != new:
            print(
                f"{new['repository']} {new['place']}: {new['found'] or 'no fault'}; was {old['found'] or 'no fault'}"
            )
    print(f"{len(after)} logs, {known.count(None)} of them not in {folder}")


if __name__ == "__main__":
    main(sys.argv[1])

"""Logs that others published, and what ``collectives read`` says about them, beside what their authors say.

    python -m collectives_book.public_logs FOLDER

reads again the files that lie in FOLDER, known by their hashes, and replaces the committed results. The repository has
no file of others, because not every licence allows it.
"""

import csv
import sys
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from collectives.bench.results import replace
from collectives.logs.finding import Finding, LogError
from collectives.logs.read import read as findings_in

TABLE = Path(__file__).parents[2] / "experiments/results/reference/public-logs.csv"
HEALTHY = "healthy"


class PublicLog(NamedTuple):
    """A log: its place and hash, what its author says, and what was read."""

    repository: str  # owner/name at GitHub
    place: str  # a path, or the address of a thread that quotes it
    commit: str  # empty for a thread
    sha256: str
    bytes: int
    said: str  # by its author; empty if they say nothing
    expected: str  # the kind of finding that says the same, or healthy, or empty
    sources: str  # what it was recognised as
    found: str  # the kinds of findings from which something follows
    first: str  # the first of them
    at_first: str  # of a log that was read once before anything was changed for it: what was found then
    false: str  # the kinds that the author's words contradict, judged by hand; of a healthy log, all that were found
    false_at_first: str

    @property
    def verdict(self) -> str:
        """Whether what was found agrees with what the author says.

        >>> PublicLog("a/b", "x.log", "", "", 1, "slow", "dip", "NCCL log", "dip; graph", "…", "", "", "").verdict
        'agrees'
        """
        return _agreement(self.expected, self.found)

    @property
    def verdict_at_first(self) -> str:
        """The same of what was found at the first look; empty for a log whose answer was known before its label."""
        return _agreement(self.expected, self.at_first.replace("none", "")) if self.at_first else ""

    @property
    def is_faulty(self) -> bool:
        """Return True if the author says that something is wrong."""
        return self.expected not in ("", HEALTHY)


def _agreement(expected: str, found: str) -> str:
    if not expected:
        return "open"
    agrees = not found if expected == HEALTHY else expected in found.split("; ")
    return "agrees" if agrees else "misses"


def rows(path: Path = TABLE) -> list[PublicLog]:
    """The committed rows."""
    with path.open(encoding="utf8", newline="") as file:
        return [PublicLog(**row | {"bytes": int(row["bytes"])}) for row in csv.DictReader(file)]  # type: ignore[arg-type]


def write(table: list[PublicLog], path: Path = TABLE) -> None:
    """Replace the committed rows."""

    def save(partial: Path) -> None:
        with partial.open("w", encoding="utf8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([PublicLog._fields, *table])

    replace(path, save)


def judged(row: PublicLog, path: Path) -> PublicLog:
    """The row with what is read in the file."""
    try:
        found = [*findings_in([path])]
    except LogError as error:
        return row._replace(sources="", found="unreadable", first=str(error).replace(f"{path}: ", ""))
    marked = [each for _, each in found if each.follows]
    sources = ", ".join(dict.fromkeys(source for source, _ in found))
    kinds = [*dict.fromkeys(each.kind for each in marked)]
    false = "; ".join(kind for kind in kinds if row.expected == HEALTHY or kind in row.false.split("; "))
    first = _sentence(marked[0]) if marked else ""
    return row._replace(sources=sources, found="; ".join(kinds), first=first, false=false)


def _sentence(found: Finding) -> str:
    return f"{found.found}; {found.follows}"


def counts(of: list[PublicLog]) -> str:
    """Return a table in Markdown: how many are right, and how many statements are false, at first and now."""
    blind = [row for row in of if row.at_first and row.expected]
    sets = {
        "faulty, blind": [row for row in blind if row.is_faulty],
        "of these, without a table of a benchmark": [
            row for row in blind if row.is_faulty and "benchmark" not in row.sources
        ],
        "healthy, blind": [row for row in blind if not row.is_faulty],
        "faulty, known": [row for row in of if row.is_faulty and not row.at_first],
        "healthy, known": [row for row in of if row.expected == HEALTHY and not row.at_first],
    }
    lines = ["| logs | | right at first | right now | false at first | false now |", "|---|--:|--:|--:|--:|--:|"]
    for name, those in sets.items():
        right = sum(row.verdict == "agrees" for row in those)
        false = _count(row.false for row in those)
        early = ("–", "–")
        if "known" not in name:
            before = sum(row.verdict_at_first == "agrees" for row in those)
            early = (f"{before}", f"{_count(row.false_at_first for row in those)}")
        lines.append(f"| {name} | {len(those)} | {early[0]} | {right} | {early[1]} | {false} |")
    return "\n".join(lines)


def _count(kinds: Iterable[str]) -> int:
    return sum(len(each.split("; ")) for each in kinds if each)


def table(of: list[PublicLog]) -> str:
    """The logs whose authors say what is wrong, or that nothing is, in Markdown."""
    lines = ["| log | its author says | read | agrees |", "|---|---|---|---|"]
    for row in of:
        if row.expected:
            name = row.place.rpartition("/")[2]
            path = f"https://github.com/{row.repository}/blob/{row.commit}/{quote(row.place)}"
            link = path if row.commit else row.place
            found = row.found or "no fault"
            lines.append(f"| {row.repository}, [{name}]({link}) | {row.said} | {found} | {row.verdict} |")
    return "\n".join(lines)


def main(folder: str, to: Path = TABLE) -> None:
    """Read all files of the folder that a row knows, and print what changed."""
    files = {sha256(path.read_bytes()).hexdigest(): path for path in Path(folder).iterdir() if path.is_file()}
    before = rows(to)
    after = [judged(row, files[row.sha256]) if row.sha256 in files else row for row in before]
    write(after, to)
    for old, new in zip(before, after, strict=True):
        if old != new:
            print(
                f"{new.repository} {new.place}: {new.verdict}, {new.found or 'no fault'}; was {old.found or 'no fault'}"
            )
    absent = sum(row.sha256 not in files for row in before)
    print(f"{len(after)} logs, {absent} of them not in {folder}")


if __name__ == "__main__":
    main(sys.argv[1])

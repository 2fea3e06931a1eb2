"""Other people's programs: fetch the files that the committed table names, judge each, and write the verdicts again.

``python .ci/judged.py fetch FOLDER`` gets the files from their repositories by git, each as SHA-256.xml or .json, and
compares the hashes. ``python .ci/judged.py judge FOLDER`` reads and proves them, as ``collectives verify FOLDER/*``
does, and writes the table; ``judge FOLDER --check`` prints what differs from it instead, and exits with 1
if anything does.
"""

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from collectives.cli.verify import programs
from collectives.formats import teccl
from collectives.formats.teccl_fit import fit
from collectives.formats.teccl_network import GB, published
from collectives_book.judged import COLUMNS, JudgedFile, read, write

TABLE = Path(__file__).resolve().parent.parent / "experiments" / "results" / "reference" / "judged" / "programs.csv"
SITE = "https://github.com"
LONGEST = 900  # seconds for one call of git


def git(folder: str, *arguments: str) -> bytes:
    """What git prints; SystemExit with its last line if it fails or takes too long."""
    quiet = os.environ | {"GIT_TERMINAL_PROMPT": "0"}
    try:
        done = subprocess.run(["git", "-C", folder, *arguments], capture_output=True, timeout=LONGEST, env=quiet)
    except subprocess.TimeoutExpired:
        raise SystemExit(f"git {arguments[0]}: got no end within {LONGEST} s, expected one") from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise SystemExit(f"git {' '.join(arguments)[:120]}: {said[-1] if said else f'exit code {done.returncode}'}")
    return done.stdout


def contents(repository: str, rows: list[JudgedFile]) -> Iterator[tuple[JudgedFile, bytes]]:
    """The files of one repository: the commits without their files first, then the files that are asked for."""
    with tempfile.TemporaryDirectory() as folder:
        git(folder, "init", "--quiet", "--bare")
        git(folder, "remote", "add", "origin", f"{SITE}/{repository}.git")
        git(folder, "config", "remote.origin.promisor", "true")
        git(folder, "config", "remote.origin.partialclonefilter", "blob:none")
        for commit in dict.fromkeys(row.commit for row in rows):
            git(folder, "fetch", "--quiet", "--depth=1", "--filter=blob:none", "origin", commit)
        for row in rows:
            yield row, git(folder, "cat-file", "blob", f"{row.commit}:{row.path}")


def place(folder: Path, row: JudgedFile) -> Path:
    """Where a file is in the folder: by its hash, with the ending that it has in its repository."""
    return folder / f"{row.sha256}{Path(row.path).suffix}"


def fetch(folder: Path) -> None:
    """Get all files; SystemExit for one that has another hash than the table."""
    folder.mkdir(parents=True, exist_ok=True)
    missing = [row for row in read(TABLE) if not place(folder, row).exists()]
    for repository, rows in groupby(missing, key=lambda row: row.repository):
        for row, data in contents(repository, list(rows)):
            found = hashlib.sha256(data).hexdigest()
            if found != row.sha256:
                raise SystemExit(f"SHA-256 of {row.link}: got {found}, expected {row.sha256}")
            place(folder, row).write_bytes(data)
        print(f"{repository}: done", flush=True)


def judge(folder: Path) -> list[JudgedFile]:
    """The rows of the table with new verdicts; SystemExit for a file that is not in the folder."""
    rows, found = read(TABLE), []
    files = [place(folder, row) for row in rows]
    if missing := [file for file in files if not file.exists()]:
        raise SystemExit(f"judge: got no {missing[0]} and {len(missing) - 1} others, expected them: fetch first")
    verdicts = programs(list(map(str, files)))
    for row, file in zip(rows, files, strict=True):
        begin = time.process_time()
        said = next(verdicts)
        found.append(
            row._replace(
                bytes=file.stat().st_size,
                collective=said.get("collective", ""),
                ranks=said.get("ranks", 0),
                verdict=said["verdict"],
                why=said.get("why", ""),
                steps=said.get("instructions", said.get("flows", 0)) if said["verdict"] == "right" else 0,
                slots=said.get("slots", 0),
                dependencies=said.get("dependencies", 0),
                needless=len(said.get("needless", ())),
                **on_network(row.path, file, said["verdict"]),
                seconds=round(time.process_time() - begin, 3),
            )
        )
    return found


def on_network(path: str, file: Path, verdict: str) -> dict[str, Any]:
    """The columns of a right schedule whose network its path names; empty and 0 for any other file."""
    known = published(path)
    if not known or verdict != "right":
        return {"network": known[0] if known else "", "missing": "", "bandwidth": 0, "stated": 0}
    flows = teccl.read(file.read_bytes())
    found = fit(flows, *known)
    numbers = {"bandwidth": round(found.bandwidth), "stated": round(flows.stated * GB)}
    return {"network": known[0], "missing": found.missing, **numbers}


def differences(old: list[JudgedFile], new: list[JudgedFile]) -> list[str]:
    """A line for each field that differs; the seconds may."""
    return [
        f"{was.link}: {name}: got {str(getattr(now, name))[:200]}, expected {str(getattr(was, name))[:200]}"
        for was, now in zip(old, new, strict=True)
        for name in COLUMNS[:-1]
        if getattr(was, name) != getattr(now, name)
    ]


def main(arguments: list[str] | None = None) -> int:
    """Fetch or judge; returns the exit code."""
    parser = argparse.ArgumentParser("judged.py", description="Fetch and judge other people's programs.")
    parser.add_argument("verb", choices=("fetch", "judge"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--check", action="store_true", help="judge: compare with the table, do not write it")
    given = parser.parse_args(arguments)
    if given.verb == "fetch":
        fetch(given.folder)
        return 0
    rows = judge(given.folder)
    if given.check:
        found = differences(read(TABLE), rows)
        print(*found or ["no difference"], sep="\n")
        return int(bool(found))
    write(TABLE, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Other people's programs: fetch the files that the committed table names, judge each, and compare with the table.

``python .ci/judged.py FOLDER`` gets the files that are not in FOLDER from their repositories by
git, each as SHA-256.xml or .json, reads and proves them, as ``collectives verify FOLDER/*`` does,
prints what differs from the table, and exits with 1 if anything does. With ``--write`` it writes
the table again instead.
"""

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from itertools import groupby
from pathlib import Path
from typing import Any

from collectives_book.judged import COLUMNS, JudgedFile, read, write
from collectives_book.teccl_networks import GB, fit, published, stated
from collectives_interop import teccl
from collectives_interop.judge import judged

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "experiments" / "results" / "reference" / "judged" / "programs.csv"
SITE = "https://github.com"
LONGEST = 900  # seconds for one call of git


def git(folder: str, *arguments: str) -> bytes:
    """Return what git prints.

    Raise SystemExit if it fails; git itself says why on standard error.
    """
    quiet = os.environ | {"GIT_TERMINAL_PROMPT": "0"}
    done = subprocess.run(
        ["git", "-C", folder, *arguments], stdout=subprocess.PIPE, timeout=LONGEST, env=quiet
    )
    if done.returncode:
        raise SystemExit(f"git {' '.join(arguments)}: got exit code {done.returncode}, expected 0")
    return done.stdout


def place(folder: Path, row: JudgedFile) -> Path:
    """Return where a file is in the folder: by its hash, with the ending that it has in its repository."""
    return folder / f"{row.sha256}{Path(row.path).suffix}"


def fetch(folder: Path, rows: list[JudgedFile]) -> None:
    """Get the files that are missing, and no other file of their repositories.

    Raise SystemExit for another hash.
    """
    folder.mkdir(parents=True, exist_ok=True)
    few = ["--quiet", "--depth=1", "--filter=blob:none"]
    missing = [row for row in rows if not place(folder, row).exists()]
    for repository, group in groupby(missing, key=lambda row: row.repository):
        wanted = list(group)
        with tempfile.TemporaryDirectory() as clone:
            git(clone, "clone", *few, "--bare", f"{SITE}/{repository}.git", ".")
            for commit in dict.fromkeys(row.commit for row in wanted):
                git(clone, "fetch", *few, "origin", commit)
            for row in wanted:
                data = git(clone, "cat-file", "blob", f"{row.commit}:{row.path}")
                found = hashlib.sha256(data).hexdigest()
                if found != row.sha256:
                    raise SystemExit(f"SHA-256 of {row.link}: got {found}, expected {row.sha256}")
                place(folder, row).write_bytes(data)
        print(f"{repository}: done", flush=True)


def judge(folder: Path, rows: list[JudgedFile]) -> list[JudgedFile]:
    """Return the rows with new verdicts."""
    found = []
    for row in rows:
        file = place(folder, row)
        begin = time.process_time()
        (said,) = judged([str(file)])
        is_right = said["verdict"] == "right"
        # Of a program its instructions, of a schedule its flows.
        steps = said.get("instructions", said.get("flows", 0)) if is_right else 0
        network = on_network(row.path, file, said["verdict"])
        found.append(
            row._replace(
                bytes=file.stat().st_size,
                collective=said.get("collective", ""),
                ranks=said.get("ranks", 0),
                verdict=said["verdict"],
                why=said.get("why", ""),
                steps=steps,
                slots=said.get("slots", 0),
                dependencies=said.get("dependencies", 0),
                needless=len(said.get("needless") or ()),
                **network,
                seconds=round(time.process_time() - begin, 3),
            )
        )
    return found


def on_network(path: str, file: Path, verdict: str) -> dict[str, Any]:
    """Return the columns of a right schedule whose network its path names.

    Empty and 0 for any other file.
    """
    known = published(path)
    if not known or verdict != "right":
        return {"network": known[0] if known else "", "missing": "", "bandwidth": 0, "stated": 0}
    network, chunk = known
    data = file.read_bytes()
    numbers = stated(data)
    found = fit(teccl.read(data), numbers.epoch_seconds, network, chunk)
    return {
        "network": network,
        "missing": found.missing,
        "bandwidth": round(found.bandwidth),
        "stated": round(numbers.bandwidth * GB),
    }


def differences(old: list[JudgedFile], new: list[JudgedFile]) -> list[str]:
    """Return a line for each field that differs; the seconds may."""
    lines = []
    for was, now in zip(old, new, strict=True):
        for name in COLUMNS[:-1]:
            before, after = getattr(was, name), getattr(now, name)
            if before != after:
                got, expected = str(after)[:200], str(before)[:200]
                lines.append(f"{was.link}: {name}: got {got}, expected {expected}")
    return lines


def main(arguments: list[str] | None = None) -> int:
    """Fetch and judge; return the exit code."""
    parser = argparse.ArgumentParser(
        "judged.py", description="Fetch and judge other people's programs."
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--write", action="store_true", help="write the table, do not compare with it"
    )
    given = parser.parse_args(arguments)
    before = read(TABLE)
    fetch(given.folder, before)
    now = judge(given.folder, before)
    if given.write:
        write(TABLE, now)
        return 0
    found = differences(before, now)
    print(*found or ["no difference"], sep="\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())

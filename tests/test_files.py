"""Files are written whole or not at all, also by two processes of one number, and where the disk is full."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from collectives.files import append, replace

OnDisk = Callable[[str], tuple[list[str], str]]

# A disk of 32 KiB: a file system in memory, in namespaces of their own.
DISK = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
MOUNT = 'mount -t tmpfs -o size=32k full "$1" && '

SWEEP = """
import os, subprocess, sys
from pathlib import Path
from collectives.bench.results import read
from collectives.bench.sweep import measure_missing

folder, measured = Path(sys.argv[1]), []

def measure(left, keep):
    for case in left:
        measured.append(case)
        keep({"rows": [{"case": case, "samples": [0.25] * 3000}]})  # 18 KB

def run():
    measure_missing(folder / "rows", [{}], [5, 6, 7], measure)

try:
    run()
except OSError as error:
    (path,) = folder.iterdir()
    print(error.filename == str(path), error, path.read_bytes().count(b"\\n"), path.read_bytes().endswith(b"\\n"))
subprocess.run(["mount", "-o", "remount,size=1m", folder], check=True)
run()
print(measured, list(read(folder / "rows")[0].case), sorted(os.listdir(folder)))
"""

WRITE = """
import sys
from pathlib import Path
from collectives.bench.results import write
from collectives.cli import main

folder = Path(sys.argv[1])
write(folder / "rows", [{"case": 5}], {})
before = (folder / "rows.parquet").read_bytes()
many = [{"share": case**0.5} for case in range(6000)]
for record, rows in ({"why": "x" * 40_000}, [{"case": 6}]), ({}, many):
    try:
        write(folder / "rows", rows, record)
    except OSError as error:
        print(error.errno, Path(error.filename).name)
print(main(["show", "all_reduce", "ring", "-p", "16", "--svg", str(folder / "ring")]))
print(sorted(path.name for path in folder.iterdir()), (folder / "rows.parquet").read_bytes() == before)
"""


@pytest.fixture
def on_a_small_disk(tmp_path: Path) -> OnDisk:
    """A function that runs code with a folder of 32 KiB, and returns its lines and what it said."""
    if subprocess.run(
        [*DISK, f"{MOUNT}true", "sh", tmp_path], capture_output=True, check=False
    ).returncode:
        pytest.skip(
            "no small disk: `unshare` (util-linux) may not mount one without user namespaces"
        )

    def run(code: str) -> tuple[list[str], str]:
        command = [*DISK, f'{MOUNT}exec "$2" -c "$3" "$1"', "sh", tmp_path, sys.executable, code]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines(), done.stderr

    return run


def test_two_writers_of_one_name_and_one_process_number_do_not_mix(tmp_path: Path) -> None:
    """Two hosts that share a folder may have processes of one number."""
    path = tmp_path / "rows"

    def write(partial: Path) -> None:
        with partial.open("w") as file:
            file.write("first")
            replace(path, lambda other: other.write_text("second"))
            assert path.read_text() == "second"
            file.write(" is whole")

    replace(path, write)
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [
        ("rows", "first is whole")
    ]


def test_what_is_written_can_be_read_by_whom_the_mask_lets(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        replace(tmp_path / "rows", lambda partial: partial.write_text("x"))
    finally:
        os.umask(before)
    assert (tmp_path / "rows").stat().st_mode & 0o777 == 0o640


def test_a_writer_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "rows").write_text("before")

    def half(partial: Path) -> None:
        partial.write_text("half")
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        replace(tmp_path / "rows", half)
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("rows", "before")]


def test_what_is_appended_stands_behind_what_was_there(tmp_path: Path) -> None:
    for data in (b"one\n", b"", b"two\n"):
        append(tmp_path / "rows", data)
    assert (tmp_path / "rows").read_bytes() == b"one\ntwo\n"
    with pytest.raises(FileNotFoundError, match="nowhere/rows"):
        append(tmp_path / "nowhere" / "rows", b"x")


@pytest.mark.integration
def test_a_full_disk_costs_no_row_and_the_next_run_goes_on(on_a_small_disk: OnDisk) -> None:
    (told, after), _ = on_a_small_disk(SWEEP)
    assert told.startswith("True [Errno 28] No space left on device: ")
    assert told.endswith(" 1 True")  # of the second case nothing
    assert after == "[5, 6, 6, 7] [5, 6, 7] ['rows.json', 'rows.parquet']"


@pytest.mark.integration
def test_a_full_disk_leaves_nothing_half_written(on_a_small_disk: OnDisk) -> None:
    lines, told = on_a_small_disk(WRITE)
    assert lines == ["28 rows.json", "28 rows.parquet", "2", "['rows.json', 'rows.parquet'] True"]
    assert "ring-steps-light.svg and -dark.svg: No space left on device" in told

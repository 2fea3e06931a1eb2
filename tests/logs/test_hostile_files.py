"""Small files that would take gigabytes or hours if nothing bounded them: all are read, or refused in one line."""

import gzip
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from places import ROOT

MAX_BYTES, MAX_SECONDS = 1_000_000_000, 200
READ = """
import sys
from collectives.cli import main
from logs.mutated import most_memory
for path in sys.argv[1:]:
    print(path, main(["read", path]), file=sys.stderr)
print(most_memory())
"""


def call(number: int, **more: Any) -> dict[str, Any]:
    known = {"process_group": ("0", ""), "collective_seq_id": number, "state": "started"}
    return known | {"profiling_name": "nccl:all_reduce"} | more


def dump(groups: dict[str, Any], *calls: dict[str, Any]) -> bytes:
    return pickle.dumps({"pg_config": groups, "entries": [*calls]}, protocol=4)


def files() -> dict[str, bytes]:
    """Each with what the time or memory of its reader was proportional to."""
    plain = b"\x80\x02}X\x09\x00\x00\x00pg_config](%bes."
    ranks = str([*range(100_000)])
    frame = {"filename": " " * 10_000_000, "name": "f", "line": 1}
    return {
        "blank-lines.txt": b"\n" * 1_000_000,
        "many-versions.log": b"".join(b"n:1:1 [0] NCCL INFO NCCL version 2.%d.0\n" % i for i in range(60_000)),
        "one-entry-of-65536-sizes-200000-times_0": dump({}, *[call(1, input_sizes=[[1] * 64] * 1024)] * 200_000),
        "one-stack-of-frames-200000-times_0": dump({}, *[call(1, frames=[frame] * 64)] * 200_000),
        "one-text-of-ranks-700-times_0": dump({str(i): {"ranks": ranks} for i in range(700)}),
        "calls-times-groups_0": dump(
            {str(i): {"ranks": "[0]"} for i in range(4000)},
            *(call(i, process_group=(str(i % 4000), "")) for i in range(60_000)),
        ),
        "dicts-of-a-byte_0": gzip.compress(plain % (b"}" * 80_000_000)),
        "dicts-of-json_0.json": gzip.compress(b'{"pg_config": [%b0]}' % (b"{}," * 25_000_000)),
    }


@pytest.mark.integration  # seconds
def test_small_files_take_neither_gigabytes_nor_hours(tmp_path: Path) -> None:
    paths = []
    for name, content in files().items():
        paths.append(tmp_path / name)
        paths[-1].write_bytes(content)
    command = [sys.executable, "-c", READ, *map(str, paths)]
    done = subprocess.run(command, cwd=ROOT / "tests", capture_output=True, text=True, timeout=MAX_SECONDS, check=False)
    said = done.stderr.splitlines()
    assert done.returncode == 0, done.stderr
    assert [f"{path} {code}" for path in paths for code in (0, 2) if f"{path} {code}" in said] == [
        f"{path} {0 if path.name.startswith(('many', 'calls')) else 2}" for path in paths
    ]
    assert int(done.stdout.splitlines()[-1]) < MAX_BYTES

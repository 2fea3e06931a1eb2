"""Logs of NCCL and torch in which a fault was planted (one_gpu/README.md): the truth is said, and nobody else named."""

import gzip
import re
from pathlib import Path

import pytest

from collectives_logs.log import read
from collectives_logs.log_findings import findings
from collectives_logs.sources import numbered

FOLDER = Path(__file__).parent / "one_gpu"


def said(fault: str) -> list[str]:
    """What is read from a job's logs, without the places."""
    lines = [
        line
        for path in sorted((FOLDER / fault).glob("*.gz"))
        for line in numbered(gzip.decompress(path.read_bytes()).decode().splitlines(), path.name)
    ]
    return [f"{found.kind}: {found.found}; {found.follows}" for found in findings(read(lines))]


@pytest.mark.parametrize(
    ("fault", "truth"),
    [
        ("subgroup", "timeout: rank 2 waited 8 s in ALLREDUCE 2 of group 2 (tp1)"),
        ("coalesced", "timeout: ranks 0, 2–3 waited 10 s in COALESCED 1"),
        ("missing", "rank 2 had enqueued call 3 last"),
        (
            "size",
            "ranks 0–1, 3: ALLREDUCE (1,000 elements in, 1,000 out); rank 2: ALLREDUCE (512 elements in, 512 out)",
        ),
        ("size-detail", "Detected mismatch between collectives on ranks"),
        ("order", "rank 1: BROADCAST"),
        ("kill", "failed (exitcode: -9) local_rank: 1"),
        ("cut", "timeout: ranks 0, 2–3 waited 10 s in ALLREDUCE 87"),
    ],
)
def test_the_truth_is_said(fault: str, truth: str) -> None:
    assert any(truth in each for each in said(fault))


# Of a rank that the log has no line of it may be said that there is none, and no more.
@pytest.mark.parametrize("fault", [path.name for path in FOLDER.iterdir() if path.is_dir()])
def test_nobody_is_accused(fault: str) -> None:
    accused = re.compile(r"did not|never|may not have arrived|is late|hung|leave the host")
    assert [each for each in said(fault) if accused.search(each)] == []

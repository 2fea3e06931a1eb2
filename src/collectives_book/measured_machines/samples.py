"""Rows from the archives of samples that HLC-Lab/pico publishes: median, interval and source of every cell.

``python -m collectives_book.measured_machines.samples FOLDER`` makes the committed table again,
FOLDER being a checkout of that repository. An archive is a ``.tar.gz``; a member of it, such as
``…/0/256_allreduce_nccl_ring.csv``, holds the samples of one algorithm and size: the heading
``highest``, then a whole number of nanoseconds a line, the time of the slowest rank. Files of NCCL
begin with a 0 and end with a summary; neither is a sample. Nothing is unpacked to disk, and nothing
in an archive is executed.
"""

from __future__ import annotations

import csv
import hashlib
import re
import sys
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np

from collectives.files import replace
from collectives.statistics import covered, median_interval

REPOSITORY, COMMIT = "HLC-Lab/pico", "413bc5d0f98f8c45a99926cb4b68d22824d968ab"
TABLE = (
    Path(__file__).resolve().parents[3]
    / "experiments"
    / "results"
    / "reference"
    / "measured-machines"
)


class Run(NamedTuple):
    """One test in an archive: its machine's folder, its time stamp and number, and what its metadata say of it."""

    machine: str
    folder: str
    stamp: str
    nodes: int
    ranks_per_node: int = 1
    collective: str = "all_reduce"
    test: int = 0

    @property
    def path(self) -> str:
        """Return the path of the archive in the repository."""
        return f"results/{self.folder}/{self.stamp}.tar.gz"


RUNS = (
    Run("marenostrum5", "mare_nostrum", "2025_04_14___02_15_10", 4, 4),
    Run("marenostrum5", "mare_nostrum", "2025_04_14___01_21_26", 8, 4),
    Run("marenostrum5", "mare_nostrum", "2025_04_14___00_47_08", 16, 4),
    Run("marenostrum5", "mare_nostrum", "2025_04_14___02_33_44", 32, 4),
    Run("marenostrum5", "mare_nostrum", "2025_04_14___04_39_29", 64, 4),
    Run("leonardo", "leonardo", "2025_03_19___20_04_47", 128),
    Run("leonardo", "leonardo", "2025_06_04___15_12_34", 200),
    Run("leonardo", "leonardo", "2025_03_28___18_19_43", 512),
    Run("leonardo", "leonardo", "2025_03_28___17_42_08", 1024),
    Run("leonardo", "leonardo", "2025_03_28___16_48_20", 2048),
    Run("lumi", "lumi", "2025_03_16___14_58_59", 16),
    Run("lumi", "lumi", "2025_03_16___15_34_44", 32),
    Run("lumi", "lumi", "2025_04_11___19_57_44", 100, collective="all_gather"),
    Run(
        "lumi",
        "lumi",
        "2025_04_11___19_57_44",
        100,
        collective="reduce_scatter",
        test=1,
    ),
    Run("lumi", "lumi", "2025_04_12___00_29_36", 1000, collective="all_gather"),
    Run(
        "lumi",
        "lumi",
        "2025_04_12___00_29_36",
        1000,
        collective="reduce_scatter",
        test=1,
    ),
)


class Cell(NamedTuple):
    """The samples of one algorithm and size, as the table has them; times in microseconds."""

    machine: str
    collective: str
    library: str
    algorithm: str  # as the tool calls it
    nodes: int
    ranks: int
    bytes: int
    sample_count: int
    median_us: float
    low_us: float
    high_us: float
    confidence: float  # that the true median is between low and high, if samples are independent
    # The medians of ten parts of the run, one after another: far apart, they are not independent.
    least_us: float
    most_us: float
    source: str = ""  # repository, commit and path of the archive
    sha256: str = ""  # of the archive


# NCCL's files say bytes, those of MPI say how many numbers of which type.
OF_NCCL = re.compile(r"(?P<size>\d+)_allreduce_(?P<library>nccl)_(?P<algorithm>[a-z]+)\.csv")
OF_MPI = re.compile(
    r"(?P<size>\d+)_(?P<algorithm>[a-z0-9_]+)_(?P<library>ompi|mpich|over)_(?P<dtype>int32)\.csv"
)
PARTS = 10
HEADING, SUMMARY = "highest", "-> Buffer"


def read_archive(path: Path, run: Run) -> list[Cell]:
    """The cells of one test, by library, algorithm and size.

    Other members, such as the list of nodes, are skipped.

    Raises ValueError for an archive that is truncated or holds no samples, and for a member that is
    not as the module describes it; the message names the file, and what was found and expected.
    """
    try:
        whole = path.read_bytes()
        with tarfile.open(path, "r:gz") as archive:
            cells: list[Cell] = []
            for member in archive:
                cells += _member(archive, member, run)
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise ValueError(
            f"{path.name}: got no whole archive ({error}), expected a .tar.gz of samples"
        ) from None
    if not cells:
        raise ValueError(
            f"{path.name}: got no file of samples, expected some, such as 256_allreduce_nccl_ring.csv"
        )
    source = f"{REPOSITORY}@{COMMIT}:{run.path}"
    digest = hashlib.sha256(whole).hexdigest()
    return sorted(cell._replace(source=source, sha256=digest) for cell in cells)


def _member(archive: tarfile.TarFile, member: tarfile.TarInfo, run: Run) -> Iterator[Cell]:
    at = PurePosixPath(member.name)
    name = at.name
    found = OF_NCCL.fullmatch(at.name) or OF_MPI.fullmatch(at.name)
    file = archive.extractfile(member) if found and at.parent.name == str(run.test) else None
    if found is None or file is None:
        return
    us = [one / 1e3 for one in nanoseconds(file.read().decode("utf8", "replace"), name)]
    low, median, high = (round(time, 4) for time in median_interval(us))
    parts_us = [
        round(float(np.median(part)), 4) for part in np.array_split(us, min(PARTS, len(us)))
    ]
    parts = found.groupdict()
    nbytes = int(parts["size"]) * (np.dtype(parts["dtype"]).itemsize if "dtype" in parts else 1)
    ranks = run.nodes * run.ranks_per_node
    least = min(parts_us)
    most = max(parts_us)
    sure = round(covered(len(us)), 4)
    names = run.machine, run.collective, parts["library"], parts["algorithm"]
    yield Cell(
        *names,
        run.nodes,
        ranks,
        nbytes,
        len(us),
        median,
        low,
        high,
        sure,
        least,
        most,
    )


def nanoseconds(text: str, name: str) -> list[int]:
    r"""The samples in a file's text; ValueError names the first line that is not a sample.

    >>> nanoseconds("highest\n0\n44000\n41481\n", "256_allreduce_nccl_ring.csv")
    [44000, 41481]
    """
    heading, *lines = text.split("\n")
    if heading.strip() != HEADING:
        raise ValueError(f"heading of {name}: got {heading[:40]!r}, expected {HEADING!r}")
    if lines[-1:] != [""]:
        raise ValueError(
            f"end of {name}: got {(lines or [heading])[-1][:40]!r}, expected a line break: truncated?"
        )
    lines = [line for line in lines[:-1] if not line.startswith(SUMMARY)]
    samples = [_sample(line, f"line {at} of {name}") for at, line in enumerate(lines, 2)]
    samples = samples[1:] if samples[:1] == [0] else samples
    if not samples or 0 in samples:
        raise ValueError(
            f"samples of {name}: got {min(samples, default='none')}, expected times above 0"
        )
    return samples


def _sample(line: str, where: str) -> int:
    if not re.fullmatch(r"[0-9]{1,15}", line):
        raise ValueError(f"{where}: got {line[:40]!r}, expected a whole number of nanoseconds")
    return int(line)


def write(cells: Iterable[Cell], path: Path) -> None:
    """Write the table, sorted by its columns, whole or not at all."""
    lines = [Cell._fields, *sorted(cells)]

    def fill(partial: Path) -> None:
        with partial.open("w", encoding="utf8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(lines)

    path.parent.mkdir(parents=True, exist_ok=True)
    replace(path, fill)


def main(folder: Path, to: Path = TABLE / "samples.csv") -> None:
    """Read every archive of `RUNS` below a checkout and write the table.

    SystemExit names what is missing or odd.
    """
    absent = sorted({run.path for run in RUNS if not (folder / run.path).is_file()})
    if absent:
        there = f"got no {absent[0]}"
        if len(absent) > 1:
            there += f" and {len(absent) - 1} others"
        raise SystemExit(f"archives missing in {folder}: {there}, expected a clone of {REPOSITORY}")
    try:
        cells = []
        for run in RUNS:
            cells += read_archive(folder / run.path, run)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    write(cells, to)
    print(f"{len(cells)} rows from {len(RUNS)} tests: {to}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m collectives_book.measured_machines.samples FOLDER")
    main(Path(sys.argv[1]))

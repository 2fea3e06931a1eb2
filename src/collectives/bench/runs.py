"""Runs by their names: rows of collectives and their record, from a file, a folder, or the repository's results."""

import json
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from collectives.bench.results import MAX_ENCODED, Record, read
from collectives.bench.settings import Row
from collectives.errors import explain, short, suggest
from collectives.renamed import current_name

# Where `collectives run` puts results, in the repository, and the folder of those that are
# committed.
RESULTS, REFERENCE = Path("experiments/results"), "reference"

MOST = 26  # runs at a time: a letter each


class Run(NamedTuple):
    """Hold a run: its name, its rows, the record of its first file, and its files without rows of collectives."""

    name: str
    rows: list[Row]
    record: Record
    skipped: list[str]


class _Measured(BaseModel):
    """Describe what is read of a row; it may have more."""

    model_config = ConfigDict(extra="allow")

    collective: str
    algorithm: str
    backend: str
    ranks: Annotated[int, Field(ge=1)]
    bytes: Annotated[int, Field(ge=0)]
    samples: list[float]
    auto: bool | None = None
    median_us: float | None = None
    low_us: float | None = None
    high_us: float | None = None
    wrong: int | None = None
    error: str | None = None


NEEDED = {name for name, field in _Measured.model_fields.items() if field.is_required()}


def read_runs(names: Sequence[str]) -> list[Run]:
    """Return the runs of these names, two or more.

    Raises ValueError for another number of them, an unknown name, a file that has no rows of
    collectives, and a run that is named twice.
    """
    if not 2 <= len(names) <= MOST:
        raise ValueError(f"runs to compare: got {len(names)}, expected 2 to {MOST}")
    files: dict[tuple[Path, ...], str] = {}
    for name in names:
        key = tuple(path.resolve() for path in find(name))
        if key in files:
            raise ValueError(
                f"runs to compare: got {short(files[key])} and {short(name)}, expected different ones"
            )
        files[key] = name
    return [read_run(name, paths) for paths, name in files.items()]


def find(name: str) -> list[Path]:
    """Return the files of rows that a name stands for: a file, those of a folder, or a run of the repository's results.

    The name of a run is its path below ``experiments/results``, and may leave out ``reference/``;
    the folder may be above the current one. Raises ValueError if there is none.
    """
    for path in [Path(name), *(home / name for home in _homes())]:
        if path.is_dir():
            files = sorted(path.glob("*.parquet"))
            if files:
                return files
            raise ValueError(
                f"{name}: got a folder without rows, expected one with files NAME.parquet"
            )
        if path.with_name(f"{path.name}.parquet").is_file():
            return [path.with_name(f"{path.name}.parquet")]
        if path.suffix == ".json" and path.with_suffix(".parquet").is_file():
            return [path.with_suffix(".parquet")]
        if path.is_file():
            return [path]
    near = suggest(name, _known())
    expected = f"xpected a file of rows, a folder of results, or a run below {RESULTS}"
    raise ValueError(f"unknown run {short(name)}{f'{near} E' if near else ': e'}{expected}")


def _homes() -> list[Path]:
    """Return the folders that hold the repository's runs, if the current folder is in a clone."""
    here = Path.cwd()
    results = next(
        (each / RESULTS for each in (here, *here.parents) if (each / RESULTS).is_dir()), None
    )
    return [results, results / REFERENCE] if results else []


def _known() -> list[str]:
    """Return the names of the repository's runs, and of their folders."""
    files = []
    for home in _homes():
        files += [(home, path) for path in home.rglob("*.parquet")]
    names = [
        (path.with_suffix("").relative_to(home), path.parent.relative_to(home))
        for home, path in files
    ]
    return sorted({path.as_posix() for path in chain.from_iterable(names)})


def read_run(name: str, paths: Sequence[Path]) -> Run:
    """Return the run of these files; ``experiment`` in a row is its file's name.

    A file without rows of collectives is skipped. Raises ValueError if all are, and for a damaged
    one.
    """
    read_files = {path: _read(path) for path in paths}
    measured = {
        path: rows for path, (rows, _) in read_files.items() if rows and not NEEDED - rows[0].keys()
    }
    if not measured:
        raise ValueError(
            f"{name}: got no measured rows of a collective, expected columns {', '.join(sorted(NEEDED))}"
        )
    rows = []
    for path, part in measured.items():
        for turn, row in enumerate(part, start=1):
            rows.append(_checked(row, f"{path}, row {turn}") | {"experiment": path.stem})
    records = [read_files[path][1] for path in measured]
    return Run(name, rows, _joined(records), [path.stem for path in paths if path not in measured])


def _joined(records: Sequence[Record]) -> Record:
    """Return one record of several: all settings and environments, and the first of everything else."""
    if len(records) == 1:
        return records[0]
    lists = ("settings", "environment", "hosts")
    joined: Record = {}
    for record in reversed(records):  # the first record's values are those that stay
        joined |= record
    for name in lists:
        joined[name] = list(chain.from_iterable(record.get(name, []) for record in records))
    return joined


def _read(path: Path) -> tuple[list[Row], Record]:
    """Return the rows of a file and its record, which JSON lines have none of."""
    if path.suffix == ".parquet":
        frame, record = read(path.with_suffix(""))
        found = frame.astype(object).where(frame.notna(), None).to_dict("records")
        rows = [{str(name): value for name, value in row.items()} for row in found]
        for row in rows:
            if row.get("samples") is not None:
                row["samples"] = [*row["samples"]]  # of an array
        return rows, record
    return [*_lines(path)], {}


def _lines(path: Path) -> Iterator[Row]:
    """Yield the rows of `collectives bench --json`, one JSON object on each line."""
    size = path.stat().st_size
    if size > MAX_ENCODED:
        raise ValueError(f"{path}: got {size:,} bytes, expected up to {MAX_ENCODED:,}")
    try:
        rows = [
            json.loads(line)
            for line in path.read_text(encoding="utf-8-sig").splitlines()
            if line.strip()
        ]
    except (OSError, ValueError, RecursionError):
        rows = [None]
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise ValueError(
            f"{path}: got no rows, expected NAME.parquet, or what `collectives bench --json` prints"
        )
    yield from rows


def _checked(row: Row, name: str) -> Row:
    """Return a row with its algorithm as it was asked for.

    Raises ValueError for a value that cannot be one.
    """
    try:
        checked = _Measured.model_validate(row).model_dump()
    except ValidationError as error:
        raise ValueError(f"{name}: {explain(error)}") from None
    return checked | {
        "algorithm": "auto" if checked["auto"] else current_name(checked["algorithm"])
    }

"""Results on disk: rows as Parquet, and beside them, as JSON, how, where and with what they were made."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collectives.files import replace as replace
from collectives.schemas import VERSION, version_of

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

Record = dict[str, Any]

# Limits of a file of rows: rows, values of all columns, bytes as encoded, and bytes in memory. A few encoded bytes can
# stand for gigabytes, so that the rows are read in batches.
MOST_ROWS, MOST_VALUES, MOST_ENCODED, MOST_BYTES = 1 << 17, 1 << 24, 1 << 24, 1 << 28


def write(stem: str | Path, rows: list[Record], record: Record) -> None:
    """Write ``stem.parquet`` (the rows) and ``stem.json`` (the record), each whole or not at all.

    The record gets the date, and the version of the schemas that both follow. The rows are written last: if they exist,
    so does the record. Raises ValueError where there are no rows.
    """
    import pyarrow as pa
    from pyarrow import parquet

    if not rows:
        raise ValueError("there are no rows to write")
    names = dict.fromkeys(name for row in rows for name in row)
    table = pa.Table.from_pylist([dict.fromkeys(names) | row for row in rows])
    Path(stem).parent.mkdir(parents=True, exist_ok=True)
    replace(
        Path(f"{stem}.json"),
        lambda path: path.write_text(json.dumps({"version": VERSION, "date": _today()} | record, indent=1) + "\n"),
    )
    replace(Path(f"{stem}.parquet"), lambda path: parquet.write_table(table, path))


def _today() -> str:
    """The date in universal time, as 2026-11-22."""
    return datetime.now(UTC).date().isoformat()


def read(stem: str | Path) -> tuple[pd.DataFrame, Record]:
    """What `write` wrote: the rows as a table, and the record as this version has it.

    FileNotFoundError says how results are made, ValueError which file is damaged or of a newer version.
    """
    if not Path(f"{stem}.parquet").exists():
        raise FileNotFoundError(f"no results at {stem}.parquet; `make experiments` makes them")
    try:
        rows, record = table(f"{stem}.parquet").to_pandas(), json.loads(Path(f"{stem}.json").read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{stem}.parquet and .json cannot be read: {' '.join(str(error).split())}") from None
    return rows, _upgraded(record, f"{stem}.json")


def table(path: str | Path, columns: list[str] | None = None) -> pa.Table:
    """Return the rows of a Parquet file, of these columns alone if they are given.

    Raises OSError, and ValueError for a damaged file, or one with too many rows or values.
    """
    import pyarrow as pa
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
        values = sum(group.column(number).num_values for group in groups for number in range(group.num_columns))
        encoded, rows = sum(group.total_byte_size for group in groups), file.metadata.num_rows
        if rows > MOST_ROWS or values > MOST_VALUES or encoded > MOST_ENCODED:
            got = f"{rows:,}, {values:,} values and {encoded:,} encoded bytes"
            raise ValueError(f"rows: got {got}, expected up to {MOST_ROWS:,}, {MOST_VALUES:,} and {MOST_ENCODED:,}")
        batches, left = [], MOST_BYTES
        for batch in file.iter_batches(MOST_BYTES // max(encoded, 1), columns=columns):
            if (left := left - batch.nbytes) < 0:
                raise ValueError(f"rows: got more than {MOST_BYTES:,} bytes of values, expected at most that")
            batches.append(batch)
        return pa.Table.from_batches(batches, batches[0].schema if batches else file.schema_arrow)


def _upgraded(record: Record, name: str) -> Record:
    """A record of any version as this one has it. Version 0 differs only in that it does not say its version."""
    version_of(record, name)
    return record | {"version": VERSION}

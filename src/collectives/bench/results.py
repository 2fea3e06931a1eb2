"""Results on disk: rows as Parquet, and beside them, as JSON, how, where and with what they were made."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

Record = dict[str, Any]


def write(stem: str | Path, rows: list[Record], record: Record) -> None:
    """Write ``stem.parquet`` (the rows) and ``stem.json`` (the record), each whole or not at all.

    The rows come last: where they stand, the record stands too.
    """
    import pyarrow as pa
    from pyarrow import parquet

    if not rows:
        raise ValueError("there are no rows to write")
    names = dict.fromkeys(name for row in rows for name in row)
    table = pa.Table.from_pylist([dict.fromkeys(names) | row for row in rows])
    Path(stem).parent.mkdir(parents=True, exist_ok=True)
    replace(Path(f"{stem}.json"), lambda path: path.write_text(json.dumps(record, indent=1) + "\n"))
    replace(Path(f"{stem}.parquet"), lambda path: parquet.write_table(table, path))


def read(stem: str | Path) -> tuple[pd.DataFrame, Record]:
    """What `write` wrote: the rows as a table, and the record.

    FileNotFoundError says how results are made, ValueError which file is damaged.
    """
    import pandas as pd

    if not Path(f"{stem}.parquet").exists():
        raise FileNotFoundError(f"no results at {stem}.parquet; `make experiments` makes them")
    try:
        return pd.read_parquet(f"{stem}.parquet"), json.loads(Path(f"{stem}.json").read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{stem}.parquet and .json cannot be read: {' '.join(str(error).split())}") from None


def replace(path: Path, write_to: Callable[[Path], object]) -> None:
    """Have a file written beside ``path`` and moved there when it is whole."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write_to(partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)

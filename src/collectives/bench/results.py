"""Results on disk: rows as Parquet and, as JSON, a record of how, where and with what they were made.

A record names the machine, versions and variables, but no user and no secret.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import subprocess
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collectives.backends import BACKENDS, backend
from collectives.digests import code, digest
from collectives.errors import short
from collectives.files import replace
from collectives.renamed import current_name
from collectives.schemas import VERSION, version_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd
    import pyarrow as pa
    from pyarrow import parquet

Record = dict[str, Any]

PACKAGES = tuple(
    dict.fromkeys(chain(["torch", "numpy"], *(backend(name).packages for name in BACKENDS)))
)

# Variables that change what GPUs do, or identify a Slurm job, without those whose names announce a
# secret.
RECORDED = ("NCCL_", "TORCH_NCCL_", "CUDA_", "SLURM_JOB_ID", "SLURM_JOB_NODELIST")
SECRET = re.compile("SECRET|TOKEN|PASSWORD|CREDENTIAL|KEY")

# Limits of a file of rows: rows, values of all columns, bytes as encoded, bytes in memory, and
# bytes of a string. A few encoded bytes can stand for gigabytes, and the file's own word for its
# size may be a lie. Rows are therefore read in batches, and strings as dictionaries; the longest
# string is the error of ranks that failed. Compressed bytes can stand for gigabytes too, but not
# those of the codecs that `write` and pandas use: Snappy shortens data at most 22-fold.
MAX_ROWS, MAX_VALUES, MAX_ENCODED, MAX_BYTES, MAX_STRING = (
    1 << 17,
    1 << 24,
    1 << 24,
    1 << 28,
    1 << 16,
)
CODECS, BATCH_ROWS = ("UNCOMPRESSED", "SNAPPY"), 256


def write(stem: str | Path, rows: list[Record], record: Record) -> None:
    """Write ``stem.parquet`` (the rows) and ``stem.json`` (the record), each whole or not at all.

    The record gets the date, the `hosts` of its ranks, and the version of the schemas that both
    follow. The rows are written last: if they exist, so does the record. Raises ValueError where
    there are no rows.
    """
    import pyarrow as pa
    from pyarrow import parquet

    if not rows:
        raise ValueError("there are no rows to write")
    names = dict.fromkeys(chain.from_iterable(rows))
    table = pa.Table.from_pylist([dict.fromkeys(names) | row for row in rows])
    made = {"version": VERSION, "date": datetime.now(UTC).date().isoformat()}
    record = made | hosts(record.get("environment", [])) | record
    Path(stem).parent.mkdir(parents=True, exist_ok=True)
    replace(Path(f"{stem}.json"), lambda path: path.write_text(json.dumps(record, indent=1) + "\n"))
    replace(Path(f"{stem}.parquet"), lambda path: parquet.write_table(table, path))


def read(stem: str | Path) -> tuple[pd.DataFrame, Record]:
    """Return what `write` wrote: the rows as a table, and the record as this version has it.

    FileNotFoundError says how results are made, ValueError which file is damaged or of a newer
    version.
    """
    if not Path(f"{stem}.parquet").exists():
        raise FileNotFoundError(f"no results at {stem}.parquet; `make experiments` makes them")
    try:
        rows, record = (
            table(f"{stem}.parquet").to_pandas(),
            json.loads(Path(f"{stem}.json").read_text()),
        )
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{stem}.parquet and .json cannot be read: {' '.join(str(error).split())}"
        ) from None
    for column in {"algorithm", "chosen"} & {*rows}:
        rows[column] = rows[column].map(current_name, na_action="ignore").astype(rows[column].dtype)
    return rows, _upgraded(record, f"{stem}.json")


def table(path: str | Path, columns: list[str] | None = None) -> pa.Table:
    """Return the rows of a Parquet file, of these columns alone if they are given.

    Raises OSError, and ValueError for a damaged file, or one with too many rows, values or bytes, a
    string of more than 65,536 bytes, or another codec.
    """
    import pyarrow as pa
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
        parts = []
        for group in groups:
            parts += [group.column(number) for number in range(group.num_columns)]
        rows, values = file.metadata.num_rows, sum(part.num_values for part in parts)
        encoded = max(sum(group.total_byte_size for group in groups), Path(path).stat().st_size)
        if rows > MAX_ROWS or values > MAX_VALUES or encoded > MAX_ENCODED:
            got = f"{rows:,}, {values:,} values and {encoded:,} encoded bytes"
            raise ValueError(
                f"rows: got {got}, expected up to {MAX_ROWS:,}, {MAX_VALUES:,} and {MAX_ENCODED:,}"
            )
        codecs = {part.compression for part in parts}.difference(CODECS)
        if codecs:
            raise ValueError(
                f"compression of rows: got {', '.join(sorted(codecs))}, expected {' or '.join(CODECS)}"
            )
        schema, strings = file.schema_arrow, _strings(file.schema)
    with parquet.ParquetFile(path, read_dictionary=strings) as file:
        batches, left = [], MAX_BYTES
        for batch in file.iter_batches(BATCH_ROWS, columns=columns):
            decoded = []
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                _check_strings(name, column)
                decoded.append(column.cast(schema.field(name).type))
                left -= decoded[-1].nbytes
                if left < 0:
                    raise ValueError(
                        f"rows: got more than {MAX_BYTES:,} bytes of values, expected at most that"
                    )
            batches.append(pa.RecordBatch.from_arrays(decoded, names=batch.schema.names))
        found = pa.Table.from_batches(batches, batches[0].schema if batches else schema)
        # In one piece, because pandas takes whole numbers for floats in a piece with gaps only.
        return found.combine_chunks().replace_schema_metadata(schema.metadata)


def _strings(schema: parquet.ParquetSchema) -> list[str]:
    """Return the columns of strings, also those inside others.

    ValueError for bytes of a fixed length.
    """
    columns = [schema.column(number) for number in range(len(schema))]
    for column in columns:
        if column.physical_type == "FIXED_LEN_BYTE_ARRAY":
            raise ValueError(
                f"column {short(column.path)}: got bytes of a fixed length, expected numbers or strings"
            )
    return [column.path for column in columns if column.physical_type == "BYTE_ARRAY"]


def _check_strings(name: str, column: pa.Array) -> None:
    """Raise ValueError for a dictionary with a long string, or one that would take too much if it were none."""
    import pyarrow as pa
    from pyarrow import compute

    if pa.types.is_struct(column.type):
        for field, values in zip(column.type, column.flatten(), strict=True):
            _check_strings(f"{name}.{field.name}", values)
    elif pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        _check_strings(name, column.values)
    elif pa.types.is_dictionary(column.type) and not pa.types.is_primitive(column.type.value_type):
        longest = compute.max(compute.binary_length(column.dictionary)).as_py() or 0
        if longest > MAX_STRING:
            raise ValueError(
                f"column {short(name)}: got a string of {longest:,} bytes, expected up to {MAX_STRING:,}"
            )
        if len(column) * longest > MAX_BYTES:
            raise ValueError(
                f"column {short(name)}: got {len(column):,} strings of up to {longest:,} bytes in a batch"
            )


def _upgraded(record: Record, name: str) -> Record:
    """Return a record of any version as this one has it: with its version, which 0 leaves out, and present names."""
    version_of(record, name)
    settings = [
        each | {"algorithms": [*map(current_name, each["algorithms"])]}
        if "algorithms" in each
        else each
        for each in record.get("settings", [])
    ]
    return record | {"version": VERSION} | ({"settings": settings} if settings else {})


def record() -> Record:
    """Return the machine of this process: processor, cores, memory, system, Python, packages and the code's commit."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "commit": _commit(),
        **{package: version for package in PACKAGES if (version := _version(package))},
    }


def hosts(environment: Sequence[Record]) -> Record:
    """Return ``hosts`` of a record: the name of each rank's host, in the order of ranks.

    Nothing without ranks.

    Of several launches that put a rank on different hosts it has all of them. Ranks on loopback
    name none.

    >>> ranks = [{"rank": 0, "host": "n1"}, {"rank": 1, "host": "n2"}, {"rank": 0, "host": "n1"}]
    >>> hosts(ranks), hosts([*ranks, {"rank": 1, "host": "n3"}]), hosts([{"rank": 0}])
    ({'hosts': ['n1', 'n2']}, {'hosts': ['n1', 'n2 or n3']}, {'hosts': ['localhost']})
    """
    by_rank: dict[int, dict[str, None]] = {}
    for each in environment:
        if "rank" in each:
            by_rank.setdefault(each["rank"], {})[each.get("host", "localhost")] = None
    return {"hosts": [" or ".join(by_rank[rank]) for rank in sorted(by_rank)]} if by_rank else {}


def variables() -> dict[str, str]:
    """Return NCCL's and CUDA's variables of this process, and the number and nodes of its Slurm job."""
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith(RECORDED) and not SECRET.search(name)
    }


def fingerprint(value: Any) -> str:
    """Return the `digest` of a JSON value, of this package's `code`, and of the versions that it runs with."""
    return digest(
        [
            value,
            code(Path(__file__).parents[1]),
            platform.python_version(),
            *map(_version, PACKAGES),
        ]
    )


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next(
        (line.split(": ")[1] for line in lines if line.startswith("model name")), platform.machine()
    )


def _commit() -> str:
    """Return the code's commit, with a + if files have changed since, or "unknown" outside a checkout."""
    command = [
        "git",
        "-C",
        str(Path(__file__).parent),
        "describe",
        "--always",
        "--dirty=+",
        "--exclude=*",
    ]
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"

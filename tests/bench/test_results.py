"""Records of an environment, which keep no secret, and the fingerprint of settings and code."""

import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from collectives.bench import Row, results
from collectives.bench import report as bench_report
from command import finished


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("module.py", "empty.py", "machine.yaml"):
        (tmp_path / name).write_text(f"{name}\n")
    monkeypatch.setattr(results, "__file__", str(tmp_path / "bench" / "results.py"))
    return tmp_path


NODES = ["n1", "n1", "n7"]  # the hosts of three ranks


def written(name: str) -> Callable[[Path], object]:
    def write(folder: Path) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"x = 1\n")

    return write


@pytest.mark.parametrize(
    ("change", "counts"),
    [
        (written("module.py"), True),
        (written("machine.yaml"), True),
        (written("other.py"), True),
        (lambda folder: (folder / "empty.py").unlink(), True),
        (lambda folder: (folder / "empty.py").rename(folder / "full.py"), True),
        (written("__pycache__/module.act-1.py311.nbi"), False),
        (written("__pycache__/module.cpython-311.pyc"), False),
        (written(".module.py.swp"), False),
        (lambda folder: (folder / ".#module.py").symlink_to("editor@host.17"), False),
        (lambda folder: (folder / "module.py").touch(), False),
    ],
)
def test_the_fingerprint_changes_with_code_and_data(
    folder: Path, change: Callable[[Path], object], counts: bool
) -> None:
    before = results.fingerprint({"a": 1})
    assert before != results.fingerprint({"a": 2})
    change(folder)
    assert (results.fingerprint({"a": 1}) != before) == counts


def test_what_is_set_for_gpus_and_by_slurm_is_recorded_and_no_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = {
        "NCCL_IB_HCA": "mlx5_0",
        "TORCH_NCCL_BLOCKING_WAIT": "1",
        "CUDA_VISIBLE_DEVICES": "3",
        "SLURM_JOB_ID": "17",
        "SLURM_JOB_NODELIST": "n[1-4]",
    }
    for name, value in (
        kept | {"NCCL_NET_TOKEN": "s3cret", "SLURM_JOB_USER": "ada", "HOME": "/home/ada"}
    ).items():
        monkeypatch.setenv(name, value)
    found = results.variables()
    assert {name: found.get(name) for name in kept} == kept
    assert not {"NCCL_NET_TOKEN", "SLURM_JOB_USER", "HOME"} & found.keys()


@pytest.mark.parametrize("where", ["loopback", "slurm", "torchrun", "mpirun"])
def test_a_record_names_each_rank_s_host(
    where: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def gathered(mine: Row) -> list[Row]:
        on = [
            {"rank": rank, "host": host} if "host" in mine else {"rank": rank}
            for rank, host in enumerate(NODES)
        ]
        return [mine | each for each in on]

    monkeypatch.setattr(bench_report, "gathered", gathered)
    monkeypatch.setattr(bench_report.dist, "get_rank", lambda: 0)
    reported: list[Row] = []
    bench_report.report_rows(
        {"where": where, "backends": ["gloo"], "set": {"NCCL_ALGO": "Ring"}}, reported.append, []
    )
    (event,) = reported
    assert [(each["rank"], each["set"]["NCCL_ALGO"]) for each in event["environment"]] == [
        (0, "Ring"),
        (1, "Ring"),
        (2, "Ring"),
    ]
    results.write(tmp_path / "run", [{"slowest_rank": 2}], event)
    rows, record = results.read(tmp_path / "run")
    assert record["hosts"] == (["localhost"] * 3 if where == "loopback" else NODES)
    assert record["hosts"][rows.slowest_rank[0]] == ("localhost" if where == "loopback" else "n7")


def test_rows_of_a_codec_without_a_bound_are_refused(tmp_path: Path) -> None:
    """A page of a few bytes may claim gigabytes, whatever the file's metadata say of it."""
    parquet.write_table(pa.table({"bytes": [4]}), tmp_path / "rows.parquet", compression="zstd")
    with pytest.raises(
        ValueError, match="compression of rows: got ZSTD, expected UNCOMPRESSED or SNAPPY"
    ):
        results.table(tmp_path / "rows.parquet")


BOMB = """
import sys
import pyarrow as pa
from collectives.bench import results
try:
    results.table(sys.argv[1])
except ValueError as error:
    print(error)
print(pa.default_memory_pool().max_memory())
"""


@pytest.mark.integration
@pytest.mark.parametrize("nested", [False, True])
def test_a_long_string_in_many_rows_is_refused_before_it_is_copied(
    tmp_path: Path, nested: bool
) -> None:
    """A string of 1.9 MB that a dictionary gives to 8,192 rows: 15 GB if it were copied to each."""
    rows = 8192
    long = pa.array(["x" * 1_900_000]).dictionary_encode().take(pa.array([0] * rows))
    column = pa.StructArray.from_arrays([long], ["name"]) if nested else long
    path = tmp_path / "rows.parquet"
    made = pa.table({"algorithm": column, "ranks": range(rows)})
    parquet.write_table(
        made, path, compression="snappy", write_statistics=False, store_schema=False
    )
    said, most = finished([sys.executable, "-c", BOMB, str(path)], check=True).stdout.splitlines()
    assert "algorithm" in said
    assert said.endswith("got a string of 1,900,000 bytes, expected up to 65,536")
    assert int(most) < 1 << 25


def test_bytes_of_a_fixed_length_are_refused(tmp_path: Path) -> None:
    made = pa.table({"algorithm": pa.array([b"two_tree"], pa.binary(8))})
    parquet.write_table(made, tmp_path / "rows.parquet")
    with pytest.raises(
        ValueError, match="column 'algorithm': got bytes of a fixed length, expected numbers or str"
    ):
        results.table(tmp_path / "rows.parquet")


def test_many_strings_in_the_list_of_a_row_are_refused(tmp_path: Path) -> None:
    """8,192 strings of 60,000 bytes, in one row."""
    long = pa.array(["x" * 60_000]).dictionary_encode().take(pa.array([0] * 8192))
    made = pa.table({"spans": pa.ListArray.from_arrays(pa.array([0, 8192], pa.int32()), long)})
    parquet.write_table(made, tmp_path / "rows.parquet", store_schema=False)
    with pytest.raises(ValueError, match="8,192 strings of up to 60,000 bytes in a batch"):
        results.table(tmp_path / "rows.parquet")


def test_rows_of_all_types_are_read_as_they_were_written(tmp_path: Path) -> None:
    rows = [
        {
            "algorithm": name,
            "machine": {"name": name and name[::-1], "rate": 0.5},
            "samples": [n / 7, 3.0],
            "count": n,
            "spans": [{"what": name}] * (n % 3),
        }
        for n, name in enumerate(["ring", "two_tree", None, "r" * 1024] * 200)
    ]
    results.write(tmp_path / "rows", rows, {})
    assert results.table(tmp_path / "rows.parquet").to_pylist() == rows


def test_rows_are_read_in_one_piece_as_pandas_wrote_them(tmp_path: Path) -> None:
    """Whole numbers inside others become floats if one of them is missing, in all rows or in none."""
    rows = [{"bytes": {"inside": n, "rack": None if n == 700 else n}} for n in range(800)]
    made = pa.Table.from_pylist(rows).to_pandas()
    made.to_parquet(tmp_path / "rows.parquet")
    read = results.table(tmp_path / "rows.parquet").to_pandas()
    assert [type(row["rack"]) for row in read["bytes"]] == [
        type(row["rack"]) for row in made["bytes"]
    ]
    assert read.index.equals(made.index)

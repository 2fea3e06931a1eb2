"""Records of an environment, which keep no secret, and the fingerprint of settings and code."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from collectives.bench import Row, measure, results


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("module.py", "empty.py", "machine.yaml"):
        (tmp_path / name).write_text(f"{name}\n")
    monkeypatch.setattr(results, "__file__", str(tmp_path / "bench" / "results.py"))
    return tmp_path


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


def test_what_is_set_for_gpus_and_by_slurm_is_recorded_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {
        "NCCL_IB_HCA": "mlx5_0",
        "TORCH_NCCL_BLOCKING_WAIT": "1",
        "CUDA_VISIBLE_DEVICES": "3",
        "SLURM_JOB_ID": "17",
        "SLURM_JOB_NODELIST": "n[1-4]",
    }
    for name, value in (kept | {"NCCL_NET_TOKEN": "s3cret", "SLURM_JOB_USER": "ada", "HOME": "/home/ada"}).items():
        monkeypatch.setenv(name, value)
    found = results.variables()
    assert {name: found.get(name) for name in kept} == kept
    assert not {"NCCL_NET_TOKEN", "SLURM_JOB_USER", "HOME"} & found.keys()


@pytest.mark.parametrize(("hosts", "named"), [(["n1", "n1"], False), (["n1", "n2"], True)])
def test_a_host_is_named_where_there_are_several(
    hosts: list[str], named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        measure, "gathered", lambda mine: [mine | {"rank": i, "host": host} for i, host in enumerate(hosts)]
    )
    monkeypatch.setattr(measure.dist, "get_rank", lambda: 0)
    monkeypatch.setattr(measure.socket, "gethostname", lambda: "n1")
    reported: list[Row] = []
    measure.report_rows({"where": "slurm", "backends": ["gloo"], "set": {"NCCL_ALGO": "Ring"}}, reported.append, [])
    (event,) = reported
    assert [each.get("host") for each in event["environment"]] == (hosts if named else [None] * 2)
    assert [(each["rank"], each["set"]["NCCL_ALGO"]) for each in event["environment"]] == [(0, "Ring"), (1, "Ring")]


def test_rows_of_a_codec_without_a_bound_are_refused(tmp_path: Path) -> None:
    """A page of a few bytes may claim gigabytes, whatever the file's metadata say of it."""
    parquet.write_table(pa.table({"bytes": [4]}), tmp_path / "rows.parquet", compression="zstd")
    with pytest.raises(ValueError, match="compression of rows: got ZSTD, expected UNCOMPRESSED or SNAPPY"):
        results.table(tmp_path / "rows.parquet")

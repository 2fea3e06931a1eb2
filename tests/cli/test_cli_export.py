"""The verb ``export``: what it writes, where, and one line for what it cannot write."""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from collectives.cli import main
from collectives_interop import msccl
from collectives_interop.prove import prove
from command import finished

Capture = pytest.CaptureFixture[str]


def run(capsys: Capture, line: str) -> tuple[int, str, str]:
    code = main(line.split())
    return code, *capsys.readouterr()


def test_a_program_on_standard_output_is_proved_again(capsys: Capture) -> None:
    code, out, err = run(
        capsys, "export all_reduce two_tree -p 5 --segments 2 --to msccl --protocol LL"
    )
    assert (code, err) == (0, "")
    program = msccl.read(out.encode())
    assert (program.collective, program.p, program.protocol) == ("all_reduce", 5, "LL")
    assert prove(program).messages == 2 * 4 * 2 * 2


def test_a_program_in_a_file(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "ring.xml"
    path.write_text("old")
    line = f"export all_reduce ring -p 4 --to msccl --output {path}"
    code, out, err = run(capsys, line)
    assert (code, out) == (0, "")
    assert err == f"{path}: {path.stat().st_size:,} bytes\n"
    assert run(capsys, f"verify {path}")[0] == 0
    path.write_text("old")
    assert run(capsys, line.replace("-p 4", "-p 40"))[0] == 2
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def measured(path: Path, backends: tuple[str, ...], algorithms: tuple[str, ...]) -> Path:
    """Rows in which later algorithms are faster, and one row that failed."""
    rows = [
        {
            "collective": "all_reduce",
            "backend": backend,
            "algorithm": name,
            "ranks": 8,
            "bytes": 1024,
            "median_us": us,
        }
        for backend in backends
        for us, name in zip((30.0, 20.0, 10.0), algorithms, strict=False)
    ]
    pd.DataFrame([*rows, rows[0] | {"median_us": float("nan")}]).to_parquet(path)
    return path


def test_the_tuner_s_file_from_measured_rows(capsys: Capture, tmp_path: Path) -> None:
    rows = measured(tmp_path / "a.parquet", ("gloo", "nccl"), ("Ring/LL", "default", "Tree/LL128"))
    code, out, err = run(capsys, f"export all_reduce --to nccl-tuner --rows {rows}")
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == "allreduce,1024,1024,tree,ll128,-1,-1,8,-1,-1"
    rows = measured(tmp_path / "c.parquet", ("gloo", "nccl"), ("Ring/LL", "Tree/LL128", "default"))
    code, out, err = run(capsys, f"export all_reduce --to nccl-tuner --rows {rows}")
    assert (code, out, "times: got none by ring or tree that beat" in err) == (2, "", True)
    rows = measured(tmp_path / "b.parquet", ("gloo", "p2p"), ("ring", "two_tree"))
    code, out, err = run(capsys, f"export all_reduce --to nccl-tuner --rows {rows}")
    assert (code, out) == (2, "")
    assert "back ends of" in err


def test_the_tuner_s_file_from_a_machine(capsys: Capture) -> None:
    code, out, err = run(
        capsys, "export all_reduce --to nccl-tuner --machine dgx-h100 --nodes 2 --bytes 64K"
    )
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == "allreduce,65536,65536,tree,ll,-1,2,16,-1,-1"


def test_what_is_simulated_leaves_large_buffers_to_nccl_which_may_have_nvls(
    capsys: Capture,
) -> None:
    line = "export all_reduce --to nccl-tuner --machine dgx-h100 --nodes 2 --bytes"
    code, out, err = run(capsys, f"{line} 16K 64K 1M")
    assert (code, err) == (0, "")
    assert out.splitlines()[2:] == ["allreduce,16384,65536,tree,ll,-1,2,16,-1,-1"]
    code, out, err = run(capsys, f"{line} 1M")
    assert (code, out, "expected some" in err) == (2, "", True)


def test_goal_comes_with_loggopsim_s_parameters(capsys: Capture) -> None:
    code, out, err = run(capsys, "export all_reduce ring -p 4 --to goal --bytes 4K")
    assert code == 0
    assert out.startswith("num_ranks 4\nrank 0 {\nl1: send 1024b to 1 tag 0")
    assert (
        err
        == "LogGOPSim -L 0 -o 2500000 -g 5000000 -G 40 -S 2147483647: times in picoseconds on textbook\n"
    )


def test_a_wrong_schedule_is_not_written(capsys: Capture, tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text(
        "from collectives import Schedule, Step\n"
        "def twice(p): return Schedule('all_reduce', p, 1, 2, lambda t: Step([0, 1], [1, 0], 0, add=True))\n"
    )
    code, out, err = run(capsys, f"export all_reduce {own}:twice -p 2 --to msccl")
    assert (code, out) == (1, "")
    assert "rank 0 holds chunk 0 of rank 0 2 times, not 1" in err


@pytest.mark.integration  # a process
def test_a_small_file_of_rows_cannot_take_gigabytes(tmp_path: Path) -> None:
    """As many zeros, and as long a text in each row, as a few encoded bytes can stand for."""
    import pyarrow as pa
    from pyarrow import parquet

    text = pa.DictionaryArray.from_arrays(pa.array([0] * 100_000, pa.int32()), ["x" * 1_000_000])
    parquet.write_table(pa.table({"collective": text}), tmp_path / "texts.parquet")
    with parquet.ParquetWriter(
        tmp_path / "zeros.parquet", pa.schema([("ranks", pa.int64())])
    ) as file:
        zeros = pa.table({"ranks": np.zeros(1 << 23, np.int64)})
        for _ in range(40):
            file.write_table(zeros)
    code = """
import resource, sys
from collectives.cli import main
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
print([main(["export", "all_reduce", "--to", "nccl-tuner", "--rows", path]) for path in sys.argv[1:]])
"""
    paths = [str(tmp_path / name) for name in ("zeros.parquet", "texts.parquet")]
    done = finished([sys.executable, "-c", code, *paths])
    assert (done.stdout, done.returncode) == ("[2, 2]\n", 0), done.stderr
    assert len(done.stderr.splitlines()) == 2
    assert all(
        path in line and "expected" in line
        for path, line in zip(paths, done.stderr.splitlines(), strict=True)
    )

"""Commands with a wrong word, a missing package or a removed folder: each is told in one line what is allowed."""

import json
import sys
from pathlib import Path

import pytest

from collectives.machine import machine
from command import Capture, finished, run


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("show allreduce ring", "did you mean 'all_reduce'?"),
        ("show broadcast tree", "did you mean 'binomial'?"),
        (
            "bench broadcast gather --op avg",
            "broadcast, gather takes no --op: got avg, expected none",
        ),
        (
            f"bound all_reduce --machine torus:{'9' * 5000}",
            "expected such as 4x4, of 2 to 1,024 ranks",
        ),
    ],
)
def test_a_wrong_word_is_told_what_is_allowed(capsys: Capture, words: str, said: str) -> None:
    code, out, err = run(capsys, *words.split())
    assert code == 2, err
    assert out == "", err
    assert said in err, err


@pytest.mark.parametrize("where", ["slurm", "torchrun"])
def test_no_table_begins_where_no_rank_starts(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    for name in ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    code, out, err = run(capsys, "bench", "--where", where, "--bytes", "4")
    assert code != 0, err
    assert out == "", err


def test_a_key_that_comes_twice_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\nnetwork: {latency: 5us, rate: 25GB/s}\nname: other\n")
    with pytest.raises(
        ValueError, match="line 3, column 1: got the key 'name' twice, expected it once"
    ):
        machine(str(path))


@pytest.mark.parametrize(
    ("slower", "ranks_add", "switches_add"),
    # Of the slow node's four ports, 6.25 GB/s each, all bytes have to come.
    [("", (25 + 25) * 8 / 14, 50), ("slower: {1: 4}", 18.75, 4 * 6.25)],
)
def test_the_bound_counts_slower_nodes_and_says_who_adds(
    capsys: Capture, tmp_path: Path, slower: str, ranks_add: float, switches_add: float
) -> None:
    path = tmp_path / "mine.yaml"
    link = "{latency: 5us, rate: 25GB/s}"
    path.write_text(f"name: mine\nranks_per_node: 4\ninside: {link}\nnetwork: {link}\n{slower}\n")
    code, out, err = run(capsys, "bound", "all_reduce", "-p", "8", "--machine", str(path), "--json")
    assert (code, err) == (0, "")
    row = json.loads(out)
    assert (row["algbw"], row["switch_algbw"]) == pytest.approx((ranks_add, switches_add))
    code, out, _ = run(capsys, "bound", "all_reduce", "-p", "8", "--machine", str(path))
    assert f"{row['algbw']:.2f} GB/s" in out
    assert "if ranks add" in out
    assert "if switches add" in out


@pytest.mark.integration
def test_a_removed_working_folder_is_named(tmp_path: Path) -> None:
    (folder := tmp_path / "gone").mkdir()
    command = [
        sys.executable,
        "-c",
        REMOVE,
        str(folder),
        "bench",
        "--bytes",
        "4",
        "--repetitions",
        "1",
    ]
    done = finished(command)
    assert done.returncode == 1, done.stderr
    assert "the working folder was removed" in done.stderr, done.stderr


REMOVE = """
import os, sys
os.chdir(sys.argv[1])
os.rmdir(sys.argv[1])
from collectives.cli import main
sys.exit(main(sys.argv[2:]))
"""
WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
try:
    {}
except ModuleNotFoundError as error:
    print(error)
"""


@pytest.mark.integration
@pytest.mark.parametrize(
    "what", ["import collectives; collectives.all_reduce", "import collectives.torch_backend"]
)
def test_without_torch_the_extra_is_named(what: str) -> None:
    said = finished([sys.executable, "-c", WITHOUT_TORCH.format(what)], check=True).stdout
    assert said.endswith("pip install 'collective-communication[run]'\n"), said

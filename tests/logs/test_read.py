"""The verb ``read``: what it prints and writes, and files of no known kind."""

import gzip
import json
import os
import random
import re
import sys
import zipfile
from pathlib import Path

import pytest

from collectives.cli import main
from collectives_logs.read import KINDS, read
from collectives_logs.sources import MAX_FILES
from command import finished
from logs import benchmark_logs, mutated
from logs.flight_dumps import dumps, job, written
from logs.nccl_logs import Job, lines, watchdog
from places import ROOT
from test_schemas import kind


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.log"
    path.write_text("\n".join(lines(Job(way="NET/Socket/0"))))
    assert main(["read", str(path)]) == 0
    said = capsys.readouterr().out
    assert "58 lines, 58 of them NCCL's; NCCL 2.19.3+cuda12.2" in said
    assert "connection: 4 lines of connections by sockets, such as rank 3 to 4" in said
    assert "    try: between hosts with InfiniBand" in said
    assert main(["read", str(path), "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row["kind"] for row in rows} == {"log", "connection"}
    assert {kind(row) for row in rows} == {"found"}


@pytest.mark.integration  # seconds
def test_one_page_says_the_same_with_pictures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, page = tmp_path / "job.log", tmp_path / "job.html"
    log = [*lines(Job(nodes=4)), "node0:100:200 [0] f.cc:12 NCCL WARN <script>alert(1)</script>"]
    path.write_text("\n".join(log))
    slow = ROOT / "experiments/results/reference/slow-motion/faults/case-3.zip"
    assert main(["read", str(path), str(slow), "--html", str(page)]) == 0
    said, html = capsys.readouterr().out, page.read_text()
    assert html.count("<article>") == sum(
        line.startswith("  ") and line[2] != " " for line in said.splitlines()
    )
    assert html.count("<picture>") == 1
    assert "<script>" not in html
    assert main(["read", str(path), "--html", str(tmp_path / "no" / "job.html")]) == 2
    assert f"cannot write {tmp_path / 'no' / 'job.html'}" in capsys.readouterr().err
    assert sorted(each.name for each in tmp_path.iterdir()) == ["job.html", "job.log"]


def test_a_hang_at_the_end_of_a_long_log_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train.log"
    path.write_text("step 1, loss 0.3\n" * 100_000 + watchdog(3) + "\n")
    assert main(["read", str(path)]) == 0
    assert "rank 3 waited 600 s" in capsys.readouterr().out


def test_broken_and_cut_archives_give_what_they_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(3)
    text = "\n".join([*lines(Job()), *(f"{chance.random()}" for _ in range(200_000))])
    data = bytearray(gzip.compress(text.encode()))
    path = tmp_path / "job.log.gz"
    path.write_bytes(data[: len(data) - 1000])
    assert main(["read", str(path)]) == 0
    assert "58 of them NCCL's" in capsys.readouterr().out
    data[-5000:-4000] = bytes(1000)
    path.write_bytes(data)
    assert main(["read", str(path)]) == 0
    assert "58 of them NCCL's" in capsys.readouterr().out


def test_a_pipe_is_refused_and_not_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/null")):
        assert main(["read", str(path)]) == 2
        assert capsys.readouterr().err.endswith(
            f"{path}: got a pipe or device, expected a file or folder\n"
        )


def five_ranks(folder: Path) -> list[Path]:
    """Dumps of five ranks of which rank 3 stopped early, as files in a folder."""
    folder.mkdir()
    of = job(5, 2)
    of.programs[3].pop()
    return written(dumps(of), folder, "json")


def test_one_bad_file_of_several_is_named_and_the_others_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = five_ranks(tmp_path / "job")
    paths[1].write_bytes(b"")
    (tmp_path / "broken.zip").write_bytes(b"PK\x03\x04 and no more")
    os.mkfifo(tmp_path / "pipe")
    others = [tmp_path / name for name in ("absent.log", "broken.zip", "pipe")]
    assert main(["read", *map(str, [*others, *paths])]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in said[:5]] == ["files", *["  unreadable"] * 4]
    assert all(str(path) in line for path, line in zip([*others, paths[1]], said[1:5], strict=True))
    assert any("rank 3 made call" in line and "rank 1 left no dump" in line for line in said)
    for number in range(20):
        (tmp_path / "job" / f"empty-{number}").touch()
    assert main(["read", str(tmp_path / "job")]) == 0
    assert "  unreadable: 13 more files" in capsys.readouterr().out.splitlines()


def test_a_folder_and_an_archive_stand_for_their_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also an archive in a folder.

    Names that lead out of it, a wrong checksum and a password harm nothing.
    """
    paths = five_ranks(tmp_path / "job")
    inner = tmp_path / "job" / "inner"
    inner.mkdir()
    with zipfile.ZipFile(inner / "two.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(paths[0], "../../../rank_0")
        archive.write(paths[1], "/rank_1")
        archive.writestr("locked", "x")
        archive.getinfo("locked").flag_bits |= 1
        archive.writestr("other", "x", zipfile.ZIP_LZMA)
    with zipfile.ZipFile(inner / "wrong.zip", "w") as archive:
        archive.writestr("job.log", "\n".join([*lines(Job()), *["loss 0.3"] * 200_000]))
        archive.getinfo("job.log").CRC ^= 1
    for path in paths[:2]:
        path.unlink()
    before = sorted(tmp_path.rglob("*"))
    assert main(["read", str(tmp_path / "job")]) == 0
    said = capsys.readouterr().out
    assert (
        said.count("two.zip/locked: ") == said.count("two.zip/other: got another compression") == 1
    )
    assert "dumps: 5 ranks" in said
    assert "never arrived: rank 3 made call" in said
    assert "58 of them NCCL's" in said
    assert f"{inner}/two.zip/../../../rank_0" in said
    assert sorted(tmp_path.rglob("*")) == before


def test_an_archive_of_too_many_files_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with zipfile.ZipFile(tmp_path / "many.zip", "w") as archive:
        for number in range(MAX_FILES + 1):
            archive.writestr(str(number), "")
    assert main(["read", str(tmp_path / "many.zip")]) == 2
    assert "many.zip: got more than 16,384 files" in capsys.readouterr().err


def test_entries_of_an_archive_that_share_bytes_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A small archive could name its one member thousands of times."""
    path = tmp_path / "shared.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("job.log", "\n".join(lines(Job())))
    whole = path.read_bytes()
    first, end = whole.find(b"PK\x01\x02"), bytearray(whole[whole.find(b"PK\x05\x06") :])
    entry = whole[first : whole.find(b"PK\x05\x06")]
    end[8:12] = (3).to_bytes(2, "little") * 2
    end[12:16] = (3 * len(entry)).to_bytes(4, "little")
    path.write_bytes(whole[:first] + 3 * entry + end)
    assert main(["read", str(path)]) == 2
    assert "got entries that share bytes" in capsys.readouterr().err


def test_what_all_packed_files_of_a_call_unpack_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("collectives_logs.sources.MIN_UNPACKED", 1 << 16)
    monkeypatch.setattr("collectives_logs.sources.MAX_RATIO", 20)
    text = ("\n".join(lines(Job())) + "\n").encode()
    for number in range(4):
        (tmp_path / f"{number}.log.gz").write_bytes(gzip.compress(text * 40))
    (tmp_path / "plain.log").write_bytes(text * 40)
    budget = max(1 << 16, 20 * sum(each.stat().st_size for each in tmp_path.iterdir()))
    count = re.compile(r"log: ([\d,]+) lines")
    assert main(["read", str(tmp_path)]) == 0
    whole = capsys.readouterr().out
    assert "got more than" not in whole  # plain files count as packed ones: there is room
    (tmp_path / "plain.log").unlink()
    assert main(["read", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "unpacked bytes in all files, expected fewer; the rest is left out" in said
    kept, all_of_them = (int(count.search(each)[1].replace(",", "")) for each in (said, whole))
    assert 0 < kept < all_of_them / 2
    assert kept * len(text) / 58 < budget


def test_a_log_in_utf_16_says_the_same(tmp_path: Path) -> None:
    warning = "node0:100:200 [0] a.cc:1 NCCL WARN no directory /größe/данные"
    text = "\n".join([*lines(Job()), watchdog(3), warning])
    wanted = [(one.kind, one.found) for _, one in read([_written(tmp_path / "8", text.encode())])]
    for code in ("utf-16", "utf-16-le", "utf-16-be"):
        found = read([_written(tmp_path / code, text.replace("\n", "\r\n").encode(code))])
        assert [(one.kind, one.found) for _, one in found] == wanted


def _written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_a_file_that_nothing_explains_is_shown_as_its_reader_would_look_at_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raised = [
        "Traceback (most recent call last):",
        '  File "a.py", line 3, in <module>',
        "KeyError: 'lr'",
    ]
    path = tmp_path / "any.txt"
    path.write_text("\n".join(["step 1", *raised, *(f"end {number}" for number in range(9))]))
    assert main(["read", str(path)]) == 0
    said = capsys.readouterr().out
    assert "no line has a known form of a failure" in said
    assert "traceback: KeyError: 'lr', raised at \"a.py\", line 3, in <module>" in said
    assert [f"last line: end {number}" in said for number in (2, 3, 8)] == [False, True, True]


def test_the_file_of_a_culprit_is_read_beside_those_that_wait(tmp_path: Path) -> None:
    for rank in range(15):
        _written(tmp_path / f"rank_{rank}.log", f"step 1\n{watchdog(rank)}\n".encode())
    _written(
        tmp_path / "rank_15.log",
        b"step 1\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB.\n",
    )
    first = next(one for _, one in read([tmp_path]) if one.follows)
    assert first.at[0].file.endswith("rank_15.log")
    assert "CUDA out of memory" in first.found


BARE = """
import sys

class Without:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in (*sys.stdlib_module_names, "collectives", "collectives_logs", "numpy"):
            raise ModuleNotFoundError(f"No module named {top!r}", name=top)

sys.meta_path.insert(0, Without())
from collectives.cli import main
sys.exit(main(["read", *sys.argv[1:]]))
"""


@pytest.mark.integration  # a process
def test_the_package_without_extras_reads_every_kind(tmp_path: Path) -> None:
    for name, made in mutated.FORMATS.items():
        for number, content in enumerate(made()):
            path = tmp_path / f"{name}-{number}"
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
    large = benchmark_logs.Run(
        sizes=(1 << 10, 1 << 28), ranks=8, hosts=("n1",), device="NVIDIA H100 80GB HBM3"
    )
    (tmp_path / "with-preset").write_text(benchmark_logs.text(large))
    command = [sys.executable, "-c", BARE, str(tmp_path)]
    done = finished(command)
    assert done.returncode == 0
    assert done.stderr == ""
    assert {f"{name}:" for name in mutated.FORMATS} == {*done.stdout.splitlines()} & {
        f"{each.name}:" for each in KINDS
    }


# Recorded dumps of jobs with a planted fault, and the kind of the first finding from which
# something follows.
RECORDED = {
    1: "no dump", 2: "no dump", 3: "straggler", 4: "slow link", 5: "other operation", 6: "other sizes",
    7: "other algorithm", 8: "crossed order", 9: "versions", 10: "crossed order",
}  # fmt: skip


@pytest.mark.parametrize("number", RECORDED)
def test_the_first_finding_in_recorded_dumps_is_the_fault(number: int) -> None:
    found = read([ROOT / f"experiments/results/reference/slow-motion/faults/case-{number}.zip"])
    assert next(one.kind for _, one in found if one.follows) == RECORDED[number]

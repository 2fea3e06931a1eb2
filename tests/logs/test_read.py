"""The verb ``read``: what it prints and writes, and files of no known kind."""

import gzip
import json
import os
import random
from pathlib import Path

import pytest

from collectives.cli import main
from logs.nccl_logs import Job, lines, watchdog
from test_schemas import kind


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.log"
    path.write_text("\n".join(lines(Job(way="NET/Socket/0"))))
    assert main(["read", str(path)]) == 0
    said = capsys.readouterr().out
    assert "communicator: 0xabc of 8 ranks, all in the log, on 2 hosts; 2 channels, NCCL 2.19.3+cuda12.2" in said
    assert "connection: 4 connections by sockets between nodes" in said
    assert "    try: if there is InfiniBand" in said
    assert main(["read", str(path), "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row["kind"] for row in rows} == {"log", "communicator", "proved", "connection"}
    assert {kind(row) for row in rows} == {"found"}


@pytest.mark.integration  # seconds
def test_one_page_says_the_same_with_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, page = tmp_path / "job.log", tmp_path / "job.html"
    log = [*lines(Job(nodes=4)), "node0:100:200 [0] f.cc:12 NCCL WARN <script>alert(1)</script>"]
    path.write_text("\n".join(log))
    assert main(["read", str(path), "--html", str(page)]) == 0
    said, html = capsys.readouterr().out, page.read_text()
    assert html.count("<article>") == sum(line.startswith("  ") and line[2] != " " for line in said.splitlines())
    assert html.count("<picture>") == 2
    assert "two trees on 4 ranks" in html
    assert "<script>" not in html
    assert main(["read", str(path), "--html", str(tmp_path / "no" / "job.html")]) == 2
    assert capsys.readouterr().err.endswith("No such file or directory\n")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["job.html", "job.log"]


def test_a_hang_at_the_end_of_a_long_log_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "train.log"
    path.write_text("step 1, loss 0.3\n" * 100_000 + watchdog(3) + "\n")
    assert main(["read", str(path)]) == 0
    assert "rank 3 waited 600 s" in capsys.readouterr().out


def test_broken_and_cut_archives_give_what_they_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chance = random.Random(3)
    text = "\n".join([*lines(Job()), *(f"{chance.random()}" for _ in range(200_000))])
    data = bytearray(gzip.compress(text.encode()))
    path = tmp_path / "job.log.gz"
    path.write_bytes(data[: len(data) - 1000])
    assert main(["read", str(path)]) == 0
    assert "0xabc of 8 ranks, all in the log" in capsys.readouterr().out
    data[-5000:-4000] = bytes(1000)
    path.write_bytes(data)
    assert main(["read", str(path)]) == 0
    assert "0xabc of 8 ranks, all in the log" in capsys.readouterr().out


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        assert main(["read", str(path)]) == 2
        assert capsys.readouterr().err.endswith(f"{path}: got a folder, pipe or device, expected a file\n")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot read"),
        (b"", "got 0 bytes of an unknown kind, expected one of: "),
        (b"\x80\x04\x95" + bytes(range(256)), "got 259 bytes of an unknown kind"),
        (b"loss 0.3\n" * 5, "got 45 bytes of an unknown kind"),
    ],
)
def test_what_is_no_log_gets_one_line(
    content: bytes | None, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "job.log"
    if content is not None:
        path.write_bytes(content)
    assert main(["read", str(path)]) == 2
    said = capsys.readouterr()
    assert (said.out, len(said.err.splitlines())) == ("", 1)
    assert says in said.err

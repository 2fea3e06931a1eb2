"""The verb ``read``: what it prints and writes, and files of no known kind."""

import json
from pathlib import Path

import pytest

from collectives.cli import main
from logs.nccl_logs import Job, lines
from test_schemas import kind


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.log"
    path.write_text("\n".join(lines(Job(way="NET/Socket/0"))))
    assert main(["read", str(path)]) == 0
    said = capsys.readouterr().out
    assert "communicator 0xabc: 8 ranks, 8 of them in this log, on 2 hosts; 2 channels, NCCL 2.19.3+cuda12.2" in said
    assert "connection: 4 connections by sockets between nodes" in said
    assert "    try: if there is InfiniBand" in said
    assert main(["read", str(path), "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row["kind"] for row in rows} == {"communicator", "proved", "connection"}
    assert {kind(row) for row in rows} == {"found"}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot read"),
        (b"", "got 0 bytes of an unknown kind, expected one of: flight recorder, NCCL log"),
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

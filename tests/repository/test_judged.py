"""The table of other people's programs has its form, and its files are fetched by git and compared by hash."""

import hashlib
import json
import re
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from collectives_book.judged import VERDICTS, JudgedFile, read, write
from interop.programs import ring
from interop.test_teccl import gather
from places import ROOT, script

TABLE = ROOT / "experiments" / "results" / "reference" / "judged" / "programs.csv"
SCHEDULE = "output/NDv2_output/2_chassis/AllGather/Fast/1MB.json"


def test_every_row_says_where_its_file_is_and_why_it_got_its_verdict(tmp_path: Path) -> None:
    rows = read(TABLE)
    assert len({row.sha256 for row in rows}) == len(rows) >= 100
    for row in rows:
        assert re.fullmatch(
            r"https://github.com/[\w-]+/[\w.-]+/blob/[0-9a-f]{40}/.+\.(xml|json)", row.link
        )
        assert row.verdict in VERDICTS
        assert bool(row.why) == (row.verdict != "right") == (row.steps == 0)
        assert (row.ranks > 0) == (row.verdict != "unreadable")
        assert bool(row.network) == row.path.endswith(".json")
        assert (
            (row.bandwidth > 0)
            == (row.stated > 0)
            == (bool(row.network) and row.verdict == "right")
        )
    write(tmp_path / "again.csv", reversed(rows))
    assert (tmp_path / "again.csv").read_bytes() == TABLE.read_bytes()


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The script, with a site and a table of its own."""
    module = script("judged")
    monkeypatch.setattr(module, "TABLE", tmp_path / "programs.csv")
    monkeypatch.setattr(module, "SITE", (tmp_path / "site").as_uri())
    return module


def repository(folder: Path, files: dict[str, bytes]) -> str:
    """A repository with one commit, whose name this returns."""
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    who = ["-c", "user.name=nobody", "-c", "user.email=nobody@localhost"]
    allow = ["config", "uploadpack.allowFilter", "true"]
    for command in (
        ["init", "--quiet"],
        allow,
        ["add", "."],
        [*who, "commit", "--quiet", "-m", "files"],
    ):
        subprocess.run(["git", "-C", folder, *command], check=True, timeout=60)
    return subprocess.check_output(
        ["git", "-C", folder, "rev-parse", "HEAD"], text=True, timeout=60
    ).strip()


def row(text: bytes, commit: str, path: str) -> JudgedFile:
    digest = hashlib.sha256(text).hexdigest()
    return JudgedFile(
        "owner/name",
        commit,
        path,
        digest,
        len(text),
        "",
        0,
        "right",
        "",
        0,
        0,
        0,
        0,
        "",
        "",
        0,
        0,
        0.0,
    )


@pytest.mark.integration
def test_files_are_fetched_compared_and_judged(
    judged: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = ring(3).encode(), ring(3).replace('send="1"', 'send="9"').encode()
    flows, folder = json.dumps(gather([8, 1])).encode(), str(tmp_path / "files")
    files = {"good.xml": good, "a/bad.xml": bad, SCHEDULE: flows}
    commit = repository(tmp_path / "site" / "owner" / "name.git", files)
    write(judged.TABLE, [row(data, commit, path) for path, data in files.items()])
    assert judged.main([folder]) == 1
    assert {path.read_bytes() for path in Path(folder).iterdir()} == {good, bad, flows}
    assert "bad.xml: verdict: got unreadable, expected right" in capsys.readouterr().out
    assert (judged.main([folder, "--write"]), judged.main([folder])) == (0, 0)
    found = {each.path: each for each in read(judged.TABLE)}
    assert (found["good.xml"].verdict, found["good.xml"].ranks) == ("right", 3)
    assert (found[SCHEDULE].network, found[SCHEDULE].steps, found[SCHEDULE].stated) == (
        "NDv2 2 chassis",
        2,
        2e9,
    )
    write(judged.TABLE, [row(b"other", commit, "good.xml")])
    with pytest.raises(
        SystemExit, match=r"SHA-256 of https://github.com/owner/name/blob/.*: got .*, expected "
    ):
        judged.main([folder])

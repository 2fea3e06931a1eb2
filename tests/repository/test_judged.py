"""The table of other people's programs has its form, and its files are fetched by git and compared by hash."""

import hashlib
import json
import re
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from collectives_book.judged import COLUMNS, VERDICTS, JudgedFile, read, schedules, write
from formats.programs import ring
from formats.test_teccl import gather
from places import ROOT, script

TABLE = ROOT / "experiments" / "results" / "reference" / "judged" / "programs.csv"
ROWS = read(TABLE)
SCHEDULE = "output/NDv2_output/2_chassis/AllGather/Fast/1MB.json"


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The script, with a table of its own."""
    module = script("judged")
    monkeypatch.setattr(module, "TABLE", tmp_path / "programs.csv")
    return module


def test_every_row_says_where_its_file_is_and_why_it_got_its_verdict() -> None:
    assert len({row.sha256 for row in ROWS}) == len(ROWS) >= 100
    for row in ROWS:
        assert re.fullmatch(r"https://github.com/[\w-]+/[\w.-]+/blob/[0-9a-f]{40}/.+\.(xml|json)", row.link)
        assert row.verdict in VERDICTS
        assert bool(row.why) == (row.verdict != "right") == (row.steps == 0)
        assert (row.ranks > 0) == (row.verdict != "unreadable")
        assert row.needless <= row.dependencies
        assert "/tmp" not in row.why


def test_a_schedule_says_its_network_and_a_program_says_none() -> None:
    for row in ROWS:
        assert bool(row.network) == row.path.endswith(".json")
        assert (row.bandwidth > 0) == (row.stated > 0) == (bool(row.network) and row.verdict == "right")
        assert row.network or not row.missing


def test_schedules_are_counted_by_network_and_collective() -> None:
    lines = schedules(ROWS).splitlines()[2:]
    told = {tuple(cell.strip() for cell in line.split("|")[1:5]) for line in lines}
    assert ("NDv2 4 chassis", "all_gather", "33", "33") in told
    assert ("NDv2 2 chassis", "all_gather", "33", "0") in told
    assert sum(int(cells[2]) for cells in told) == 154


def test_a_table_that_is_written_reads_the_same(tmp_path: Path) -> None:
    write(tmp_path / "again.csv", reversed(ROWS))
    assert (tmp_path / "again.csv").read_bytes() == TABLE.read_bytes()


def test_other_columns_are_refused(tmp_path: Path) -> None:
    (tmp_path / "other.csv").write_text("repository,commit\n")
    with pytest.raises(ValueError, match=re.escape(f"got repository, commit, expected {', '.join(COLUMNS)}")):
        read(tmp_path / "other.csv")


def row(text: bytes, commit: str, path: str) -> JudgedFile:
    digest = hashlib.sha256(text).hexdigest()
    return JudgedFile("owner/name", commit, path, digest, len(text), "", 0, "right", "", 0, 0, 0, 0, "", "", 0, 0, 0.0)


@pytest.mark.integration
def test_files_are_fetched_compared_and_judged(
    judged: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = ring(3).encode(), ring(3).replace('send="1"', 'send="9"').encode()
    flows = json.dumps(gather([8, 1])).encode()
    site, folder = tmp_path / "site", tmp_path / "files"
    commit = repository(site / "owner" / "name.git", {"good.xml": good, "a/bad.xml": bad, SCHEDULE: flows})
    monkeypatch.setattr(judged, "SITE", site.as_uri())
    rows = [row(good, commit, "good.xml"), row(bad, commit, "a/bad.xml"), row(flows, commit, SCHEDULE)]
    write(judged.TABLE, rows)
    assert judged.main(["fetch", str(folder)]) == 0
    assert {path.read_bytes() for path in folder.iterdir()} == {good, bad, flows}
    assert judged.main(["judge", str(folder), "--check"]) == 1
    assert "bad.xml: verdict: got unreadable, expected right" in capsys.readouterr().out
    assert judged.main(["judge", str(folder)]) == 0
    assert judged.main(["judge", str(folder), "--check"]) == 0
    found = {each.path: each for each in read(judged.TABLE)}
    assert (found["good.xml"].verdict, found["good.xml"].ranks) == ("right", 3)
    assert (found[SCHEDULE].verdict, found[SCHEDULE].ranks, found[SCHEDULE].steps) == ("right", 2, 2)
    assert found[SCHEDULE].network == "NDv2 2 chassis"
    assert found[SCHEDULE].missing.startswith(
        "GPU 0, 2–7, 9–15 of 16 takes no part; link 1->8: got flows, expected none"
    )
    assert found[SCHEDULE].stated == 2e9


def repository(folder: Path, files: dict[str, bytes]) -> str:
    """A repository with one commit, whose name this returns."""
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    who = ["-c", "user.name=nobody", "-c", "user.email=nobody@localhost"]
    for command in (["init", "--quiet"], ["add", "."], [*who, "commit", "--quiet", "-m", "files"]):
        subprocess.run(["git", "-C", str(folder), *command], check=True, timeout=60)
    subprocess.run(["git", "-C", str(folder), "config", "uploadpack.allowFilter", "true"], check=True, timeout=60)
    done = subprocess.run(["git", "-C", str(folder), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=60)
    return done.stdout.strip()


@pytest.mark.integration
def test_another_hash_and_no_network_end_with_a_clear_error(
    judged: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    commit = repository(site / "owner" / "name.git", {"good.xml": b"<algo/>"})
    monkeypatch.setattr(judged, "SITE", site.as_uri())
    write(judged.TABLE, [row(b"other", commit, "good.xml")])
    with pytest.raises(SystemExit, match=r"SHA-256 of https://github.com/owner/name/blob/.*: got .*, expected "):
        judged.main(["fetch", str(tmp_path / "files")])
    monkeypatch.setattr(judged, "SITE", (tmp_path / "nowhere").as_uri())
    with pytest.raises(SystemExit, match=r"git fetch .*: "):
        judged.main(["fetch", str(tmp_path / "files")])
    with pytest.raises(SystemExit, match=r"got no .* and 0 others, expected them: fetch first"):
        judged.main(["judge", str(tmp_path / "files")])

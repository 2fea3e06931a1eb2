"""The committed table of public logs: its numbers, and reading again what a folder has."""

from pathlib import Path

from collectives_book import public_logs
from collectives_book.public_logs import PublicLog
from logs.nccl_logs import Job, lines

ROWS = public_logs.rows()


def test_there_are_logs_of_many_projects() -> None:
    assert len(ROWS) >= 20
    assert len({row.repository for row in ROWS}) >= 6
    assert len({row.sha256 for row in ROWS}) == len(ROWS)
    assert {row.verdict for row in ROWS} <= {"agrees", "misses", "open"}


def test_no_row_has_a_path_or_a_traceback() -> None:
    assert not [row for row in ROWS if "Traceback" in row.first or "/tmp" in row.first]


def test_most_agree_with_what_their_authors_say() -> None:
    said = [row for row in ROWS if row.expected]
    for rows, least in ([row for row in said if not row.at_first], 0.9), ([row for row in said if row.at_first], 0.75):
        assert sum(row.verdict == "agrees" for row in rows) >= least * len(rows)
    assert len(public_logs.table(ROWS).splitlines()) == 2 + len(said)


def test_what_was_found_at_first_is_kept() -> None:
    blind = [row for row in ROWS if row.at_first]
    verdicts = [row.verdict_at_first for row in blind if row.expected]
    assert (len(verdicts), verdicts.count("agrees")) == (75, 45)
    assert blind[0]._replace(expected="healthy", at_first="none").verdict_at_first == "agrees"
    assert blind[0]._replace(at_first="").verdict_at_first == ""


def test_false_statements_are_counted_apart_from_right_answers() -> None:
    faulty = PublicLog(
        "a/b", "x.log", "c", "0", 1, "slow", "timeout", "NCCL log", "timeout; ring", "", "ring", "", "ring"
    )
    healthy = faulty._replace(expected="healthy", found="", at_first="dip; graph", false_at_first="dip; graph")
    cells = [line.split("|")[2:7] for line in public_logs.counts([faulty, faulty, healthy]).splitlines()[2:5]]
    assert [[cell.strip() for cell in row] for row in cells] == [
        ["2", "0", "2", "2", "0"],
        ["2", "0", "2", "2", "0"],
        ["1", "0", "1", "2", "0"],
    ]


def test_all_that_is_found_in_a_healthy_log_is_false() -> None:
    healthy = [row for row in ROWS if row.expected == "healthy"]
    assert [row.place for row in healthy if row.false != row.found.replace("unreadable", "")] == []
    assert [row.place for row in healthy if row.at_first not in ("", "none", row.false_at_first)] == []
    assert not [row for row in ROWS if row.false and not {*row.false.split("; ")} <= {*row.found.split("; ")}]


def test_a_file_is_known_by_its_hash(tmp_path: Path) -> None:
    path = tmp_path / "any-name"
    path.write_text("\n".join(lines(Job(way="NET/Socket/0"))))
    digest = public_logs.sha256(path.read_bytes()).hexdigest()
    table = tmp_path / "rows" / "public-logs.csv"
    table.parent.mkdir()
    absent = PublicLog("a/b", "x.log", "c", "0", 1, "slow", "connection", "", "", "", "", "", "")
    public_logs.write([absent, absent._replace(sha256=digest)], table)
    public_logs.main(str(tmp_path), table)
    before, after = public_logs.rows(table)
    assert before == absent
    assert (after.found, after.verdict, after.sources) == ("connection", "agrees", "NCCL log")
    assert after.first.startswith("4 connections by sockets between nodes, such as rank 3 to 4")

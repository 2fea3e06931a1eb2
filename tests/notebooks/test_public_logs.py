"""The committed table of public logs: its numbers, and reading again what a folder has."""

from pathlib import Path

import pandas as pd

from collectives_book import public_logs
from logs.nccl_logs import Job, lines

LOGS = public_logs.rows()
NOTHING = dict.fromkeys(LOGS.columns, "") | {"repository": "a/b", "place": "x.log", "bytes": 1}


def test_most_agree_with_what_their_authors_say_and_no_row_has_a_path() -> None:
    now = public_logs.counts(LOGS)
    blind, known = now.iloc[[0, 2]].sum(), now.iloc[3:].sum()
    assert known["right now"] >= 0.9 * known.logs
    assert blind["right now"] >= 0.75 * blind.logs
    assert (blind.logs, blind["right at first"]) == (75, 45), "what was found at first stays"
    assert LOGS.sha256.is_unique
    assert not LOGS["first"].str.contains("Traceback|/tmp").any()


def test_false_statements_are_counted_apart_from_right_answers() -> None:
    faulty = NOTHING | {
        "expected": "timeout",
        "sources": "log",
        "found": "timeout; ring",
        "at_first": "ring",
    }
    faulty |= {"false": "ring", "false_at_first": "ring"}
    healthy = faulty | {"expected": "healthy", "found": "", "false": ""}
    healthy |= {"at_first": "dip; graph", "false_at_first": "dip; graph"}
    known = healthy | {"at_first": "", "false_at_first": ""}
    counted = public_logs.counts(pd.DataFrame([faulty, faulty, healthy, known, NOTHING]))
    assert counted.iloc[[0, 1, 2]].values.tolist() == [
        [2, 0, 2, 2, 2],
        [2, 0, 2, 2, 2],
        [1, 0, 1, 2, 0],
    ]
    assert counted.iloc[4].fillna(-1).tolist() == [1, -1, 1, -1, 0]


def test_all_that_is_found_in_a_healthy_log_is_false() -> None:
    healthy = LOGS[LOGS.expected == "healthy"]
    assert (healthy.false == healthy.found.replace("unreadable", "")).all()
    assert (
        healthy.at_first.isin(["", "none"]) | (healthy.at_first == healthy.false_at_first)
    ).all()
    for row in LOGS[LOGS.false != ""].itertuples():
        assert {*row.false.split("; ")} <= {*row.found.split("; ")}


def test_a_file_is_known_by_its_hash(tmp_path: Path) -> None:
    path = tmp_path / "any-name"
    path.write_text("\n".join(lines(Job(way="NET/Socket/0"))))
    digest = public_logs.sha256(path.read_bytes()).hexdigest()
    table = tmp_path / "rows" / "public-logs.csv"
    table.parent.mkdir()
    absent = NOTHING | {"sha256": "0", "expected": "connection"}
    public_logs.write(pd.DataFrame([absent, absent | {"sha256": digest}]), table)
    public_logs.main(str(tmp_path), table)
    before, after = public_logs.rows(table).to_dict("records")
    assert before == absent
    assert (after["found"], after["sources"]) == ("connection", "log")
    assert after["first"].startswith("4 lines of connections by sockets, such as rank 3 to 4")


def test_a_table_that_is_written_reads_the_same(tmp_path: Path) -> None:
    public_logs.write(LOGS, tmp_path / "again.csv")
    assert (tmp_path / "again.csv").read_bytes() == public_logs.TABLE.read_bytes()


def test_what_was_said_of_quoted_logs_at_first_stays() -> None:
    quoted = pd.read_csv(public_logs.TABLE.with_name("quoted-logs.csv"))
    told = quoted[(quoted.kind == "faulty") & (quoted.told == "yes")]
    assert quoted.thread.is_unique
    assert told["first"].value_counts().to_dict() == {
        "right": 26,
        "partly": 15,
        "nothing": 2,
        "false": 1,
    }
    assert (told.now == "right").mean() >= 0.7
    assert "false" not in {*quoted.now}

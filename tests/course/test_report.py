"""Reports of a grade: JSON and back, Gradescope's file, the page, the terminal and the class.

No text does harm.

The page is opened in Chromium, too: nothing of it runs or loads but the player, and it fits a
telephone.
"""

import csv
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bs4 import BeautifulSoup, Tag
from jsonschema import Draft202012Validator

from browsers import TELEPHONE, needs_browser
from collectives.algorithms import build
from collectives.core.grid import grid
from collectives.figures.player import player_data
from collectives.schemas import schema
from collectives_course import report
from collectives_course.report import (
    as_json,
    class_summary,
    class_table,
    from_json,
    gradescope,
    html,
    read,
    terminal,
    write,
)
from collectives_course.verdict import STATUSES, Grade, Verdict

SCRIPT = "</script></pre><script>alert(1)</script><img src=x onerror=alert(2)>\"'&"
RING = build("all_reduce", "ring", 4)

GRADE = Grade(
    "ring",
    "Ring all-reduce",
    "alice",
    7,
    (
        Verdict("sum", "Every rank ends with the sum", "passed", 8, 8, seconds=1.25),
        Verdict("steps", "2 (p − 1) steps", "failed", 2.5, 5, "4 ranks: got 9 steps\nexpected 6"),
        Verdict("order", "No deadlock", "timeout", 0, 4, "ranks 1 and 2 wait for each other", 5.0),
        Verdict("bits", "The same bits", "crashed", 0, 2, "IndexError: 3"),
        Verdict("own", "Its own work", "blocked", 0, 1, "it opened a socket"),
        Verdict(
            "proof",
            "Proved",
            "failed",
            1 / 3,
            1,
            "rank 0, chunk 1",
            details={"grid": grid(RING), "player": player_data(RING, "ring")},
        ),
    ),
    notes=("graded late",),
)


def hostile() -> Grade:
    """A submission that puts markup and control characters into every text that it could reach."""
    text = f"{SCRIPT}\x1b[2J\r\u202e\ud800"
    player = player_data(RING, text) | {"layout": {"shape": text}}
    details = {"grid": text, "player": player, text: [text]}
    verdicts = tuple(
        Verdict(text, text, status, 0, 1, text, details=details) for status in STATUSES
    )
    return Grade(text, text, text, 7, verdicts, sandboxed=False, notes=(text,))


def page(grade: Grade) -> BeautifulSoup:
    return BeautifulSoup(html(grade), "html.parser")


def only(found: list[Tag]) -> Tag:
    (one,) = found
    return one


@pytest.mark.parametrize("grade", [GRADE, replace(GRADE, verdicts=(), notes=(), sandboxed=False)])
def test_json_follows_its_schema_and_is_read_back(grade: Grade) -> None:
    written = json.loads(json.dumps(as_json(grade)))
    Draft202012Validator(schema("grade")).validate(written)
    assert from_json(written) == grade
    assert written["points"] == grade.points
    assert written["of"] == grade.of
    assert schema("grade")["$defs"]["verdict"]["properties"]["status"]["enum"] == list(STATUSES)


def test_hostile_text_and_odd_details_become_json() -> None:
    odd = {"ratio": float("inf"), "sent": RING.p * (1.5,), "path": Path("a")}
    grade = replace(
        hostile(), verdicts=(*hostile().verdicts, Verdict("odd", "", "passed", 1, 1, details=odd))
    )
    written = as_json(grade)
    Draft202012Validator(schema("grade")).validate(written)
    for made in (written, gradescope(grade)):
        assert json.dumps(made, allow_nan=False, ensure_ascii=False).encode("utf8")
    assert written["verdicts"][-1]["details"] == {"ratio": "inf", "sent": [1.5] * 4, "path": "a"}
    assert as_json(from_json(written)) == written


def changed(**fields: Any) -> str:
    return json.dumps(as_json(GRADE) | fields)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (changed(version=99), "schema version: got 99"),
        (changed(verdicts=[{"criterion": "sum"}]), "verdicts.0.text: Field required"),
        (
            changed(verdicts=[as_json(GRADE)["verdicts"][0] | {"status": "lost"}]),
            "verdicts.0.status",
        ),
        (changed(seed="x"), "seed"),
        ('{"version": 1, "assig', "expected JSON"),
        ("[]", "got list, expected an object"),
    ],
)
def test_what_is_no_grade_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "grade.json").write_text(text)
    with pytest.raises(ValueError, match=rf"grade.json: .*{re.escape(message)}"):
        read(tmp_path / "grade.json")


def test_files_are_written_whole_or_the_old_ones_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "new" / "alice"
    write(hostile(), folder)
    paths = write(GRADE, folder)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert sorted(before) == sorted(paths)
    assert read(folder / "grade.json") == GRADE
    with pytest.raises(ValueError, match="JSON"):  # before anything is written
        write(replace(GRADE, verdicts=(Verdict("sum", "", "passed", float("nan"), 1),)), folder)
    monkeypatch.setattr(report, "html", lambda grade: "\ud800")  # fails in the middle of a file
    with pytest.raises(UnicodeEncodeError):
        write(GRADE, folder)
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_no_report_has_a_percentage_where_something_was_not_graded() -> None:
    fault = Verdict(
        "sum",
        "The sum",
        "ungraded",
        0,
        10,
        "not graded: grader's fault: KeyError (criteria.py, line 3)",
    )
    grade = Grade("ring", "Ring", "alice", 7, (fault, Verdict("steps", "", "passed", 5, 5)))
    made, (row,) = gradescope(grade), csv.DictReader(class_table([grade]).splitlines())
    for text in (terminal(grade), page(grade).text, made["output"]):
        assert "1 of 2 criteria passed, 1 not graded: the grader's fault" in text
        assert "%" not in text
    assert made["score"] == 5
    assert "score" not in made["tests"][0]
    assert "max_score" not in made["tests"][0]
    assert fault.message in made["tests"][0]["output"]
    assert row["sum"] == ""
    assert row["total"] == "5.0"
    assert row["out of"] == "15.0"
    assert row["percent"] == ""
    assert row["not passed"] == "sum: ungraded"
    summary = class_summary([grade, replace(grade, verdicts=grade.verdicts[1:])])
    assert summary.startswith(
        "2 submissions: 1 not graded, or not wholly; mean 5, median 5 of 15 points\n"
    )
    assert re.search(
        r"^sum +0 of 1  1 not graded\nsteps +2 of 2  100%$", summary, flags=re.MULTILINE
    )


def test_gradescope_gets_the_fields_that_it_documents() -> None:
    made = gradescope(GRADE)
    assert set(made) <= {
        *(
            "score",
            "execution_time",
            "output",
            "output_format",
            "test_output_format",
            "test_name_format",
        ),
        *("visibility", "stdout_visibility", "extra_data", "tests", "leaderboard"),
    }
    fields = {
        "score",
        "max_score",
        "status",
        "name",
        "name_format",
        "number",
        "output",
        "output_format",
        "tags",
    }
    for test in made["tests"]:
        assert set(test) <= fields | {"visibility", "extra_data"}
        # "html" would run what a submission wrote.
        assert test["output_format"] == test["name_format"] == "text"
    assert made["score"] == sum(test["score"] for test in made["tests"]) == GRADE.points
    assert sum(test["max_score"] for test in made["tests"]) == GRADE.of
    assert [test["status"] for test in made["tests"]] == ["passed", *["failed"] * 5]
    assert made["tests"][2]["output"].startswith("◷ timeout: 0 of 4 points\n\nranks 1 and 2")
    assert made["tests"][5]["output"].endswith(grid(RING))


def test_the_page_says_all_but_seed_and_secret_and_loads_nothing() -> None:
    found = page(replace(GRADE, seed=987_654_321, secret="5ec2e7" * 5))
    assert only(found.select("h1")).text == "Ring all-reduce"
    assert "10.83 of 21 points" in only(found.select(".score")).text
    rows = found.select("ol > li")
    statuses = [only(row.select(".status")).text for row in rows]
    assert statuses == ["✓ passed", "✗ failed", "◷ timeout", "! crashed", "⊘ blocked", "✗ failed"]
    for row, verdict in zip(rows, GRADE.verdicts, strict=True):
        assert only(row.select("h2")).text.endswith(f". {verdict.text}")
        assert verdict.message in row.text
    assert only(found.select("pre")).text == grid(RING)
    assert not [each for each in ("987654321", "5ec2e7", "without a sandbox") if each in str(found)]
    assert "without a sandbox" in page(replace(GRADE, sandboxed=False)).text
    assert not found.select("[src], [href], link, iframe, object, embed")
    assert "url(" not in "".join(style.text for style in found.select("style"))


def test_the_submission_s_schedule_is_on_the_page() -> None:
    element = only(page(GRADE).select("schedule-player"))
    data = only(
        [each for each in page(GRADE).select("script") if each.text.startswith("window.schedules")]
    ).text
    schedules = json.loads(data.removeprefix("window.schedules = ").removesuffix(";"))
    player = schedules[element["collective"]][element["algorithm"]][element["p"]]
    assert player == json.loads(json.dumps(player_data(RING, "ring"))) | {
        "algorithm": element["algorithm"]
    }


def test_without_the_repository_the_grid_is_enough(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(report, "STATIC", tmp_path)
    found = page(GRADE)
    assert not found.select("script, schedule-player")
    assert found.select("pre")
    assert "script-src 'none'" in str(only(found.select("meta[http-equiv]"))["content"])


@pytest.mark.parametrize(
    "player", [None, "ring", {}, {"collective": "gossip", "p": 4}, {"collective": "reduce"}]
)
def test_what_the_player_cannot_read_is_left_out(player: object) -> None:
    grade = replace(
        GRADE, verdicts=(Verdict("proof", "", "passed", 1, 1, details={"player": player}),)
    )
    assert not page(grade).select("script, schedule-player")


def test_no_text_of_a_submission_is_markup() -> None:
    wrong, right = page(hostile()), page(GRADE)
    assert not wrong.select("img, [onerror]")
    assert len(wrong.select("script")) == len(right.select("script")) == 3
    assert SCRIPT in only(wrong.select("h1")).text
    assert html(hostile()).encode("utf8")
    allowed = set(
        re.findall(r"'sha256-([^']+)'", str(only(wrong.select("meta[http-equiv]"))["content"]))
    )
    assert len(allowed) == 3


@pytest.mark.parametrize("columns", [60, 100, 500])
def test_the_terminal_s_columns_are_aligned(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    text = terminal(GRADE)
    rows = [line for line in text.splitlines() if re.match(r" [✓✗◷!⊘] | {3}total", line)]
    assert [line.split()[1] for line in rows[:-1]] == [verdict.status for verdict in GRADE.verdicts]
    assert len({line.index(" / ") for line in rows}) == 1
    assert all(
        verdict.message.splitlines()[0] in text for verdict in GRADE.verdicts if verdict.message
    )
    assert grid(RING).splitlines()[1] in text
    assert max(map(len, text.splitlines())) <= 100
    assert text.endswith("Note: graded late")


def test_a_submission_cannot_act_on_the_terminal_or_add_rows() -> None:
    forged = "wrong\n ✓ passed      8 / 8     Every rank ends with the sum"
    text = terminal(replace(hostile(), verdicts=(Verdict("sum\n", "\n", "failed", 0, 8, forged),)))
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202e\ud800]", text)
    assert not re.search(r"^ ✓", text, flags=re.MULTILINE)


def test_the_class_as_a_table_and_in_numbers() -> None:
    other = replace(
        GRADE, submission="Bob", verdicts=(Verdict("extra", "", "passed", 3, 3), GRADE.verdicts[0])
    )
    rows = list(csv.DictReader(class_table([GRADE, other]).splitlines()))
    assert [row["submission"] for row in rows] == ["Bob", "alice"]
    criteria = ("extra", "sum", "steps", "order", "bits", "own", "proof")
    assert list(rows[0]) == ["submission", *criteria, "total", "out of", "percent", "not passed"]
    assert rows[0]["extra"] == "3.0"
    assert rows[0]["steps"] == ""
    assert rows[1]["extra"] == ""
    assert rows[1]["proof"] == "0.33"
    assert rows[1]["total"] == "10.83"
    assert rows[1]["out of"] == "21.0"
    assert rows[1]["percent"] == "51.6"
    assert (
        rows[1]["not passed"]
        == "steps: failed; order: timeout; bits: crashed; own: blocked; proof: failed"
    )
    summary = class_summary([GRADE, other])
    assert summary.splitlines()[0] == "2 submissions: mean 10.92, median 10.92 of 21 points"
    assert re.search(r"^sum +2 of 2 +100%$", summary, flags=re.MULTILINE)
    assert class_summary([]) == "no submissions"
    assert class_table([]).count("\n") == 1


@pytest.mark.parametrize(
    "name",
    ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", " =1", "＝1+1", 'a",=1', "a;=1"],
)
def test_no_cell_is_a_formula(name: str) -> None:
    verdict = Verdict(name, name, "failed", -1, 1, name)
    rows = list(
        csv.reader(class_table([replace(GRADE, submission=name, verdicts=(verdict,))]).splitlines())
    )
    assert [len(row) for row in rows] == [6, 6]
    assert not [cell for row in rows for cell in row if re.match(r"\s*[=+@＝]|\s*-\D", cell)]
    assert rows[1][1] == "-1.0"


def opened(browser: Any, grade: Grade, folder: Path, **options: Any) -> tuple[Any, list[str]]:
    """The page, and what it asked for, said or complained about."""
    write(grade, folder)
    page, events = browser.new_page(**options), []
    page.on("request", lambda request: events.append(request.url))
    page.on("dialog", lambda dialog: (events.append(dialog.message), dialog.dismiss()))
    page.on("pageerror", lambda error: events.append(str(error)))
    page.on("console", lambda message: events.append(message.text))
    page.goto((folder / "grade.html").as_uri())
    return page, events


@needs_browser
@pytest.mark.extended
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_in_a_browser_the_schedule_plays_and_the_page_fits(
    browser: Any, tmp_path: Path, scheme: str
) -> None:
    page, events = opened(browser, GRADE, tmp_path, viewport=TELEPHONE, color_scheme=scheme)
    page.wait_for_selector("schedule-player[data-ready=true]")
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    page.evaluate("document.querySelector('schedule-player [data-do=end]').click()")
    assert page.evaluate("document.querySelector('schedule-player').dataset.complete") == "true"
    assert page.evaluate("document.documentElement.scrollWidth") <= TELEPHONE["width"]
    assert events == [(tmp_path / "grade.html").as_uri()]
    page.emulate_media(media="print")  # on paper there are no buttons
    assert not page.is_visible("schedule-player")
    assert page.is_visible("pre")
    page.close()


@needs_browser
@pytest.mark.extended
def test_in_a_browser_nothing_runs_that_a_submission_wrote(browser: Any, tmp_path: Path) -> None:
    page, events = opened(browser, hostile(), tmp_path)
    page.wait_for_timeout(300)
    assert events[:1] == [(tmp_path / "grade.html").as_uri()]
    assert not [event for event in events[1:] if event in ("1", "2") or "://" in event]
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=alert(3)>')")
    page.wait_for_timeout(300)
    assert "3" not in events
    assert any("Content Security Policy" in event for event in events)
    assert page.evaluate("document.querySelectorAll('script').length") == 3
    page.close()

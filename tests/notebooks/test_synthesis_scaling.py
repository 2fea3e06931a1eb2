"""The committed table of how long synthesis takes: its questions are those that are asked, its quick answers recur."""

import csv

import pytest

from collectives_book.synthesis import COLUMNS, LIMIT, TABLE, asked, row

with TABLE.open(newline="") as file:
    ROWS = list(csv.DictReader(file))
QUICK = 0.3


def test_every_question_has_its_row() -> None:
    assert tuple(ROWS[0]) == COLUMNS
    questions = [(of.name, len(of.links), of.chunks) for of in asked()]
    assert [
        (each["topology"], int(each["ranks"]), int(each["chunks"])) for each in ROWS
    ] == questions


@pytest.mark.integration  # seconds
def test_the_quick_answers_recur() -> None:
    quick = [at for at, each in enumerate(ROWS) if float(each["seconds"]) < QUICK]
    questions = [*asked()]
    assert len(quick) > 5
    for at in quick:
        found = row(questions[at])
        assert {name: str(found[name]) for name in COLUMNS[:-1]} == {
            name: ROWS[at][name] for name in COLUMNS[:-1]
        }


def test_a_minute_ends_some() -> None:
    ended = [each for each in ROWS if each["verdict"] == "limit"]
    assert ended
    assert all(float(each["seconds"]) >= LIMIT for each in ended)

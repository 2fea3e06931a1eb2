"""A rank's Comm: what it asks, and what it does not let through."""

from typing import Any

import numpy as np
import pytest

from collectives_course.comm import Comm, CommError


def asked(answer: dict[str, Any], rank: int = 1, size: int = 4) -> tuple[Comm, list[dict[str, Any]]]:
    questions: list[dict[str, Any]] = []

    def ask(question: dict[str, Any]) -> dict[str, Any]:
        questions.append(question)
        return answer

    return Comm(rank, size, ask, "test_comm.py"), questions


def test_questions() -> None:
    comm, questions = asked({"array": np.array([7.0, 8.0]), "time": 2})
    out, into = np.arange(3), np.zeros(2)
    comm.send(out, 2)
    comm.recv(into, 0)
    assert into.tolist() == [7, 8]
    comm.sendrecv(out, np.int64(3), into[::-1], 0)
    assert into.tolist() == [8, 7]
    assert comm.time() == 2
    assert [each["op"] for each in questions] == ["send", "recv", "sendrecv", "time"]
    assert {"from": 0, "dtype": "<f8", "shape": [2]}.items() <= questions[1].items()
    assert (questions[2]["to"], questions[2]["from"]) == (3, 0)


def test_the_line_that_asks() -> None:
    comm, questions = asked({})
    comm.send(np.zeros(1), 0)
    line = test_the_line_that_asks.__code__.co_firstlineno + 2
    assert questions[0]["line"] == line


@pytest.mark.parametrize("message", [[1.0], 1.0, None, np.array(["a"]), np.array([None])])
def test_messages_that_are_no_numbers(message: Any) -> None:
    comm, questions = asked({})
    with pytest.raises(CommError, match="expected a numpy array of numbers"):
        comm.send(message, 0)
    assert not questions


def test_an_answer_that_is_an_error() -> None:
    comm, _ = asked({"error": "it is not so"})
    with pytest.raises(CommError, match="it is not so"):
        comm.send(np.zeros(1), 0)

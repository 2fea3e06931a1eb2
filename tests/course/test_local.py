"""Ranks as threads, for a student's own tests."""

import threading
from typing import Any

import numpy as np
import pytest

from collectives_course.local import run
from collectives_course.verdict import Crashed, Failed


def test_values_and_arguments_of_every_rank() -> None:
    def f(comm: Any, array: Any, scale: int) -> dict[str, Any]:
        array *= scale
        return {"rank": comm.rank, "of": comm.size, "sum": array.sum()}

    result = run(f, [[np.arange(3.0) + rank, 10] for rank in range(3)])
    assert result.values == [{"rank": r, "of": 3, "sum": 30.0 + 30 * r} for r in range(3)]
    assert [after[0].tolist() for after in result.arguments] == [[10.0 * (r + i) for i in range(3)] for r in range(3)]


def test_the_callers_arrays_stay_as_they_are() -> None:
    array = np.zeros(2)
    run(lambda _comm, given: given.fill(1), [[array]])
    assert array.tolist() == [0, 0]


def test_an_error_is_told_with_its_rank_and_line() -> None:
    def f(comm: Any) -> None:
        if comm.rank == 1:
            raise KeyError("gone")

    line = f.__code__.co_firstlineno + 2
    with pytest.raises(Crashed, match=rf"rank 1 \(test_local.py, line {line}\): KeyError: 'gone'"):
        run(f, [[], []])


def test_what_is_not_written_yet() -> None:
    def f(_comm: Any) -> None:
        raise NotImplementedError("add them")

    with pytest.raises(Failed, match=r"not written yet .*: add them"):
        run(f, [[]])


def test_no_thread_is_left() -> None:
    def f(comm: Any, array: Any) -> None:
        comm.recv(array, 1 - comm.rank)

    before = threading.active_count()
    with pytest.raises(Failed, match="deadlock"):
        run(f, [[np.zeros(1)], [np.zeros(1)]])
    assert threading.active_count() == before

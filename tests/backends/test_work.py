"""What an ``async_op`` returns tells when its call is done, and what went wrong."""

from concurrent.futures import Future
from datetime import timedelta

import pytest

from collectives.backends.background import Work


def test_a_call_that_is_done_is_told_to_all_who_ask() -> None:
    job: Future[None] = Future()
    work, told = Work(job), []
    after = work.get_future().then(lambda future: told.append(future.value()))
    assert (work.is_completed(), work.get_future().done(), told) == (False, False, [])
    with pytest.raises(TimeoutError):
        work.wait(timedelta(milliseconds=1))
    job.set_result(None)
    assert after.done()
    assert (work.is_completed(), work.wait(), told) == (True, True, [None])


def test_an_error_is_told_too() -> None:
    job: Future[None] = Future()
    work, told = Work(job), []
    after = work.get_future().then(lambda future: told.append("called"))
    job.set_exception(ValueError("no algorithm 'rnig'"))
    assert after.done()
    with pytest.raises(ValueError, match="rnig"):
        work.wait()
    with pytest.raises(ValueError, match="rnig"):
        work.get_future().wait()
    assert (work.is_completed(), told) == (True, ["called"])

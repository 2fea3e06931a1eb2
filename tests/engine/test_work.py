"""What an ``async_op`` returns tells when its call is done, what came out, and what went wrong."""

from concurrent.futures import Future
from datetime import timedelta

import pytest
import torch

from collectives.engine.work import Tensors, Work


def test_a_call_that_is_done_is_told_to_all_who_ask() -> None:
    job: Future[Tensors] = Future()
    work, told = Work(job, "all_reduce"), []
    after = work.get_future().then(lambda future: told.append(future.value()))
    assert (work.is_completed(), work.is_success(), work.get_future().done(), told) == (
        False,
        False,
        False,
        [],
    )
    with pytest.raises(
        TimeoutError, match=r"all_reduce: got no end within 0\.001 s, .* names the rank"
    ):
        work.wait(timedelta(milliseconds=1))
    with pytest.raises(RuntimeError):  # as works of gloo raise
        work.wait(timedelta(milliseconds=1))
    outputs = [torch.arange(3.0)]
    job.set_result(outputs)
    assert after.done()
    assert told == [outputs] == [work.result()] == [work.get_future().value()]
    assert (work.is_completed(), work.is_success(), work.wait(), work.exception()) == (
        True,
        True,
        True,
        None,
    )


def test_no_timeout_is_no_limit() -> None:
    job: Future[Tensors] = Future()
    job.set_result([])
    assert Work(job, "all_reduce").wait(timedelta(0))  # what C++ gives for none


def test_an_error_is_told_too() -> None:
    job: Future[Tensors] = Future()
    work, told = Work(job, "all_reduce"), []
    after = work.get_future().then(lambda future: told.append("called"))
    job.set_exception(ValueError("no algorithm 'rnig'"))
    assert after.done()
    with pytest.raises(ValueError, match="rnig"):
        work.wait()
    with pytest.raises(RuntimeError, match="ValueError: no algorithm 'rnig'"):
        work.get_future().wait()
    with pytest.raises(RuntimeError, match="rnig"):
        work.get_future().then(lambda future: future.value()).wait()
    assert (work.is_completed(), work.is_success(), told) == (True, False, ["called"])
    assert "rnig" in str(work.exception())

"""A worker that fails ends all ranks of a parameter server within the limit, and each error names it."""

import pytest

from collectives.launch import RankError, launch
from places import TASKS


@pytest.mark.integration
@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("leave", "receiving step 1 of worker 1: Connection closed by peer"),
        ("mute", "receiving step 1 of worker 1: got nothing within 4 s"),
        ("lie", "step of worker 1: got 7, expected 1"),
    ],
)
def test_a_worker_that_fails_ends_the_run_and_is_named(how: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher shows the error of the rank that ends first; each says that it was worker 1."""
    monkeypatch.setenv("PYTHONPATH", str(TASKS), prepend=":")
    told = "the server gave up, because worker 1 failed"
    with pytest.raises(RankError, match=rf"RuntimeError: ({told}|{message})|ValueError: {message}"):
        launch("late_workers", {"how": how}, 3, timeout=120)

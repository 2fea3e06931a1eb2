"""A worker that fails ends all ranks of a parameter server within the limit, and each error names it."""

from pathlib import Path

import pytest

from collectives.launch import RankError, launch
from places import TASKS


@pytest.mark.integration
@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("leave", "RuntimeError: receiving step 1 of worker 1: Connection closed by peer"),
        ("mute", "RuntimeError: receiving step 1 of worker 1: got nothing within 4 s"),
        ("lie", "ValueError: step of worker 1: got 7, expected 1"),
    ],
)
def test_a_worker_that_fails_ends_the_run_and_is_named(
    how: str, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TASKS), prepend=":")
    with pytest.raises(RankError):
        launch("late_workers", {"how": how, "folder": str(tmp_path)}, 3, timeout=120)
    server, worker = ((tmp_path / name).read_text() for name in "01")
    assert server.startswith(message)
    assert worker == "RuntimeError: the server gave up, because worker 1 failed; its own error says how"

"""Compiling that takes seconds says so, in one line of the process that compiles.

What is quick says nothing.
"""

from pathlib import Path

import pytest

from collectives.engine import system
from places import comes_true


@pytest.fixture
def lock(tmp_path: Path) -> str:
    system._tell.cache_clear()
    (tmp_path / "lock").touch()
    return str(tmp_path / "lock")


def test_what_takes_long_is_one_line(
    lock: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(system, "SILENT_SECONDS", 0.001)
    for _ in range(2):
        with system.one_at_a_time(lock):
            assert comes_true(lambda: system._tell.cache_info().currsize == 1)
    assert capsys.readouterr().err.splitlines() == [
        "collectives: compiling what moves data, once for this installation (up to a minute)"
    ]


def test_what_is_quick_says_nothing(lock: str, capsys: pytest.CaptureFixture[str]) -> None:
    with system.one_at_a_time(lock):
        pass
    assert capsys.readouterr().err == ""

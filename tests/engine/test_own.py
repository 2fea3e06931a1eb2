"""Ranks execute one call by one schedule: two schedules of one name, each proved, are an error and never a sum."""

import re
from pathlib import Path
from typing import Any

import pytest

from collectives.algorithms import own
from collectives.core.verify import verify
from collectives.engine import transport
from collectives.launch import launch
from places import PATIENCE, TASKS
from ranks import own_cases

pytestmark = pytest.mark.integration

RANKS = 4


def said(monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], **options: Any) -> list[Any]:
    monkeypatch.syspath_prepend(TASKS)
    (event,) = launch("own_cases", settings, RANKS, timeout=PATIENCE, **options)
    return list(event["said"])


def check(everyone: list[Any], name: str) -> None:
    """Every rank names the file and two digests; rank 1 has the other one."""
    for words in everyone:
        assert isinstance(words, str), f"a sum where schedules differ: {everyone}"
        found = re.search(
            r"schedule ([0-9a-f]{12}) against ([0-9a-f]{12}), although both are named (\S+):", words
        )
        assert found, words
        assert found[1] != found[2]
        assert found[3].endswith(name)


@pytest.mark.parametrize("over", transport.TRANSPORTS)
@pytest.mark.parametrize(
    ("is_program", "name"), [(False, "carries.py:my_all_reduce"), (True, "own.xml")]
)
def test_two_files_whose_names_end_alike(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, over: str, is_program: bool, name: str
) -> None:
    monkeypatch.setenv(transport.VARIABLE, over)
    settings = {"folder": str(tmp_path), "is_one_path": False, "is_program": is_program}
    everyone = said(monkeypatch, settings)
    if is_program:  # short names, which differ in the folder
        assert all(
            re.search(r"algorithm \S+own\.xml against \S+own\.xml", str(words))
            for words in everyone
        ), everyone
    else:
        check(everyone, name)


def test_one_path_with_two_contents_on_two_hosts(
    monkeypatch: pytest.MonkeyPatch, allowed: None
) -> None:
    # Every emulated host has its own.
    settings = {"folder": "/dev/shm", "is_one_path": True, "is_program": False}
    check(said(monkeypatch, settings, where="cluster:1ms,200MB/s"), "carries.py:my_all_reduce")


def test_both_schedules_of_this_test_are_right(tmp_path: Path) -> None:
    for number, text in enumerate((own_cases.RING, own_cases.TURNED)):
        path = tmp_path / f"{number}.py"
        path.write_text(text)
        verify(own(f"{path}:my_all_reduce")(RANKS))

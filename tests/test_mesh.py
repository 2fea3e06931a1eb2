"""Messages over connections of our own: whole, in order, from nobody else, and an error where ranks disagree."""

import re
from pathlib import Path
from typing import Any

import pytest

from collectives.backends import mesh
from collectives.launch import launch

RANKS = 4


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parent / "ranks")
        patch.setenv("PYTHONPATH", str(Path(__file__).parent / "ranks"), prepend=":")
        events = launch("mesh_cases", {}, RANKS, timeout=120)
    return {event["case"]: event["seen"] for event in events}


@pytest.mark.parametrize("case", ["large messages are whole", "who is ahead waits", "a stranger is turned away"])
def test_everybody_has_the_right_sum(seen: dict[str, Any], case: str) -> None:
    assert seen[case] == [True] * RANKS


@pytest.mark.parametrize("case", ["sizes differ", "algorithms differ"])
def test_ranks_that_disagree_are_told(seen: dict[str, Any], case: str) -> None:
    first = [said for said, _ in seen[case]]
    assert all(
        re.match(r"all_reduce by \w+ failed on rank \d, in step \d+, (receiving|sending)", said) for said in first
    )
    assert any("do all ranks make the same calls, with the same sizes?" in said for said in first)
    assert all("has failed before: make a new group" in again for _, again in seen[case])


def test_an_interface_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nosuch0")
    with pytest.raises(OSError, match="'nosuch0', which has no IPv4 address here"):
        mesh.own_address()
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    assert mesh.own_address() == "127.0.0.1"

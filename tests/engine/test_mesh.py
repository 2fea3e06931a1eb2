"""Messages over connections of our own: whole, in order, from nobody else, and an error where ranks disagree."""

import re
from typing import Any

import pytest

from collectives.engine import handshake, transport
from collectives.launch import launch
from collectives.launch.address import reachable
from places import PATIENCE, TASKS

pytestmark = pytest.mark.integration

RANKS = 4


@pytest.fixture(scope="module", params=transport.TRANSPORTS)
def seen(request: pytest.FixtureRequest) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(transport.VARIABLE, request.param)
        patch.syspath_prepend(TASKS)
        events = launch("mesh_cases", {}, RANKS, timeout=PATIENCE)
    return {event["case"]: event["seen"] for event in events}


@pytest.mark.parametrize(
    "case",
    [
        "large messages are whole",
        "who is ahead waits",
        "a handshake may come in pieces",
        "unauthenticated connections are closed",
        "a sender learns why its peer gave up",
    ],
)
def test_everybody_has_the_right_sum(seen: dict[str, Any], case: str) -> None:
    assert seen[case] == [True] * RANKS


DIFFERENCES = {
    "sizes differ": r"elements 10[01] against 10[01]",
    "ops differ": r"op (SUM|MAX) against (SUM|MAX)",
    "dtypes differ": r"dtype (float32|int32) against (float32|int32)",
    "algorithms differ": r"algorithm (ring|recursive_doubling) against (ring|recursive_doubling)",
    "collectives differ": r"collective all_\w+ against all_\w+, algorithm \w+ against \w+, op \w+ against \w+, "
    r"elements \d00 against \d00",
    "roots differ": r"root [03] against [03]",
    "segments differ": r"segments [12] against [12]",
    "splits differ": r"elements (8|by split sizes) against (8|by split sizes)",
    "orders differ": r"op (SUM|MAX) against (SUM|MAX)",
}


@pytest.mark.parametrize("case", list(DIFFERENCES))
def test_ranks_that_call_differently_are_told_how(seen: dict[str, Any], case: str) -> None:
    """No rank but a broadcast's root goes on, and each reports the difference: found, or told of by another rank.

    A rank that received another call's message names its sender. One of the two is rank 1, which
    calls differently.
    """
    first = [said for said, _ in seen[case]]
    failed = r"\w+ by \w+ failed on rank (\d), in step \d+, (receiving from|sending to) rank (\d): "
    found = [re.match(failed, said) for said in first]
    differ = [
        re.search(rf"its call differs from this rank's: {DIFFERENCES[case]}$", said)
        for said in first
    ]
    for rank, (match, difference) in enumerate(zip(found, differ, strict=True)):
        assert (match and difference) or (case == "roots differ" and rank in (0, 3)), first
        if match and " has given up, because rank " not in first[rank]:
            assert 1 in (rank, int(match[3])), first
            assert match.group(1, 2) == (str(rank), "receiving from")
    assert all(
        "has failed before: make a new group" in again or case == "roots differ"
        for _, again in seen[case]
    )


def test_the_listener_is_bound_to_the_group_s_interface_alone(seen: dict[str, Any]) -> None:
    assert seen["where it listens"] == ["127.0.0.1"] * RANKS


def test_an_interface_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nosuch0")
    with pytest.raises(OSError, match="'nosuch0', which has no IPv4 address here"):
        handshake.own_address()


@pytest.mark.parametrize("named", ["lo", "lo,nosuch0"])
def test_the_first_of_several_interfaces_is_taken_as_the_launcher_takes_it(
    named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", named)
    assert handshake.own_address() == reachable(is_local=False) == "127.0.0.1"

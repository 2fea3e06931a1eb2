"""Ranks end with their launcher, however either of them ends, and a failure says which rank and why."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from collectives.launch.loopback import RankError, launch

RANKS = str(Path(__file__).parent / "ranks")


@pytest.fixture(autouse=True)
def _unwell_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", RANKS)


def is_gone(pid: int) -> bool:
    """Within five seconds (a killed process takes a moment to be reaped by init)."""
    for _ in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        if Path(f"/proc/{pid}/stat").exists() and Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z":
            return True
        time.sleep(0.05)
    return False


def pids(events: list[dict[str, list[int]]]) -> list[int]:
    return next(event["pids"] for event in events if "pids" in event)


def test_events_of_rank_0_come_back_in_order() -> None:
    events = launch("unwell", {"do": "nothing"}, 3, timeout=60)
    assert len(set(pids(events))) == 3
    assert all(is_gone(pid) for pid in pids(events))


@pytest.mark.parametrize("rank", [0, 2])
def test_a_failing_rank_is_named_with_its_last_lines(rank: int) -> None:
    seen: list[dict[str, list[int]]] = []
    with pytest.raises(RankError, match=rf"rank {rank} of 3 ended with exit code 1") as caught:
        launch("unwell", {"do": "raise", "rank": rank}, 3, timeout=60, on_event=seen.append)
    assert "ValueError: a bug on purpose" in str(caught.value)
    assert all(is_gone(pid) for pid in pids(seen))


def test_a_killed_rank_is_named() -> None:
    with pytest.raises(RankError, match="rank 1 of 3 was killed by SIGKILL"):
        launch("unwell", {"do": "killed", "rank": 1}, 3, timeout=60)


@pytest.mark.parametrize("algorithm", ["ring", "two_tree", "recursive_doubling"])
def test_a_lost_peer_ends_the_collective_with_an_error_that_names_it(algorithm: str) -> None:
    seen: list[dict[str, str]] = []
    job = {"do": "leave", "rank": 1, "algorithm": algorithm}
    with pytest.raises(RankError, match="rank 1 of 2 ended with exit code 3"):
        launch("unwell", job, 2, timeout=60, on_event=seen.append)
    (error,) = (event["error"] for event in seen if "error" in event)
    assert re.match(
        rf"all_reduce by {algorithm} failed on rank 0, in step \d, (sending to|receiving from) rank 1: ", error
    )


def test_ranks_that_take_too_long_are_ended_with_their_children() -> None:
    seen: list[dict[str, list[int]]] = []
    with pytest.raises(RankError, match="rank 0 of 2 is not done in time") as caught:
        launch("unwell", {"do": "sleep"}, 2, timeout=12, on_event=seen.append)
    assert "going to sleep" in str(caught.value)
    child = next(event["child"] for event in seen if "child" in event)
    assert all(is_gone(pid) for pid in [*pids(seen), child])


def test_there_is_at_least_one_rank() -> None:
    with pytest.raises(ValueError, match="ranks must be at least 1, not 0"):
        launch("unwell", {}, 0, timeout=1)


LAUNCHER = """
from collectives.__main__ import _terminated
from collectives.launch.loopback import launch
import signal
signal.signal(signal.SIGTERM, _terminated)
launch("unwell", {"do": "sleep"}, 2, timeout=60, on_event=lambda event: print(event.get("pids", ""), flush=True))
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_ranks_end_with_their_launcher(how: signal.Signals, tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", LAUNCHER], stdout=subprocess.PIPE, env=environment) as launcher:
        assert launcher.stdout is not None
        ranks = [int(pid) for pid in launcher.stdout.readline().decode().strip("[]\n").split(",")]
        launcher.send_signal(how)
        assert launcher.wait(timeout=20) != 0
    assert all(is_gone(pid) for pid in ranks)
    assert list(tmp_path.iterdir()) == []

"""The time of a call on GPUs, by a model of hosts, streams and events: the hosts' skew is not in it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import distributed as dist

from collectives.bench import clocks

LAUNCH, MEETING, CALL = 5e-6, 20e-6, 300e-6


class Rank:
    """One host and its GPU's stream, in seconds.

    ``others`` is when the last of the other ranks has launched a call.
    """

    def __init__(self, at: float, others: float) -> None:
        self.host, self.others, self.stream = at, others, 0.0

    def launch(self, seconds: float) -> None:
        """Enqueue a collective: it begins when all ranks have launched it, and this stream has nothing else to do."""
        self.host += LAUNCH
        self.others += LAUNCH
        self.stream = max(self.stream, self.host, self.others) + seconds

    def event(self, **_: Any) -> Any:
        return Event(self)


class Event:
    def __init__(self, rank: Rank) -> None:
        self.rank, self.at = rank, 0.0

    def record(self) -> None:
        self.at = max(self.rank.host, self.rank.stream)

    def synchronize(self) -> None:
        self.rank.host = max(self.rank.host, self.at)

    def elapsed_time(self, end: Event) -> float:
        return (end.at - self.at) * 1e3


@pytest.mark.parametrize(
    ("collective", "meeting"),
    [("all_reduce", "all_reduce"), ("all_gather", "all_gather_into_tensor")],
)
@pytest.mark.parametrize(
    ("at", "others"), [(0.0, 0.0), (0.0, 2e-3), (2e-3, 0.0)], ids=["together", "first", "last"]
)
def test_the_skew_of_the_hosts_is_not_in_a_time(
    at: float, others: float, collective: str, meeting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They leave a barrier 2 ms apart, as those of gloo's do.

    They meet by what NCCL's chosen algorithm has, too.
    """
    rank = Rank(at, others)
    monkeypatch.setattr(torch.cuda, "Event", rank.event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(dist, "barrier", lambda: None)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, meeting, lambda *_, group: rank.launch(MEETING))
    one: Any = SimpleNamespace(
        device=lambda: torch.device("cpu"), group=lambda: None, flush=lambda: None
    )
    assert clocks.CLOCKS["gpu"](lambda: rank.launch(CALL), one, collective) == pytest.approx(CALL)


@pytest.mark.parametrize("left", [0.0, 2e-3], ids=["idle", "at work"])
def test_on_emulated_hosts_a_gpu_is_idle_at_the_agreed_moment(
    left: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the stream has left is done before ranks agree.

    A time ends when the stream is done, not when it is told.
    """
    rank = Rank(0.0, 0.0)
    rank.launch(left)

    def synchronize() -> None:
        rank.host = max(rank.host, rank.stream)

    def sleep(seconds: float) -> None:
        rank.host += seconds

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    monkeypatch.setattr(clocks, "time", SimpleNamespace(monotonic=lambda: rank.host, sleep=sleep))
    monkeypatch.setattr(clocks, "_latest", lambda moment: moment)
    monkeypatch.setattr(clocks, "_trip", lambda: 1e-3)
    one: Any = SimpleNamespace(
        device=lambda: torch.device("cuda"), group=lambda: None, flush=lambda: None
    )
    clock = clocks.clock_of("cluster:5ms,25MB/s", one)
    assert clock == "agreed"
    assert clocks.CLOCKS[clock](lambda: rank.launch(CALL), one, "all_reduce") == pytest.approx(
        LAUNCH + CALL
    )


def test_ranks_meet_before_and_after_a_call_and_neither_is_part_of_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rank, did = Rank(0.0, 0.0), list[str]()

    def note(what: str, seconds: float) -> float:
        did.append(what)
        rank.host += seconds
        return 0.0

    monkeypatch.setattr(clocks, "time", SimpleNamespace(perf_counter=lambda: rank.host))
    monkeypatch.setattr(clocks, "_latest", lambda _: note("met", 1.0))
    one: Any = SimpleNamespace(
        device=lambda: torch.device("cpu"), flush=lambda: note("flushed", 1.0)
    )
    clock = clocks.CLOCKS[clocks.clock_of("loopback", one)]
    assert clock(lambda: note("called", CALL), one, "all_reduce") == pytest.approx(CALL)
    # Before its flush Open MPI may still have messages to send.
    assert did == ["met", "called", "flushed", "met"]


@pytest.mark.parametrize(
    ("call", "each"), [(CALL, CALL), (LAUNCH / 5, LAUNCH)], ids=["GPU", "host"]
)
def test_back_to_back_the_slower_of_host_and_gpu_counts(
    call: float, each: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank = Rank(0.0, 0.0)
    monkeypatch.setattr(torch.cuda, "Event", rank.event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(clocks, "_latest", lambda moment: moment)
    one: Any = SimpleNamespace(device=lambda: torch.device("cuda"), flush=lambda: None)
    case: Any = SimpleNamespace(backend=one, act=lambda: rank.launch(call))
    seconds = clocks.back_to_back(case.act, case.backend, 6)
    assert seconds == pytest.approx([LAUNCH + call] + [each] * 5)

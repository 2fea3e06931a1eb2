"""The links that ranks measure for "auto": one result on every rank, and near the truth where that is known."""

import math
from statistics import median
from typing import Any

import pytest

from collectives import autotune
from collectives.autotune import MEASURED
from collectives.engine import probe
from collectives.launch import launch
from collectives.machine import Machine
from places import PATIENCE

pytestmark = pytest.mark.integration

NBYTES = 4096


@pytest.fixture(autouse=True)
def no_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLLECTIVES_MACHINE", raising=False)


def seen(p: int, where: str = "loopback") -> dict[str, list[Any]]:
    """What each rank saw, by case."""
    return {event["case"]: event["seen"] for event in launch("measured_cases", {}, p, where=where, timeout=PATIENCE)}


class OpeningLink(probe.Pair):
    """One end of a link of 5 ms and 25 MB/s, on which the first long message waits twice for the window to open."""

    is_open = False

    def seconds(self, rounds: int, messages: int, nbytes: int, answer: int = 1) -> float:
        del messages, answer
        times = [10e-3 + nbytes / 25e6] * rounds
        if nbytes > 128 << 10 and not self.is_open:
            self.is_open = True
            times[0] += 20e-3
        return median(times)

    def share(self, goes_on: bool) -> bool:
        return goes_on


def test_the_rate_is_that_of_an_open_window() -> None:
    link = OpeningLink(None, 1, asks=True)  # type: ignore[arg-type]
    assert probe._measure_rate(link, trip=10e-3, until=math.inf) == pytest.approx(25e6, rel=0.01)


@pytest.mark.parametrize("p", [1, 2, 3, 5])
def test_all_ranks_choose_by_one_measurement(p: int) -> None:
    found = seen(p)
    first, named = found["first"], found["named"]
    assert first == [first[0]] * p
    assert found["again"] == first  # measured once
    assert all(each["right"] for each in first + named)
    assert [each["machine"]["name"] for each in named] == ["textbook"] * p
    if p == 1:
        assert first[0]["machine"] is None
    else:
        machine = Machine.model_validate(first[0]["machine"])
        assert machine.name == MEASURED
        link = machine.network
        assert first[0]["chosen"] == [probe.choose_by_reads("all_reduce", p, NBYTES, link.alpha, link.beta), 1]


def test_no_rank_hides_the_latency_of_its_own_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLECTIVES_TRANSPORT", "tcp")
    network = Machine.model_validate(seen(3)["first"][0]["machine"]).network
    assert network.latency == 0.0
    assert network.overhead > 0.0


def test_hosts_of_several_ranks_have_two_links(allowed: None) -> None:
    first = seen(6, "cluster:2ms,50MB/s,3")["first"]
    assert first == [first[0]] * 6
    machine = Machine.model_validate(first[0]["machine"])
    assert first[0]["right"]
    assert machine.ranks_per_node == 3
    assert machine.inside
    assert machine.inside.rate > machine.network.rate
    assert first[0]["chosen"] == [*autotune.choose("all_reduce", 6, NBYTES, on=machine)[:2]]


@pytest.mark.alone
def test_links_that_are_known_are_found(allowed: None) -> None:
    (first, *_) = seen(4, "cluster:20ms,5MB/s")["first"]
    network = Machine.model_validate(first["machine"]).network
    assert network.latency > network.overhead
    assert network.latency + network.overhead == pytest.approx(20e-3, rel=0.25)
    assert network.rate == pytest.approx(5e6, rel=0.25)

"""The links that ranks measure for "auto": one result on every rank, and near the truth where that is known."""

import math
from itertools import count
from statistics import median
from types import SimpleNamespace
from typing import Any

import pytest

from collectives import autotune
from collectives.autotune import MEASURED
from collectives.engine import probe
from collectives.engine.memory_cost import choose_by_reads
from collectives.launch import launch
from collectives.machine import Link, Machine
from places import PATIENCE

pytestmark = pytest.mark.integration

NBYTES = 4096


@pytest.fixture(autouse=True)
def no_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLLECTIVES_MACHINE", raising=False)


def seen(p: int, where: str = "loopback") -> dict[str, list[Any]]:
    """What each rank saw, by case."""
    return {
        event["case"]: event["seen"]
        for event in launch("measured_cases", {}, p, where=where, timeout=PATIENCE)
    }


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
    assert found["again"] == first
    assert found["measured"] == [int(p > 1)] * p  # once, although three groups call
    of_first = first[0]["machine"]
    assert [each["machine"] for each in found["later"]] == [of_first] * p
    assert [each and each["machine"] for each in found["part"]] == [
        None,
        *[of_first if p > 2 else None] * (p - 1),
    ]
    assert all(each["right"] for each in first + named)
    assert [each["machine"]["name"] for each in named] == ["textbook"] * p
    if p == 1:
        assert first[0]["machine"] is None
    else:
        machine = Machine.model_validate(first[0]["machine"])
        assert machine.name == MEASURED
        link = machine.network
        assert first[0]["chosen"] == [
            choose_by_reads("all_reduce", p, NBYTES, link.alpha, link.beta),
            1,
        ]


def transport(hosts: str, ranks_per_host: int, spins: int = 16) -> Any:
    """A transport of ranks on these hosts, a letter for each rank."""
    addresses = [(host, port) for port, host in enumerate(hosts)]
    mesh = SimpleNamespace(spins=spins, size=len(hosts), addresses=addresses)
    return SimpleNamespace(mesh=mesh, ranks_per_host=ranks_per_host)


def test_a_group_takes_links_of_its_own_medium_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = count(1)
    monkeypatch.setattr(probe, "_measured", {})

    def measure(*_: object) -> probe.MeasuredLink:
        return probe.MeasuredLink(Link(latency=next(numbers), rate=1.0), "ranks")

    monkeypatch.setattr(probe, "_measure_memory", measure)
    monkeypatch.setattr(probe, "_measure_network", measure)
    pair, job = transport("aa", 2), transport("aabb", 2)
    assert probe.known_machine(pair) is None
    inside = probe.measure_machine(pair, None)  # type: ignore[arg-type]
    assert probe.known_machine(pair) == inside
    assert probe.known_machine(job) is None, "it spans a host that the first did not"
    both = probe.measure_machine(job, None)  # type: ignore[arg-type]
    assert both.inside
    assert (both.inside.latency, both.network.latency, both.ranks_per_node) == (2, 3, 2)
    known = {
        "ab": probe.known_machine(transport("ab", 1)),
        "aabb": probe.known_machine(job),
        "bb": probe.known_machine(transport("bb", 2)),
    }
    assert [each and each.network.latency for each in known.values()] == [3, 3, 2]
    others = {
        "another host": transport("ac", 1),
        "more ranks in memory": transport("aaa", 3),
        "the loopback": transport("aa", 1),
        "ranks that spin": transport("ab", 1, spins=2000),
    }
    assert [name for name, each in others.items() if probe.known_machine(each)] == []
    probe.measure_machine(transport("aa", 1), None)  # type: ignore[arg-type]
    assert probe.known_machine(transport("ac", 1)) is None, "the loopback is no network"
    assert probe.known_machine(transport("aa", 1)) is not None


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

"""What "auto" chooses on a named machine: no named algorithm is simulated faster, also on a part of a node."""

from typing import Any

import pytest

from collectives import autotune
from collectives.algorithms import candidates
from collectives.autotune import MAX_SIMULATED, MEASURED, choose, choose_for_call, size_class
from collectives.machine import Machine, machine
from collectives.simulator.scaling import Case, row

SIZES = (8, 64 << 10, 16 << 20)
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")


@pytest.mark.integration  # seconds
@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize(
    ("name", "p"), [("ethernet", 5), ("summit", 12), ("dgx-h100", 4), ("dgx-h100", 16)]
)
def test_no_candidate_beats_the_choice(name: str, p: int, collective: str) -> None:
    on = machine(name)
    for n in SIZES:
        chosen = choose(collective, p, n, on=on)
        times = {
            each: row(Case(collective, each, p, n, on))["seconds"]
            for each in candidates(collective)
        }
        took = row(Case(collective, chosen.algorithm, p, n, on, chosen.segments))["seconds"]
        assert took <= 1.01 * min(times.values()), (n, chosen, times)
        assert chosen.seconds == pytest.approx(took, rel=1e-6)


def test_calls_simulate_once_for_each_class_of_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes of two classes, in groups of 4 ranks and of 2.

    A machine that no other test has named.
    """
    on = machine("summit").model_copy(update={"name": "summit", "source": "classes of sizes"})
    encoded, simulated, simulate = (
        on.model_dump_json().encode(),
        list[tuple[object, ...]](),
        autotune._simulated,
    )

    def counted(*case: Any) -> Any:
        simulated.append(case)
        return simulate(*case)

    monkeypatch.setattr(autotune, "_simulated", counted)
    names = candidates("all_reduce")
    for nbytes in range(800, 2800, 25):
        for p in (4, 2):
            chosen = choose_for_call("all_reduce", p, nbytes, encoded=encoded)
            assert chosen == choose_for_call("all_reduce", p, size_class(nbytes), encoded=encoded)
            assert nbytes / 2**0.5 <= size_class(nbytes) <= nbytes * 2**0.5
    assert {case[3] for case in simulated} == {1024, 2048}
    assert len(simulated) <= 2 * 2 * len(names)
    assert len({case[:4] for case in simulated}) == len(simulated)
    assert chosen == choose("all_reduce", 2, 2048, on=on)


def test_formulas_decide_where_the_simulator_does_not_know_the_machine() -> None:
    """Links between ranks, measured by `calibrate` or at the first call, leave out the processors that send."""
    split = Machine.model_validate(
        {"name": "mine", "network": {"latency": "25us", "overhead": "5us", "rate": "1.25GB/s"}}
    )
    plain = machine("30us,1.25GB/s")
    measured = split.model_copy(update={"name": MEASURED})
    assert {choose("all_reduce", 8, 8, on=on).algorithm for on in (plain, measured, split)} == {
        "recursive_doubling"
    }
    ethernet = machine("ethernet")
    assert ethernet.network == split.network
    assert choose("all_reduce", 8, 8, on=ethernet).algorithm == "one_shot"
    assert choose("all_reduce", 2 * MAX_SIMULATED, 8, on=ethernet).algorithm == "recursive_doubling"
    assert choose("all_reduce", 13, 8, on=machine("summit")).seconds, "ranks that do not fill nodes"

"""What "auto" chooses on a named machine: no candidate is simulated faster, also on a part of a node."""

import pytest

from collectives.algorithms import candidates
from collectives.autotune import MAX_SIMULATED, MEASURED, choose
from collectives.machine import Machine, machine
from collectives.simulator.scaling import Case, row

SIZES = (8, 64 << 10, 16 << 20)
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")


@pytest.mark.integration  # seconds
@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize(("name", "p"), [("ethernet", 5), ("summit", 12), ("dgx-h100", 4), ("dgx-h100", 16)])
def test_no_candidate_beats_the_choice(name: str, p: int, collective: str) -> None:
    on = machine(name)
    for n in SIZES:
        chosen = choose(collective, p, n, on=on)
        times = {each: row(Case(collective, each, p, n, on))["seconds"] for each in candidates(collective)}
        took = row(Case(collective, chosen.algorithm, p, n, on, chosen.segments))["seconds"]
        assert chosen.algorithm in times
        assert took <= 1.01 * min(times.values()), (n, chosen, times)
        assert chosen.seconds == pytest.approx(took, rel=1e-6)


def test_formulas_decide_where_the_simulator_does_not_know_the_machine() -> None:
    """Links between ranks, measured by `calibrate` or at the first call, leave out the processors that send."""
    split = Machine.model_validate(
        {"name": "mine", "network": {"latency": "25us", "overhead": "5us", "rate": "1.25GB/s"}}
    )
    plain = machine("30us,1.25GB/s")
    measured = split.model_copy(update={"name": MEASURED})
    assert {choose("all_reduce", 8, 8, on=on).algorithm for on in (plain, measured, split)} == {"recursive_doubling"}
    ethernet = machine("ethernet")
    assert ethernet.network == split.network
    assert choose("all_reduce", 8, 8, on=ethernet).algorithm == "one_shot"
    assert choose("all_reduce", 2 * MAX_SIMULATED, 8, on=ethernet).algorithm == "recursive_doubling"
    assert choose("all_reduce", 13, 8, on=machine("summit")).seconds, "ranks that do not fill nodes"

"""Simulation on links: closed forms, a plain loop over all messages, and contention on a shared link."""

import pytest

from collectives import Machine, Schedule, Step, simulate
from collectives.algorithms import build
from collectives.core.schedule import ScheduleError
from collectives.machine import machine

LINE = Machine(
    name="line",
    ranks_per_node=3,
    inside={"latency": "1us", "overhead": "2us", "rate": "1GB/s"},  # type: ignore[arg-type]
    links={"pairs": [(0, 1, 1), (1, 0, 1), (1, 2, 2), (2, 1, 2)]},  # type: ignore[arg-type]
)


def sent(*steps: Step, k: int = 4) -> Schedule:
    return Schedule("broadcast", 3, k, len(steps), lambda t: steps[t], root=0, one_port=False)


def test_a_message_occupies_its_way_at_the_slowest_link_s_rate() -> None:
    # Overhead once, 4 MB at 1 GB/s, and the latencies of two links.
    assert simulate(sent(Step(0, 2, 0, 4)), LINE, 4_000_000).seconds == pytest.approx(
        4e-3 + 2e-6 + 2e-6
    )


def test_messages_of_one_step_share_a_link() -> None:
    both = simulate(sent(Step([0, 0], [1, 2], [0, 2], 2)), LINE, 4_000_000)
    assert both.seconds == pytest.approx(4e-3 + 2 * 2e-6 + 2e-6)
    assert both.busiest == ("link from rank 0 to rank 1", pytest.approx(4e-3 + 4e-6))


def test_links_of_one_rank_do_not_wait_for_each_other() -> None:
    alone = simulate(sent(Step(1, 0, 0, 4)), LINE, 4_000_000).seconds
    assert simulate(sent(Step([1, 1], [0, 2], 0, 4)), LINE, 4_000_000).seconds == alone


def test_a_chunk_goes_on_when_it_has_arrived() -> None:
    following = simulate(sent(Step(0, 1, 0, 4), Step(1, 2, 0, 4)), LINE, 4_000_000)
    assert following.seconds == pytest.approx(4e-3 + 2e-3 + 2 * 2e-6 + 2 * 1e-6)
    other = simulate(sent(Step(0, 1, 0, 2), Step(1, 2, 2, 2)), LINE, 4_000_000)
    assert other.seconds == pytest.approx(2e-3 + 3e-6)


def test_sums_take_gamma() -> None:
    adding = LINE.model_copy(update={"gamma": 1e-9})
    alone = simulate(sent(Step(0, 1, 0, 4, add=True)), LINE, 4_000_000).seconds
    assert simulate(sent(Step(0, 1, 0, 4, add=True)), adding, 4_000_000).seconds == pytest.approx(
        alone + 4e-3
    )


@pytest.mark.parametrize("p", [3, 5, 8])
def test_a_ring_on_a_ring_has_its_closed_form(p: int) -> None:
    on, n = machine(f"torus:{p},1us,1GB/s"), 1_000_000 * p
    expected = 2 * (p - 1) * (1e-6 + n / p / 1e9)
    assert simulate(build("all_reduce", "ring", p), on, n).seconds == pytest.approx(expected)


def test_on_step_sees_every_message() -> None:
    seen: list[tuple[int, int, float]] = []
    schedule = build("all_gather", "ring", 8)
    result = simulate(
        schedule,
        machine("dgx1"),
        8 << 20,
        on_step=lambda t, m: seen.extend(zip(m.src, m.dst, m.arrival, strict=True)),
    )
    assert len(seen) == result.messages == 56
    assert max(arrival for _, _, arrival in seen) == result.seconds
    assert result.bytes == {"inside": 7 * (8 << 20)}


def test_bytes_between_nodes_are_counted_apart() -> None:
    result = simulate(build("broadcast", "flat", 16), machine("ndv2"), 1 << 20)
    assert result.bytes == {"inside": 7 << 20, "network": 8 << 20}
    assert "switch" in result.busiest[0]


def test_switches_of_a_schedule_have_no_place() -> None:
    with pytest.raises(
        ScheduleError, match="switches of a schedule: got 1, expected none for a machine with links"
    ):
        simulate(build("all_reduce", "in_network", 8), machine("dgx1"), 1 << 20)

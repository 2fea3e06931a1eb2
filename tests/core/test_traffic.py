"""Traffic against a plain count of the same schedule, message by message."""

import pytest

from collectives.algorithms import ALGORITHMS, build
from collectives.core.schedule import Schedule, Step
from collectives.core.traffic import traffic


def counted(schedule: Schedule, n: int) -> list[list[int]]:
    """Per rank: messages sent and received, elements sent and received."""
    edges, total = schedule.cut(n).tolist(), [[0] * schedule.participants for _ in range(4)]
    for step in schedule.steps():
        sizes: dict[tuple[int, int], int] = {}
        for src, dst, chunk, count in zip(
            *(getattr(step, name).tolist() for name in Step.__slots__[:4]), strict=True
        ):
            sizes[src, dst] = sizes.get((src, dst), 0) + edges[chunk + count] - edges[chunk]
        for (src, dst), size in sizes.items():
            for counter, rank, amount in zip(
                total, (src, dst, src, dst), (size > 0, size > 0, size, size), strict=True
            ):
                counter[rank] += amount
    return total


@pytest.mark.parametrize(("collective", "algorithm"), ALGORITHMS)
def test_every_message_is_counted_once_and_an_empty_one_never(
    collective: str, algorithm: str
) -> None:
    for p in (1, 2, 3, 4, 7):
        schedule = build(collective, algorithm, p, segments=2)
        # Fewer elements than chunks, so that some messages are empty.
        for n in (0, 1, p, 5 * p + 1):
            assert [each.tolist() for each in traffic(schedule, n)] == counted(schedule, n), (p, n)


def test_rows_of_one_pair_are_one_message() -> None:
    step = Step(src=[0, 0, 1, 0], dst=[1, 2, 0, 1], chunk=[0, 1, 2, 3], count=[1, 1, 1, 1])
    schedule = Schedule("all_reduce", p=3, k=4, nsteps=1, make=lambda _: step)
    assert [each.tolist() for each in traffic(schedule, 40)] == [
        [2, 1, 0],
        [1, 1, 1],
        [30, 10, 0],
        [10, 20, 10],
    ]

"""``verify --all``: every algorithm with all its roots, segments and nodes, on all cores."""

from collections.abc import Iterator
from concurrent.futures import as_completed
from typing import Any

from collectives.algorithms import ALGORITHMS, build, variants
from collectives.processes import workers
from collectives.verify import verify

Row = dict[str, Any]

# Without --max-ranks: every contribution is counted for these numbers of ranks, and fingerprints are compared for one
# larger number, which depends on how many chunks p ranks have.
COUNTED_FOR = (*range(1, 65), 96, 100, 127, 128)
LARGE = {"p * p": 256, "p": 1024, "few": 4096}


def rows(max_ranks: int | None) -> Iterator[Row]:
    """A row for each algorithm as soon as it is proved, on 1 to ``max_ranks`` ranks; ScheduleError for a fault."""
    with workers() as pool:
        # The last algorithms of the table take longest, so they start first and all cores end together.
        jobs = [pool.submit(_proved, *names, max_ranks) for names in reversed(ALGORITHMS)]
        for job in as_completed(jobs):
            yield job.result()


def _proved(collective: str, algorithm: str, max_ranks: int | None) -> Row:
    """Verify all variants of one algorithm; returns the row that says so."""
    k = build(collective, algorithm, 16).k
    large = LARGE["p * p" if k == 256 else "p" if k >= 16 else "few"]
    counted = COUNTED_FOR if max_ranks is None else range(1, max_ranks + 1)
    schedules = 0
    for schedule in (schedule for p in counted for schedule in variants(collective, algorithm, p)):
        verify(schedule)
        schedules += 1
    if max_ranks is None:
        verify(build(collective, algorithm, large))
    row = {"collective": collective, "algorithm": algorithm, "max_ranks": max(counted), "schedules": schedules}
    return row | {"fingerprints_at": large if max_ranks is None else None}


def line(row: Row) -> str:
    """A row as the terminal shows it."""
    large = f", fingerprints at {row['fingerprints_at']}" if row["fingerprints_at"] else ""
    return (
        f"ok  {row['collective']:<16}{row['algorithm']:<20}{row['schedules']:>6} schedules on up to "
        f"{row['max_ranks']} ranks counted{large}"
    )

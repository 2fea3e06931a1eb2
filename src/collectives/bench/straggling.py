"""What every rank does while one host after the other becomes slow: the same measurement again at each point."""

from collections.abc import Callable

from torch import distributed as dist

from collectives.bench import measure
from collectives.bench.settings import Row


def run(settings: Row, report: Callable[[Row], None]) -> None:
    """Ask for each of the links under "points", then measure what "measure" names; events carry their point.

    For `cluster.ranks.launch_on`, where a report returns only when the launcher has changed the links.
    """
    for point in settings["points"]:
        report({"slow": point})
        dist.barrier()  # nobody begins before that
        measure.run(settings, lambda event, point=point: report(event | {"point": point}))  # type: ignore[misc]

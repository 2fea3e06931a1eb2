"""What every rank does while one host after the other becomes slow: the same measurement again at each point."""

from collections.abc import Callable

from torch import distributed as dist

from collectives.bench import measure
from collectives.bench.settings import Row


def run(settings: Row, report: Callable[[Row], None]) -> None:
    """For each point and size under "cases", ask for the point's links, then measure what "measure" has, at this size.

    The rows of a case are one event, and have their point. For `collectives.launch.cluster.launch_on`, where a
    report returns only when the launcher has changed the links.
    """
    for point, nbytes in settings["cases"]:
        report({"slow": point})
        dist.barrier()  # nobody begins before that
        events: list[Row] = []
        measure.run({"measure": [settings["measure"] | {"bytes": [nbytes]}]}, events.append)
        report(next(event for event in events if "environment" in event))
        report({"rows": [event["row"] | {"point": point} for event in events if "row" in event]})

"""What every rank does while one host after the other becomes slow: the same measurement again at each point."""

from collections.abc import Callable, Iterator

from torch import distributed as dist

from collectives.bench.measure import rows_of
from collectives.bench.report import launched, report_rows
from collectives.bench.settings import Row, Settings


def run(settings: Row, report: Callable[[Row], None]) -> None:
    """For each point and size under "cases", ask for the point's links, then measure what "measure" has, at this size.

    The rows of a case have their point. For `collectives.launch.cluster.launch_on`, where a report
    returns only when the launcher has changed the links.
    """
    wanted = Settings.from_launcher(settings["measure"])
    report_rows(launched([wanted]), report, _rows(wanted, settings, report))


def _rows(wanted: Settings, settings: Row, report: Callable[[Row], None]) -> Iterator[list[Row]]:
    for point, nbytes in settings["cases"]:
        report({"slow": point})
        dist.barrier()  # nobody begins before that
        yield [row | {"point": point} for row in rows_of(wanted, nbytes, 0, lambda _: None)]

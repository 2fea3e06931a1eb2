"""Measured rows as text, in nccl-tests' columns, and progress while they are being measured."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from collectives.bench import Row, Settings
from collectives.units import format_bytes

HEAD = (
    f"# {'size':>10} {'count':>10} {'type':>9} {'redop':>6}  {'algorithm':<19}{'backend':<9}{'where':<11}"
    f"{'time':>10} {'95% interval':>19} {'algbw':>8} {'busbw':>8} {'#wrong':>7}\n"
    f"# {'(B)':>10} {'(elements)':>10} {'':>9} {'':>6}  {'':<19}{'':<9}{'':<11}"
    f"{'(us)':>10} {'(us)':>19} {'(GB/s)':>8} {'(GB/s)':>8} {'':>7}"
)


def heading(settings: Settings) -> str:
    """Two lines above the rows: what is measured, how, and what each column is."""
    return (
        f"# {settings.collective} on {settings.ranks} ranks: median of {settings.repetitions} after "
        f"{settings.warmups} warm-ups, each the slowest rank's time\n{HEAD}"
    )


def note(settings: Settings) -> str | None:
    """What has to be known of rows that were not measured together; None where all were."""
    launches = [", ".join(one.backends) for one in settings.launches()]
    if len(launches) < 2:
        return None
    return (
        f"{len(launches)} launches, one after the other: {'; '.join(launches)}. Rows of different launches were not "
        "interleaved: what disturbed one of them need not have disturbed the others"
    )


def line(row: Row) -> str:
    """One row. Times are microseconds, rates GB/s (1e9 bytes), as nccl-tests prints them."""
    interval = f"{row['low_us']:.1f} – {row['high_us']:.1f}"
    return (
        f"  {row['bytes']:>10} {row['count']:>10} {row['dtype']:>9} {row['op']:>6}  {row['algorithm']:<19}"
        f"{row['backend']:<9}{row['where']:<11}"
        f"{row['median_us']:>10.1f} {interval:>19} {row['algbw']:>8.3f} {row['busbw']:>8.3f} {row['wrong']:>7}"
    )


@contextmanager
def progress(settings: Settings) -> Iterator[Callable[[Row], None]]:
    """Show how far a measurement is, on standard error: a bar on a terminal, else a line per size."""
    if sys.stderr.isatty():
        yield from _bar(settings)
    else:
        yield lambda event: _say(settings, event)


def _bar(settings: Settings) -> Iterator[Callable[[Row], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:3.0f} %"), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"starting {settings.ranks} ranks", total=None)

        def update(event: Row) -> None:
            if "done" in event:
                at = settings.bytes[min(event["done"] * len(settings.bytes) // event["of"], len(settings.bytes) - 1)]
                text = f"{settings.ranks} ranks by {event['where']}, {format_bytes(at)}"
                bar.update(task, description=text, completed=event["done"], total=event["of"])

        yield update


def _say(settings: Settings, event: Row) -> None:
    if "done" in event and event["done"] * len(settings.bytes) % event["of"] == 0:
        nth = event["done"] * len(settings.bytes) // event["of"]
        at = format_bytes(settings.bytes[nth - 1])
        text = f"{settings.ranks} ranks by {event['where']}: {at} measured, {nth} of {len(settings.bytes)}"
        print(text, file=sys.stderr, flush=True)

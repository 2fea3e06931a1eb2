"""Measured rows as text, in columns like those of nccl-tests, and progress while they are being measured."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from collectives.autotune import MEASURED
from collectives.bench import Row, Settings, launches
from collectives.bench.statistics import covered, percent
from collectives.units import format_bytes, many

HEAD = (
    f"# {'size':>10} {'count':>10} {'type':>9} {'redop':>6}  {'algorithm':<24}  {'backend':<10}  {'where':<20}  "
    f"{'time':>10} {'interval':>19} {'algbw':>8} {'busbw':>8} {'bound':>10} {'#wrong':>7}\n"
    f"# {'(B)':>10} {'(elements)':>10} {'':>9} {'':>6}  {'':<24}  {'':<10}  {'':<20}  "
    f"{'(us)':>10} {'(us)':>19} {'(GB/s)':>8} {'(GB/s)':>8} {'(us)':>10} {'':>7}"
)


def heading(wanted: Sequence[Settings]) -> str:
    """Two lines above the rows: what is measured, how, and what each column is."""
    return (
        f"# {', '.join(each.collective for each in wanted)} on {wanted[0].ranks} ranks: median of "
        f"{wanted[0].repetitions} after {many(wanted[0].warmups, 'warm-up')}, each the slowest rank's time; "
        f"the interval holds the true median with {percent(covered(wanted[0].repetitions))} confidence\n{HEAD}"
    )


def note(wanted: Sequence[Settings]) -> str | None:
    """What has to be known of rows that were not measured together; None where all were."""
    parts = [", ".join(dict.fromkeys(name for one in alike for name in one.backends)) for alike in launches(wanted)]
    if len(parts) < 2:
        return None
    return (
        f"{len(parts)} launches, one after the other: {'; '.join(parts)}. Rows of different launches were not "
        "interleaved: what disturbed one of them need not have disturbed the others"
    )


def line(row: Row) -> str:
    """One row. Times are microseconds, rates GB/s (1e9 bytes), as nccl-tests prints them.

    ``bound`` is what no algorithm can be faster than on the machine that the ranks go by, if there is one.
    """
    bound = "" if row["bound_us"] is None else f"{row['bound_us']:.1f}"
    interval = f"{row['low_us']:.1f} – {row['high_us']:.1f}"
    return (
        f"  {row['bytes']:>10} {row['count']:>10} {row['dtype']:>9} {row['op']:>6}  {_algorithm(row):<24}  "
        f"{row['backend']:<10}  {row['where']:<20}  "
        f"{row['median_us']:>10.1f} {interval:>19} {row['algbw']:>8.3f} {row['busbw']:>8.3f} "
        f"{bound:>10} {row['wrong']:>7}"
    )


def _algorithm(row: Row) -> str:
    if not row["auto"]:
        return str(row["algorithm"])
    by = f":{MEASURED}" if (row["auto_by"] or {}).get("machine") == MEASURED else ""
    return f"{row['algorithm']} (auto{by})"


@contextmanager
def progress(wanted: Sequence[Settings]) -> Iterator[Callable[[Row], None]]:
    """Show how far a measurement is, on standard error: a bar on a terminal, else a line per size."""
    if sys.stderr.isatty():
        yield from _bar(wanted[0])
    else:
        yield lambda event: _say(wanted, event)


def _bar(settings: Settings) -> Iterator[Callable[[Row], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:3.0f}%"), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"starting {settings.ranks} ranks", total=None)

        def update(event: Row) -> None:
            if "done" in event:
                at = settings.bytes[min(event["done"] * len(settings.bytes) // event["of"], len(settings.bytes) - 1)]
                text = f"{event['collective']} on {settings.ranks} ranks by {event['where']}, {format_bytes(at)}"
                bar.update(task, description=text, completed=event["done"], total=event["of"])

        yield update


def _say(wanted: Sequence[Settings], event: Row) -> None:
    """A line for each size that is done; of several collectives, a line for each of them."""
    sizes = len(wanted[0].bytes)
    if "done" not in event or event["done"] * (sizes if len(wanted) == 1 else 1) % event["of"]:
        return
    nth = event["done"] * sizes // event["of"]
    at = f"{format_bytes(wanted[0].bytes[nth - 1])} measured, {nth} of {sizes}" if len(wanted) == 1 else "measured"
    text = f"{event['collective']} on {wanted[0].ranks} ranks by {event['where']}: {at}"
    print(text, file=sys.stderr, flush=True)

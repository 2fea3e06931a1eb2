"""Measured rows as text: our table, nccl-tests' own, and progress while they are being measured."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, zip_longest

from collectives.autotune import MEASURED
from collectives.backends import named
from collectives.bench.settings import Row, Settings, group_by_launch, lacking
from collectives.core.contracts import REDUCING, ROOTED
from collectives.statistics import covered, percent
from collectives.units import format_bytes, many

HEAD = (
    f"# {'size':>10} {'count':>10} {'type':>9} {'redop':>6}  {'algorithm':<24}  {'backend':<10}  {'where':<20}  "
    f"{'time':>10} {'interval':>19} {'algbw':>8} {'busbw':>8} {'bound':>10} {'#wrong':>7}\n"
    f"# {'(B)':>10} {'(elements)':>10} {'':>9} {'':>6}  {'':<24}  {'':<10}  {'':<20}  "
    f"{'(us)':>10} {'(us)':>19} {'(GB/s)':>8} {'(GB/s)':>8} {'(us)':>10} {'':>7}"
)


def heading(wanted: Sequence[Settings]) -> str:
    """Return the lines above the rows: what is measured, how, and the columns' names."""
    first, of = wanted[0], ", ".join(each.collective for each in wanted)
    calls = f"{first.repetitions} back to back" if first.back_to_back else f"{first.repetitions}"
    each = "the mean of the ranks' times" if first.back_to_back else "the slowest rank's time"
    return (
        f"# {'persistent ' * first.persistent}{of} on {first.ranks} ranks: median of "
        f"{calls} after {many(first.warmups, 'warm-up')}, each {each}; "
        f"the interval holds the true median with {percent(covered(first.repetitions))} confidence\n{HEAD}"
    )


def note(wanted: Sequence[Settings]) -> str | None:
    """Return a warning if the rows are measured in several launches.

    None if they are measured in one.
    """
    launches = []
    for parts in group_by_launch(wanted):
        names = dict.fromkeys(chain.from_iterable(one.backends for one in parts))
        launches.append(", ".join(names))
    if len(launches) < 2:
        return None
    return (
        f"{len(launches)} launches, one after the other: {'; '.join(launches)}. Rows of different launches were not "
        "interleaved: what disturbed one of them need not have disturbed the others"
    )


def line(row: Row) -> str:
    """Return the line of a row.

    Times are microseconds, rates GB/s (1e9 bytes), as nccl-tests prints them.

    ``bound`` is what no algorithm can be faster than on the machine that the ranks go by, if there
    is one.
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
        yield lambda event: _print_progress(wanted, event)


def _bar(settings: Settings) -> Iterator[Callable[[Row], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f}%"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"starting {settings.ranks} ranks", total=None)

        def update(event: Row) -> None:
            if "done" in event:
                at = settings.bytes[
                    min(event["done"] * len(settings.bytes) // event["of"], len(settings.bytes) - 1)
                ]
                text = f"{event['collective']} on {settings.ranks} ranks by {event['where']}, {format_bytes(at)}"
                bar.update(task, description=text, completed=event["done"], total=event["of"])

        yield update


def _print_progress(wanted: Sequence[Settings], event: Row) -> None:
    """Print a line for each size that is done, or of several collectives a line for each of them."""
    sizes = len(wanted[0].bytes)
    if "done" not in event or event["done"] * (sizes if len(wanted) == 1 else 1) % event["of"]:
        return
    nth = event["done"] * sizes // event["of"]
    at = (
        f"{format_bytes(wanted[0].bytes[nth - 1])} measured, {nth} of {sizes}"
        if len(wanted) == 1
        else "measured"
    )
    text = f"{event['collective']} on {wanted[0].ranks} ranks by {event['where']}: {at}"
    print(text, file=sys.stderr, flush=True)


# Types and columns as nccl-tests names them.
TYPES = {"float16": "half", "float32": "float", "float64": "double"}
COLUMNS = ("time", "algbw", "busbw", "#wrong") * 2
UNITS = ("(us)", "(GB/s)", "(GB/s)", "") * 2


def both_places(wanted: Settings) -> list[Settings]:
    """Return the measurement out of place, and in place by the back ends that have it.

    >>> [each.in_place for each in both_places(Settings())], len(both_places(Settings(collective="all_to_all")))
    ([False, True], 1)
    """
    asked = wanted.collective, wanted.op, wanted.dtype, True
    able = [typed for typed in wanted.backends if not lacking(named(typed)[0], *asked)]
    inside = [wanted.model_copy(update={"in_place": True, "backends": able})] if able else []
    return [wanted.model_copy(update={"in_place": False}), *inside]


def tables(wanted: Settings, rows: Sequence[Row], environment: Sequence[Row]) -> Iterator[str]:
    """Return the lines of a table for each collective, back end and algorithm.

    ``wanted`` has what all share.

    A size without its half in place has N/A there, as an all-to-all has, which nccl-tests does not
    check in place.
    """
    groups: dict[tuple[str, str, str], tuple[list[Row], list[Row]]] = {}
    for row in rows:
        key = row["collective"], row["backend"], "auto" if row["auto"] else row["algorithm"]
        groups.setdefault(key, ([], []))[row["in_place"]].append(row)
    for (collective, name, algorithm), places in groups.items():
        ranks = [
            each for each in environment if name in (named(typed)[0] for typed in each["backends"])
        ]
        program = f"{'alltoall' if collective == 'all_to_all' else collective}_perf"
        yield from _nccl_heading(wanted, program, f"{name} {algorithm}", ranks[: wanted.ranks])
        for halves in zip_longest(*places):
            yield _nccl_line(halves, wanted.root if collective in ROOTED else -1)
        alike = list(chain.from_iterable(places))
        wrong = sum(row["wrong"] for row in alike)
        yield f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}"
        yield f"# Avg bus bandwidth    : {sum(row['busbw'] for row in alike) / len(alike):g} "
        yield f"#\n# Collective test concluded: {program}"


def _nccl_heading(
    wanted: Settings, program: str, title: str, ranks: Sequence[Row]
) -> Iterator[str]:
    first, last = min(wanted.bytes), max(wanted.bytes)
    step = wanted.bytes[1] // wanted.bytes[0] if len(wanted.bytes) > 1 and wanted.bytes[0] else 0
    yield f"# collectives bench: {title}"
    yield f"# Collective test starting: {program}"
    yield (
        f"# nThread 1 nGpus 1 minBytes {first} maxBytes {last} step: {step}(factor) warmup iters: {wanted.warmups} "
        f"iters: {wanted.repetitions} agg iters: 1 validation: 1 graph: 0 unalign: 0"
    )
    yield "#\n# Using devices"
    devices: Counter[str] = Counter()
    for each in ranks:
        host = each.get("host", "localhost")
        at, kind = (
            f"on {host:>10} device {devices[host]:>2} [0000:00:00]",
            each.get("gpu") or each["processor"],
        )
        yield f"#  Rank {each['rank']:>2} Group  0 Pid      0 {at} {kind}"
        devices[host] += 1
    yield f"#\n# {_columns('', '', '', '', '')}           out-of-place                       in-place          "
    yield f"# {_columns('size', 'count', 'type', 'redop', 'root')}{_halves(*COLUMNS)} "
    yield f"# {_columns('(B)', '(elements)', '', '', '')}{_halves(*UNITS)} "


def _columns(size: str, count: str, dtype: str, op: str, root: str) -> str:
    return f"{size:>10}  {count:>12}  {dtype:>8}  {op:>6}  {root:>6}"


def _halves(*texts: str) -> str:
    return "".join(f"  {text:>{6 + (nth % 4 == 0)}}" for nth, text in enumerate(texts))


def _nccl_line(halves: Sequence[Row | None], root: int) -> str:
    row = next(half for half in halves if half is not None)
    op = row["op"] if row["collective"] in REDUCING else "none"
    dtype = TYPES.get(row["dtype"]) or str(row["dtype"])
    texts = []
    for half in halves:
        texts += _numbers(half) if half else ["N/A"] * 4
    return f"  {_columns(row['bytes'], row['count'], dtype, op, str(root))}{_halves(*texts)}"


def _numbers(row: Row) -> list[str]:
    return [
        _fitting(row["median_us"], 7),
        _fitting(row["algbw"], 6),
        _fitting(row["busbw"], 6),
        f"{row['wrong']:g}",
    ]


def _fitting(value: float, width: int) -> str:
    """Return a number with up to two digits after the point, as many as fit in the width.

    >>> _fitting(3.14159, 7), _fitting(12345.678, 7), _fitting(1234567.8, 7), _fitting(123456789.0, 7)
    ('3.14', '12345.7', '1234568', '1.2e+08')
    """
    texts = (f"{value:.{digits}f}" for digits in (2, 1, 0))
    return next((text for text in texts if len(text) <= width), f"{value:.1e}")

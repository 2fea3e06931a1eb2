"""Measured rows as text: our table, nccl-tests' own, and progress while they are being measured."""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
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
    first = wanted[0]
    what = ", ".join(settings.collective for settings in wanted)
    if first.persistent:
        what = f"persistent {what}"
    calls, time = f"{first.repetitions}", "the slowest rank's time"
    if first.back_to_back:
        calls, time = f"{first.repetitions} back to back", "the mean of the ranks' times"
    warmups = many(first.warmups, "warm-up")
    confidence = percent(covered(first.repetitions))
    return (
        f"# {what} on {first.ranks} ranks: median of {calls} after {warmups}, each {time}; "
        f"the interval holds the true median with {confidence} confidence\n"
        f"{HEAD}"
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
    buffer = f"{row['bytes']:>10} {row['count']:>10} {row['dtype']:>9} {row['op']:>6}"
    who = f"{_algorithm(row):<24}  {row['backend']:<10}  {row['where']:<20}"
    rates = f"{row['algbw']:>8.3f} {row['busbw']:>8.3f}"
    times = f"{row['median_us']:>10.1f} {interval:>19} {rates} {bound:>10}"
    return f"  {buffer}  {who}  {times} {row['wrong']:>7}"


def _algorithm(row: Row) -> str:
    """Return the algorithm's name, and whether auto chose it, by what it measured or by a machine."""
    if not row["auto"]:
        return str(row["algorithm"])
    auto_by = row["auto_by"] or {}
    is_measured = auto_by.get("machine") == MEASURED
    by = f":{MEASURED}" if is_measured else ""
    return f"{row['algorithm']} (auto{by})"


@contextmanager
def progress(wanted: Sequence[Settings]) -> Iterator[Callable[[Row], None]]:
    """Show how far a measurement is, on standard error: a bar on a terminal, else a line per size."""
    if sys.stderr.isatty():
        yield from _bar(wanted[0])
    else:
        yield lambda event: _print_progress(wanted, event)


def _bar(settings: Settings) -> Iterator[Callable[[Row], None]]:
    """Show a bar of the calls that are done, with the size that is being measured."""
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
            if "done" not in event:
                return
            sizes = settings.bytes
            nth = event["done"] * len(sizes) // event["of"]
            size = format_bytes(sizes[min(nth, len(sizes) - 1)])
            text = f"{event['collective']} on {settings.ranks} ranks by {event['where']}, {size}"
            bar.update(task, description=text, completed=event["done"], total=event["of"])

        yield update


def _print_progress(wanted: Sequence[Settings], event: Row) -> None:
    """Print a line for each size that is done, or of several collectives a line for each of them."""
    if "done" not in event:
        return
    first = wanted[0]
    lines = len(first.bytes) if len(wanted) == 1 else 1
    nth, part = divmod(event["done"] * lines, event["of"])
    if part:
        return
    done = "measured"
    if len(wanted) == 1:
        done = f"{format_bytes(first.bytes[nth - 1])} measured, {nth} of {lines}"
    text = f"{event['collective']} on {first.ranks} ranks by {event['where']}: {done}"
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
    places = [wanted.model_copy(update={"in_place": False})]
    able = []
    for typed in wanted.backends:
        name, _ = named(typed)
        if not lacking(name, wanted.collective, wanted.op, wanted.dtype, in_place=True):
            able.append(typed)
    if able:
        places.append(wanted.model_copy(update={"in_place": True, "backends": able}))
    return places


def tables(wanted: Settings, rows: Sequence[Row], environment: Sequence[Row]) -> Iterator[str]:
    """Return the lines of a table for each collective, back end and algorithm.

    ``wanted`` has what all share.

    A size without its half in place has N/A there, as an all-to-all has, which nccl-tests does not
    check in place.
    """
    groups: dict[tuple[str, str, str], tuple[list[Row], list[Row]]] = {}
    for row in rows:
        key = row["collective"], row["backend"], "auto" if row["auto"] else row["algorithm"]
        out_of_place, in_place = groups.setdefault(key, ([], []))
        (in_place if row["in_place"] else out_of_place).append(row)
    for (collective, name, algorithm), (out_of_place, in_place) in groups.items():
        ranks = [rank for rank in environment if name in _backends(rank)]
        program = "alltoall_perf" if collective == "all_to_all" else f"{collective}_perf"
        yield from _nccl_heading(wanted, program, f"{name} {algorithm}", ranks[: wanted.ranks])
        root = wanted.root if collective in ROOTED else -1
        for halves in zip_longest(out_of_place, in_place):
            yield _nccl_line(halves, root)
        alike = out_of_place + in_place
        wrong = sum(row["wrong"] for row in alike)
        busbw = sum(row["busbw"] for row in alike) / len(alike)
        yield f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}"
        yield f"# Avg bus bandwidth    : {busbw:g} "
        yield f"#\n# Collective test concluded: {program}"


def _backends(rank: Row) -> list[str]:
    """Return the names of the back ends that a rank has run."""
    return [named(typed)[0] for typed in rank["backends"]]


def _nccl_heading(
    wanted: Settings, program: str, title: str, ranks: Sequence[Row]
) -> Iterator[str]:
    """Yield the lines above a table: its settings, a line for each rank, and the columns' names."""
    sizes = wanted.bytes
    factor = sizes[1] // sizes[0] if len(sizes) > 1 and sizes[0] else 0
    yield f"# collectives bench: {title}"
    yield f"# Collective test starting: {program}"
    yield (
        f"# nThread 1 nGpus 1 minBytes {min(sizes)} maxBytes {max(sizes)} step: {factor}(factor) "
        f"warmup iters: {wanted.warmups} iters: {wanted.repetitions} agg iters: 1 "
        "validation: 1 graph: 0 unalign: 0"
    )
    yield "#\n# Using devices"
    devices: Counter[str] = Counter()
    for rank in ranks:
        host = rank.get("host", "localhost")
        where = f"on {host:>10} device {devices[host]:>2} [0000:00:00]"
        kind = rank.get("gpu") or rank["processor"]
        yield f"#  Rank {rank['rank']:>2} Group  0 Pid      0 {where} {kind}"
        devices[host] += 1
    places = "           out-of-place                       in-place          "
    yield f"#\n# {_columns('', '', '', '', '')}{places}"
    yield f"# {_columns('size', 'count', 'type', 'redop', 'root')}{_halves(COLUMNS)} "
    yield f"# {_columns('(B)', '(elements)', '', '', '')}{_halves(UNITS)} "


def _columns(size: str, count: str, dtype: str, op: str, root: str) -> str:
    return f"{size:>10}  {count:>12}  {dtype:>8}  {op:>6}  {root:>6}"


def _halves(texts: Iterable[str]) -> str:
    """Return the columns of both halves; the first of a half, a time, is one character wider."""
    cells = []
    for nth, text in enumerate(texts):
        width = 7 if nth % 4 == 0 else 6
        cells.append(f"  {text:>{width}}")
    return "".join(cells)


def _nccl_line(halves: Sequence[Row | None], root: int) -> str:
    """Return the line of a size, N/A in the half that was not measured."""
    row = next(half for half in halves if half is not None)
    op = row["op"] if row["collective"] in REDUCING else "none"
    dtype = TYPES.get(row["dtype"]) or str(row["dtype"])
    texts = []
    for half in halves:
        texts += _numbers(half) if half else ["N/A"] * 4
    buffer = _columns(row["bytes"], row["count"], dtype, op, str(root))
    return f"  {buffer}{_halves(texts)}"


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

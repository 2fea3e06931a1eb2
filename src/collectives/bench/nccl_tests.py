"""Measured rows as nccl-tests prints them, for what reads its tables: out of place and in place side by side."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from collectives.backends import named
from collectives.bench.settings import Row, Settings, lacking
from collectives.contracts import REDUCING, ROOTED
from collectives.logs.benchmarks.table import NAMES

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
    """Return the lines of a table for each collective, back end and algorithm; ``wanted`` has what all share.

    A size without its half in place has N/A there, as an all-to-all has, which nccl-tests does not check in place.
    """
    groups: dict[tuple[str, str, str], tuple[list[Row], list[Row]]] = {}
    for row in rows:
        key = row["collective"], row["backend"], "auto" if row["auto"] else row["algorithm"]
        groups.setdefault(key, ([], []))[row["in_place"]].append(row)
    for (collective, name, algorithm), places in groups.items():
        ranks = [each for each in environment if name in (named(typed)[0] for typed in each["backends"])]
        yield from _heading(wanted, collective, f"{name} {algorithm}", ranks[: wanted.ranks])
        for halves in zip_longest(*places):
            yield _line(halves, wanted.root if collective in ROOTED else -1)
        yield from _footer([row for place in places for row in place], _program(collective))


def _program(collective: str) -> str:
    return f"{NAMES.get(collective, collective)}_perf"


def _heading(wanted: Settings, collective: str, what: str, ranks: Sequence[Row]) -> Iterator[str]:
    first, last = min(wanted.bytes), max(wanted.bytes)
    step = wanted.bytes[1] // wanted.bytes[0] if len(wanted.bytes) > 1 and wanted.bytes[0] else 0
    yield f"# collectives bench: {what}"
    yield f"# Collective test starting: {_program(collective)}"
    yield (
        f"# nThread 1 nGpus 1 minBytes {first} maxBytes {last} step: {step}(factor) warmup iters: {wanted.warmups} "
        f"iters: {wanted.repetitions} agg iters: 1 validation: 1 graph: 0 unalign: 0"
    )
    yield "#\n# Using devices"
    devices: Counter[str] = Counter()
    for each in ranks:
        host = each.get("host", "localhost")
        at, kind = f"on {host:>10} device {devices[host]:>2} [0000:00:00]", each.get("gpu") or each["processor"]
        yield f"#  Rank {each['rank']:>2} Group  0 Pid      0 {at} {kind}"
        devices[host] += 1
    yield f"#\n# {_columns('', '', '', '', '')}           out-of-place                       in-place          "
    yield f"# {_columns('size', 'count', 'type', 'redop', 'root')}{_halves(*COLUMNS)} "
    yield f"# {_columns('(B)', '(elements)', '', '', '')}{_halves(*UNITS)} "


def _columns(size: str, count: str, dtype: str, op: str, root: str) -> str:
    return f"{size:>10}  {count:>12}  {dtype:>8}  {op:>6}  {root:>6}"


def _halves(*texts: str) -> str:
    return "".join(f"  {text:>{6 + (nth % 4 == 0)}}" for nth, text in enumerate(texts))


def _line(halves: Sequence[Row | None], root: int) -> str:
    row = next(half for half in halves if half is not None)
    op = row["op"] if row["collective"] in REDUCING else "none"
    dtype = TYPES.get(row["dtype"]) or str(row["dtype"])
    texts = [text for half in halves for text in (_numbers(half) if half else ["N/A"] * 4)]
    return f"  {_columns(row['bytes'], row['count'], dtype, op, str(root))}{_halves(*texts)}"


def _numbers(row: Row) -> list[str]:
    return [_fitting(row["median_us"], 7), _fitting(row["algbw"], 6), _fitting(row["busbw"], 6), f"{row['wrong']:g}"]


def _fitting(value: float, width: int) -> str:
    """Return a number with as many of two digits after the point as fit.

    >>> _fitting(3.14159, 7), _fitting(12345.678, 7), _fitting(1234567.8, 7), _fitting(123456789.0, 7)
    ('3.14', '12345.7', '1234568', '1.2e+08')
    """
    texts = (f"{value:.{digits}f}" for digits in (2, 1, 0))
    return next((text for text in texts if len(text) <= width), f"{value:.1e}")


def _footer(rows: Sequence[Row], program: str) -> Iterator[str]:
    wrong = sum(row["wrong"] for row in rows)
    yield f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}"
    yield f"# Avg bus bandwidth    : {sum(row['busbw'] for row in rows) / len(rows):g} "
    yield f"#\n# Collective test concluded: {program}"

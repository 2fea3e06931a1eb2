"""Two runs beside each other: the ratio of their medians at every point that both have, with its interval.

A point is a collective, a number of ranks, a back end, an algorithm as it was asked for, and a
size. Each median has an interval from order statistics (`collectives.statistics`), and the ratio's
goes from the least to the most that two such intervals allow. If both hold with 95%, both together
hold with at least 90%. Two medians differ where their intervals do not overlap, that is, where the
ratio's interval does not contain 1. T. Hoefler and R. Belli compare times without a known
distribution so ("Scientific Benchmarking of Parallel Computing Systems", SC 2015). An interval
shows the spread within one launch, and not the spread between launches.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby
from textwrap import fill
from typing import Any

from collectives.algorithms import NEUTRAL, Mark
from collectives.backends import BACKENDS, backend
from collectives.bench.runs import Run
from collectives.bench.settings import Row
from collectives.statistics import FEWEST, covered, percent, ratio
from collectives.units import duration, format_bytes, many

POINT = ("collective", "ranks", "backend", "algorithm", "bytes")

# Settings that belong to a point if a run has the same one in two ways. Otherwise `differences`
# names them.
SETTINGS = (
    "experiment",
    "where",
    "dtype",
    "op",
    "in_place",
    "timing",
    "persistent",
    "launch",
    "slow_host",
    "factor",
)

# What else may differ between runs, and changes their times.
PERFORMED = ("transport", "executor", "device")

# What a record has, but the table shows, or rows have.
SHOWN = {
    *SETTINGS,
    *PERFORMED,
    "collective",
    "ranks",
    "backends",
    "algorithms",
    "bytes",
    "repetitions",
}
SHOWN |= {"timeout", "rank", "host", "set"}

WIDTH = 80


def compare(
    first: Sequence[Row], second: Sequence[Row], names: tuple[str, str] = ("A", "B")
) -> list[Row]:
    """Return a row for each point of either run: both times, their ratio, its interval, and in words the result.

    ``ratio`` is the second run's median over the first's, from ``low`` to ``high``; it is None
    where one run has no time. ``result`` then says why: "only in A", "failed in B" or "wrong in B".
    Otherwise it is "slower" or "faster", which the second run is, "no difference" where the
    intervals overlap, or "too few samples" below five. Raises ValueError if a run has two rows of
    one point.

    >>> def row(bytes, *samples):
    ...     low, median, high = sorted(samples)[0], sorted(samples)[len(samples) // 2], sorted(samples)[-1]
    ...     point = {"collective": "all_reduce", "ranks": 4, "backend": "p2p", "algorithm": "ring", "bytes": bytes}
    ...     return point | {"samples": samples, "low_us": low, "median_us": median, "high_us": high}
    >>> one, other = [row(4, 9, 9, 10, 11, 11), row(8, 9, 9, 10, 11, 11)], [row(4, 19, 20, 20, 21, 22)]
    >>> [(each["bytes"], each["ratio"], each["result"]) for each in compare(one, other)]
    [(4, 2.0, 'slower'), (8, None, 'only in A')]
    """
    columns = [*POINT, *_distinguishing(first, second)]
    runs = [
        _by_point(rows, columns, name) for rows, name in zip((first, second), names, strict=True)
    ]
    points = _in_order(dict.fromkeys([*runs[0], *runs[1]]), columns)
    return [
        dict(zip(columns, point, strict=True))
        | _beside(runs[0].get(point), runs[1].get(point), names)
        for point in points
    ]


def _beside(one: Row | None, other: Row | None, names: tuple[str, str]) -> Row:
    return _times("first", one) | _times("second", other) | _judge(one, other, names)


def _distinguishing(*runs: Sequence[Row]) -> list[str]:
    """Return the settings of which a run has several at the same point."""
    return [name for name in SETTINGS if any(_varies(rows, name) for rows in runs)]


def _varies(rows: Sequence[Row], name: str) -> bool:
    values = defaultdict(set)
    for row in rows:
        if row.get(name) is not None:
            values[tuple(row[column] for column in POINT)].add(row[name])
    return any(len(several) > 1 for several in values.values())


def _by_point(rows: Sequence[Row], columns: Sequence[str], name: str) -> dict[tuple[Any, ...], Row]:
    by_point = {tuple(row.get(column) for column in columns): row for row in rows}
    if len(by_point) < len(rows):
        counts = Counter(tuple(row.get(column) for column in columns) for row in rows)
        point, count = counts.most_common(1)[0]
        raise ValueError(
            f"rows of {name} for {', '.join(map(str, point))}: got {count}, expected one"
        )
    return by_point


def _in_order(points: Iterable[tuple[Any, ...]], columns: Sequence[str]) -> list[tuple[Any, ...]]:
    """Return points by collective, ranks and settings, then series as they came, then sizes."""
    of_series = columns.index("bytes")
    series = {point[:of_series]: None for point in points}
    turns = {key: turn for turn, key in enumerate(series)}

    def place(point: tuple[Any, ...]) -> tuple[Any, ...]:
        settings = tuple(map(str, point[of_series + 1 :]))
        return point[0], point[1], settings, turns[point[:of_series]], point[of_series]

    return sorted(points, key=place)


def _times(which: str, row: Row | None) -> Row:
    times = {
        f"{which}_{name}": row and row.get(name) for name in ("median_us", "low_us", "high_us")
    }
    return times | {f"{which}_samples": len(row["samples"]) if row else 0}


def _judge(one: Row | None, other: Row | None, names: tuple[str, str]) -> Row:
    """Return the ratio of two rows of one point, its interval, and the result in words."""
    empty = {"ratio": None, "low": None, "high": None}
    if one is None or other is None:
        return empty | {"result": f"only in {names[one is None]}"}
    flaws = []
    for row, name in zip((one, other), names, strict=True):
        flaw = _flaw(row)
        if flaw:
            flaws.append(f"{flaw} in {name}")
    if flaws:
        return empty | {"result": ", ".join(flaws)}
    low, middle, high = ratio(_interval(other), _interval(one))
    result = "slower" if low > 1 else "faster" if high < 1 else "no difference"
    if min(len(one["samples"]), len(other["samples"])) < FEWEST:
        result = "too few samples"
    return {"ratio": middle, "low": low, "high": high, "result": result}


def _flaw(row: Row) -> str | None:
    """Return why a row's time cannot be compared; None if it can."""
    if row.get("error"):
        return "failed"
    if row.get("wrong"):
        return "wrong"
    return None if row["samples"] and (row.get("low_us") or 0) > 0 else "no time"


def _interval(row: Row) -> tuple[float, float, float]:
    return row["low_us"], row["median_us"], row["high_us"]


def differences(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Return what differs between runs, by name: settings, hosts, machine, versions and variables.

    Each has a text for each run, "-" where it has none. Of a run without a record only the rows are
    compared.

    >>> row = {"collective": "all_reduce", "where": "loopback", "samples": [1.0]}
    >>> record = {"environment": [{"torch": "2.13.0", "cores": 2}]}
    >>> newer = {"environment": [{"torch": "2.14.0", "cores": 2}]}
    >>> differences([Run("A", [row], record, []), Run("B", [row | {"where": "slurm"}], newer, [])])
    {'where': ['loopback', 'slurm'], 'torch': ['2.13.0', '2.14.0']}
    """
    known = [_facts(run) for run in runs]
    absent = ["-" if run.record else "unknown" for run in runs]
    names = dict.fromkeys(chain.from_iterable(known))
    found = {}
    for name in names:
        texts = [facts.get(name, missing) for facts, missing in zip(known, absent, strict=True)]
        if len(set(texts) - {"unknown"}) > 1:
            found[name] = texts
    return found


def _facts(run: Run) -> dict[str, str]:
    """Return what a run was measured with; of several values all."""
    facts: dict[str, dict[str, None]] = defaultdict(dict)
    for row in run.rows:
        facts["samples"][str(len(row["samples"]))] = None
        for name in (*SETTINGS[1:], *PERFORMED):  # a run's name is shown above
            if row.get(name) is not None:
                facts[name][str(row[name])] = None
    for name, value in _of_record(run.record):
        facts[name][str(value)] = None
    return {name: ", ".join(sorted(values)) for name, values in facts.items()}


def _of_record(record: Row) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of a record: settings, environment, variables and hosts."""
    parts = [*record.get("settings", []), *record.get("environment", [])]
    parts += [
        record.get("variables", {}),
        *(each.get("set", {}) for each in record.get("environment", [])),
    ]
    told = list(chain.from_iterable(part.items() for part in parts))
    yield from ((name, value) for name, value in told if name not in SHOWN and value is not None)
    yield from (("hosts", host) for host in record.get("hosts", []))


def lines(runs: Sequence[Run]) -> Iterator[str]:
    """Yield the lines of the comparison of each further run with the first, at most 80 columns wide."""
    names = letters(runs)
    for name, run in zip(names, runs, strict=True):
        told = ", ".join(
            filter(None, [many(len(run.rows), "row"), run.record.get("date") or "no record"])
        )
        yield f"{name}  {run.name} ({told})"
        if run.skipped:
            yield _wrapped(
                f"   without rows of collectives, so not compared: {', '.join(run.skipped)}"
            )
    for what, texts in differences(runs).items():
        told = "; ".join(f"{name} {text}" for name, text in zip(names, texts, strict=True))
        yield _wrapped(f"   {what}: {told}")
    for name, run in zip(names[1:], runs[1:], strict=True):
        compared = compare(runs[0].rows, run.rows, (names[0], name))
        yield from _section(compared, names[0], name)


def _section(compared: Sequence[Row], first: str, second: str) -> Iterator[str]:
    """Yield the lines of one pair of runs: a heading for each series, a line for each size, and how many of each."""
    yield ""
    yield f"{'size':>10} {first:>10} {second:>10} {f'{second} over {first}':>12} {'interval':>16}"
    for title, series in groupby(compared, series_of):
        rows = [*series]
        alike = {row["result"] for row in rows}
        if len(alike) == 1 and rows[0]["ratio"] is None:
            yield _wrapped(
                f"{title}: {alike.pop()} ({', '.join(format_bytes(row['bytes']) for row in rows)})"
            )
            continue
        yield title
        yield from map(_line, rows)
    yield ""
    counts = Counter(row["result"] for row in compared)
    yield _wrapped(
        f"{second} against {first}: {', '.join(f'{count} {result}' for result, count in counts.items())}."
    )
    sure = confidence(compared)
    if sure:
        yield _wrapped(
            f"An interval that contains 1 shows no difference. It holds for these two launches, with at least {sure} "
            f"confidence; other launches of the same command may differ by more."
        )


def series_of(row: Row) -> str:
    """Return the heading of a series: where it belongs, and its algorithm with its back end."""
    return f"{setting_of(row)}, {label(row)}"


def setting_of(row: Row) -> str:
    """Return the collective and the number of ranks of a row, and settings of which a run has several.

    >>> setting_of({"collective": "all_reduce", "ranks": 4, "persistent": True})
    'all_reduce on 4 ranks, persistent True'
    """
    settings = "".join(f", {name} {row[name]}" for name in SETTINGS if name in row)
    return f"{row['collective']} on {many(row['ranks'], 'rank')}{settings}"


def label(row: Row) -> str:
    """Return an algorithm with its back end.

    >>> label({"algorithm": "ring", "backend": "p2p"}), label({"algorithm": "default", "backend": "gloo"})
    ('ring (p2p)', 'gloo')
    """
    return (
        str(row["backend"])
        if row["algorithm"] == "default"
        else f"{row['algorithm']} ({row['backend']})"
    )


def look(row: Row) -> Mark:
    """Return the colour and marker of a row's algorithm, or of its back end where no algorithm was asked for."""
    from collectives.figures.style import mark  # matplotlib, which a table does not need

    if row["algorithm"] not in ("auto", "default"):
        return mark(row["algorithm"])
    return backend(row["backend"]).mark if row["backend"] in BACKENDS else NEUTRAL


def _line(row: Row) -> str:
    first, second = (
        duration(us * 1e-6) if us else "-"
        for us in (row["first_median_us"], row["second_median_us"])
    )
    ratio = factor(row["ratio"]) if row["ratio"] else "-"
    interval = f"{factor(row['low'])} – {factor(row['high'])}" if row["ratio"] else "-"
    return f"{format_bytes(row['bytes']):>10} {first:>10} {second:>10} {ratio:>12} {interval:>16}  {row['result']}"


def factor(ratio: float) -> str:
    """Return a ratio as people read it.

    >>> factor(0.984), factor(0.0123), factor(204.0)
    ('0.98', '0.012', '2e+02')
    """
    return f"{ratio:.2f}" if 0.1 <= ratio < 100 else f"{ratio:.2g}"


def confidence(compared: Sequence[Row]) -> str:
    """Return the least confidence of the ratios' intervals, in per cent.

    Empty where there are none.

    Each of two intervals misses with the probability 1 minus its confidence, and both together with
    at most the sum.

    >>> confidence([{"ratio": 1.0, "first_samples": 20, "second_samples": 5}])
    '89.61%'
    """
    rows = [row for row in compared if row["ratio"] is not None]
    sure = [covered(row["first_samples"]) + covered(row["second_samples"]) - 1 for row in rows]
    return percent(max(0.0, min(sure))) if sure else ""


def letters(runs: Sequence[Run]) -> list[str]:
    """Return the runs' names in tables, A to Z."""
    return [chr(ord("A") + turn) for turn in range(len(runs))]


def _wrapped(text: str) -> str:
    return fill(text, WIDTH, subsequent_indent="     ")

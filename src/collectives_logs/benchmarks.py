"""Findings in results of benchmarks: each table's facts and faults, and the tables that differ from the others."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import reduce
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from collectives.core.bounds import busbw, lower_bound
from collectives.core.contracts import CONTRACTS
from collectives.units import duration, format_bytes, many
from collectives_logs.benchmark_tables import (
    MAX_HOSTS,
    MAX_ROW_BYTES,
    MAX_TABLES,
    PROGRAM,
    BenchmarkTable,
    Floats,
    has_rows,
    has_table,
    is_report,
    printed_tables,
    report_tables,
    row_tables,
)
from collectives_logs.finding import MAX_NAMED, Finding, collective_of, finding, named
from collectives_logs.sources import LogError, Place, lines_of, start_of

if TYPE_CHECKING:
    from collectives.figures.style import Picture

# NCCL changes from LL to LL128 and to Simple at sizes in this range: by machine, ranks and version.
PROTOCOLS_CHANGE = (1 << 12, 1 << 28)
# A change of protocol does not make a size slower by more; and what is made of sends and receives
# has one protocol.
MAX_FALL, OF_PAIRS = 8.0, ("all_to_all", "send and receive", "gather", "scatter")

# Times that scatter more than this from size to size say little about one size.
NOISY = 0.12

# A fit needs this many sizes, and this factor between the least and the largest.
LEAST_SIZES, LEAST_SPAN = 4, 8


def begins(start: bytes) -> bool:
    """Return True if a file that begins so has results of nccl-tests, rccl-tests or `collectives bench --json`."""
    return is_report(start) or has_rows(start) or has_table(start)


def findings_of(paths: Sequence[Path]) -> Iterator[Finding]:
    """Yield the findings in the tables that these files have together.

    Raises OSError, and LogError if no file has a table.
    """
    found = list(islice(chain.from_iterable(map(tables_of, paths)), MAX_TABLES))
    if not found:
        files = named([str(path) for path in paths])
        raise LogError(f"{files}: got no rows of a benchmark, expected size, time and rates")
    return findings(found)


def tables_of(path: Path) -> Iterator[BenchmarkTable]:
    """Return the tables of a file; its name may have the collective's. Raises OSError."""
    start = start_of(path)
    hints = [collective_of(name) for name in re.findall(PROGRAM, path.name)[:1]]
    if is_report(start):
        return report_tables(path, hints)
    if has_rows(start):
        return row_tables(lines_of([path], MAX_ROW_BYTES))
    return printed_tables(lines_of([path]), hints)


def findings(tables: Sequence[BenchmarkTable]) -> Iterator[Finding]:
    """Yield facts of the first tables, then what is wrong with any.

    Of several, the findings say which.
    """
    for table in tables[:MAX_NAMED]:
        yield from _facts(table)
    unnamed = len(tables) - MAX_NAMED
    if unnamed > 0:
        more = many(unnamed, "more table")
        yield Finding("table", f"{more}; what is wrong with them follows, too")
    count: Counter[str] = Counter()
    for one in chain(_titled_faults(tables), differences(tables)):
        count[one.kind] += 1
        if count[one.kind] <= MAX_NAMED:
            yield one
    for kind, times in count.items():
        if times > MAX_NAMED:
            more = many(times - MAX_NAMED, "more table")
            yield Finding(kind, f"{more} with such a finding")


def _titled_faults(tables: Sequence[BenchmarkTable]) -> Iterator[Finding]:
    """Yield what is wrong with each table; of several, each fault begins with its table's title."""
    for table in tables:
        for fault in _faults(table):
            if len(tables) > 1:
                yield fault._replace(found=f"{table.title}: {fault.found}")
            else:
                yield fault


def _facts(table: BenchmarkTable) -> Iterator[Finding]:
    """Yield what was measured, the line that fits its times, and where the rate comes near its peak."""
    nbytes, at = table.nbytes, (table.head.at,)
    yield Finding("table", f"{_described(table)}: {_sizes(nbytes)}", at=at)
    if table.ranks == 1 or len(nbytes) < LEAST_SIZES or nbytes[-1] < LEAST_SPAN * nbytes[0]:
        return
    latency, per_byte, error = fit(nbytes, table.times[0])
    speed = "no cost per byte"
    if per_byte > 0:
        speed = f"{table.factor / per_byte / 1e9:.3g} GB/s"
    found = f"latency {duration(latency)} and busbw {speed}"
    found += f", fitted over {_sizes(nbytes)}, median error {error:.0%}"
    line = table.factor * nbytes / (latency + per_byte * nbytes) / 1e9
    yield Finding("fit", found, at=at, draw=lambda: _curve(nbytes, table.busbw, line))
    yield _knee(table, latency, per_byte)


def _described(table: BenchmarkTable) -> str:
    """Return the collective, its ranks, hosts, devices and label, as far as they are known."""
    text = f"{table.collective or 'a collective'} on "
    text += many(table.ranks, "rank") if table.ranks else "ranks that are not named"
    if table.hosts:
        text += f" of {named(table.hosts, MAX_HOSTS)}"
    if table.devices:
        text += f" ({named(table.devices, MAX_HOSTS)})"
    return f"{text}, {table.label}" if table.label else text


def _sizes(nbytes: Floats) -> str:
    """Return how many sizes there are, with the first and the last.

    >>> _sizes(np.array([8.0, 16.0])), _sizes(np.array([8.0])), _sizes(np.array([]))
    ('2 sizes, 8 B to 16 B', '1 size, 8 B', 'no size')
    """
    if not len(nbytes):
        return "no size"
    first, last = format_bytes(nbytes[0]), format_bytes(nbytes[-1])
    span = first if first == last else f"{first} to {last}"
    return f"{many(len(nbytes), 'size')}, {span}"


def _knee(table: BenchmarkTable, latency: float, per_byte: float) -> Finding:
    """Return from which sizes on the rate is half of its peak and nearly all of it."""
    nbytes, rate = table.nbytes, table.busbw
    top = int(rate.argmax())
    half = format_bytes(nbytes[(rate >= 0.5 * rate[top]).argmax()])
    most = format_bytes(nbytes[(rate >= 0.9 * rate[top]).argmax()])
    knee = "no knee among these sizes"
    if nbytes[0] * per_byte < latency < nbytes[-1] * per_byte:
        knee = f"latency and bytes cost alike at {_about(latency / per_byte)}"
    peak = f"peak busbw {rate[top]:.3g} GB/s at {format_bytes(nbytes[top])}"
    found = f"{peak}, half of it from {half}, 90% from {most}; {knee}"
    return Finding("knee", found, at=(table.places[top],))


def _curve(nbytes: Floats, busbw: Floats, fitted: Floats) -> Picture:
    from collectives_logs.report import curve

    return curve(nbytes, busbw, fitted)


def _about(nbytes: float) -> str:
    """Return a size to two digits.

    >>> _about(4_600_000), _about(900)
    ('4.4 MiB', '900 B')
    """
    number, unit = format_bytes(nbytes).split()
    return f"{float(f'{float(number):.2g}'):g} {unit}"


def _faults(table: BenchmarkTable) -> Iterator[Finding]:
    """Yield what is wrong with a table, beside others or alone."""
    yield from _ended(table)
    if not len(table.nbytes):
        return
    yield from _wrong(table)
    if table.ranks == 1:
        yield finding("benchmarks.one rank", table.head.at)
        return
    noise = noise_of(table.nbytes, table.times)
    if noise > NOISY:
        again = table.again(table.nbytes[0], table.nbytes[-1])
        yield finding("benchmarks.noise", table.head.at, noise=noise, again=again)
    dips, disturbed = odd(table.nbytes, table.times)
    for dip in dips:
        yield _dip(table, dip)
    if disturbed:
        yield _disturbed(table, disturbed)
    if len(table.times) > 1:
        yield from _in_place(table)
    yield from against_preset(table)


def _in_place(table: BenchmarkTable) -> Iterator[Finding]:
    """Yield sizes at which the calls in place take another time."""
    out_of_place, in_place = table.times
    for start, end, factor in unlike(out_of_place, in_place):
        first, last = table.nbytes[start], table.nbytes[end]
        yield finding(
            "benchmarks.in place",
            *_places(table, (start, end)),
            factor=factor,
            sizes=f"{format_bytes(first)} to {format_bytes(last)}",
            again=table.again(first, last),
        )


def _ended(table: BenchmarkTable) -> Iterator[Finding]:
    """Yield a run that failed, or one without the sizes up to the last that was asked for."""
    head, nbytes = table.head, table.nbytes
    last, following, at = "before the first size", 8.0, head.at
    if len(nbytes):
        last, at = f"after {format_bytes(nbytes[-1])}", table.places[-1]
        following = 2 * nbytes[-1]
    if len(nbytes) > 1:
        following = nbytes[-1] / nbytes[-2] * nbytes[-1]
    if head.failure:
        at, text = head.failure
        yield finding("benchmarks.failed", at, found=text, last=last)
    elif not head.is_whole and following <= head.last:
        again = table.again(following, following)
        expected = format_bytes(head.last)
        yield finding("benchmarks.ends early", at, last=last, expected=expected, again=again)


def _wrong(table: BenchmarkTable) -> Iterator[Finding]:
    """Yield a finding if results were wrong: in rows, or only by the count at the table's end."""
    wrong_rows = np.flatnonzero(table.wrong > 0)
    if len(wrong_rows):
        nbytes = table.nbytes[wrong_rows]
        elements = int(min(table.wrong[wrong_rows].sum(), 1e18))  # a table may say inf
        sizes = named([format_bytes(size) for size in nbytes])
        found = f"{many(elements, 'wrong element')} at {sizes}"
    elif table.head.bad:
        nbytes = table.nbytes  # nothing says at which sizes
        found = f"{many(table.head.bad, 'value')} out of bounds"
    else:
        return
    places = _places(table, wrong_rows) or (table.head.at,)
    again = table.again(nbytes[0], nbytes[-1])
    yield finding("benchmarks.wrong", *places, found=found, again=again)


def _places(table: BenchmarkTable, at: Iterable[int]) -> tuple[Place, ...]:
    return tuple(table.places[i] for i in islice(at, MAX_NAMED))


def _dip(table: BenchmarkTable, dip: Dip) -> Finding:
    """Return a fall of the rate: where it begins and ends, and whether a protocol may change there."""
    nbytes, rate = table.nbytes, table.busbw
    until, end = nbytes[-1], "does not recover"
    if dip.after < len(nbytes):
        until = nbytes[dip.after]
        end = f"recovers at {format_bytes(until)}"
    least, most = PROTOCOLS_CHANGE
    is_small = rate[dip.before] <= MAX_FALL * rate[dip.lowest] and table.collective not in OF_PAIRS
    is_protocol = is_small and least <= nbytes[dip.before] <= most and not table.head.command
    return finding(
        "benchmarks.dip at a protocol's sizes" if is_protocol else "benchmarks.dip",
        *_places(table, [dip.before, dip.lowest]),
        before=f"{rate[dip.before]:.3g} GB/s at {format_bytes(nbytes[dip.before])}",
        lowest=f"{rate[dip.lowest]:.3g} GB/s at {format_bytes(nbytes[dip.lowest])}",
        end=end,
        again=table.again(nbytes[dip.before], until),
    )


def _disturbed(table: BenchmarkTable, at: list[int]) -> Finding:
    """Return sizes that are no fault: something else ran then, or the first one pays for what is set up late."""
    first = duration(table.times[0, at[0]])
    if len(table.times) > 1:
        first += f" out of place, {duration(table.times[1, at[0]])} in place"
    if len(at) > 1:
        first += ", the first"
    return finding(
        "benchmarks.disturbed",
        *_places(table, at),
        sizes=named([format_bytes(nbytes) for nbytes in table.nbytes[at]]),
        times=first,
        how="with more warm-ups (-w)" if at == [0] else "and see whether it repeats",
        again=table.again(table.nbytes[max(at[0] - 1, 0)], table.nbytes[at[-1]]),
    )


# busbw that falls by more between two sizes is a dip; two columns that differ by more are unlike.
FALL = 0.15

# A time above the line between its neighbours by this factor, or above the next size's by the
# other, was disturbed.
ABOVE_LINE, ABOVE_NEXT = 1.5, 1.25

# How many points decide a fit: each pair of them gives a line, and the best one is taken.
MAX_POINTS = 64

# Points that noise shows in, and how many times the noise a deviation must be to count.
LEAST_POINTS, TIMES_NOISE = 7, 6


def fit(nbytes: Floats, seconds: Floats) -> tuple[float, float, float]:
    """Return latency in seconds, seconds per byte and median relative error of the line that fits best.

    The sum of relative errors is least, which a few disturbed points do not change. Such a line
    goes through two of the points, or through one and has no latency or no cost per byte. Takes
    time and memory O(MAX_POINTS^3).

    >>> latency, per_byte, _ = fit(np.array([1e3, 1e4, 1e5, 1e6]), np.array([11e-6, 20e-6, 110e-6, 5.0]))
    >>> round(latency * 1e6, 6), round(per_byte * 1e9, 6)
    (10.0, 1.0)
    """
    some = np.unique(np.linspace(0, len(nbytes) - 1, min(len(nbytes), MAX_POINTS)).astype(int))
    n, t = nbytes[some], seconds[some]
    i, j = np.triu_indices(len(n), 1)
    slope = (t[j] - t[i]) / (n[j] - n[i])
    per_byte = np.concatenate([slope, t / n, np.zeros(len(n))])
    latency = np.concatenate([t[i] - slope * n[i], np.zeros(len(n)), t])
    valid = (per_byte >= 0) & (latency >= 0)
    per_byte, latency = per_byte[valid], latency[valid]
    off = np.abs((latency[:, None] + per_byte[:, None] * n) / t - 1)
    best = int(off.sum(axis=1).argmin())
    return float(latency[best]), float(per_byte[best]), float(np.median(off[best]))


def noise_of(nbytes: Floats, times: Floats) -> float:
    """Return how far times scatter round a smooth curve: a robust relative standard deviation, 0 for few points.

    Of two columns, what both show is no noise, and a difference between two smooth curves is none,
    either.

    >>> n = 2.0 ** np.arange(10)
    >>> round(noise_of(n, np.array([1 + n])), 3), noise_of(n, np.array([1 + n, 3 + 3 * n]))
    (0.003, 0.0)
    """
    if len(nbytes) < LEAST_POINTS:
        return 0.0
    # A bend of the curve moves neighbours alike, and noise does not: differences of what lies side
    # by side remain. The variance of such a difference is 5 times a time's: of weights 1/2, -3/2,
    # 3/2 and -1/2.
    scatter = [_deviation(off) / 5**0.5 for off in np.diff(_above_line(nbytes, times)[:, 1:-1])]
    if len(times) > 1:
        scatter.append(_deviation(np.log(times[1] / times[0])) / 2**0.5)
    return min(scatter)


def _deviation(values: Floats) -> float:
    return float(np.median(np.abs(values - np.median(values)))) * 1.4826


def _above_line(nbytes: Floats, times: Floats) -> Floats:
    """Return the log of each time over that on the line between its neighbours, both logarithmic.

    0 at the ends.
    """
    x, y = np.log(nbytes), np.log(times)
    found = np.zeros_like(y)
    share = (x[1:-1] - x[:-2]) / (x[2:] - x[:-2])
    found[:, 1:-1] = y[:, 1:-1] - y[:, :-2] - share * (y[:, 2:] - y[:, :-2])
    return found


class Dip(NamedTuple):
    """Positions of sizes: the last before a fall, the lowest, and the first that recovered, or one past the last."""

    before: int
    lowest: int
    after: int


def dips(rate: Floats, noise_of: float = 0.0) -> list[Dip]:
    """Return where the rate falls by more than FALL from one size to the next, until it is what it was before.

    >>> dips(np.array([5.0, 3.0, 4.0, 9.0, 2.0]))
    [Dip(before=0, lowest=1, after=3), Dip(before=3, lowest=4, after=5)]
    """
    least = max(-np.log(1 - FALL), TIMES_NOISE * noise_of)
    found, i = [], 0
    while i + 1 < len(rate):
        after = i + 1
        if np.log(rate[i] / rate[i + 1]) > least:
            is_back = np.append(rate[i + 1 :] >= 0.95 * rate[i], True)
            after += int(is_back.argmax())
            found.append(Dip(i, i + 1 + int(rate[i + 1 : after].argmin()), after))
        i = after
    return found


def odd(nbytes: Floats, times: Floats) -> tuple[list[Dip], list[int]]:
    """Return dips that all columns show, and positions that were disturbed.

    What belongs to the size, such as a change of protocol, shows in each column. What shows in one
    of two does not. In both, one size alone was disturbed if its time is above the next size's.

    >>> odd(2.0 ** np.arange(5), np.array([[1.0, 1.1, 4.0, 1.4, 1.7], [1.0, 1.2, 3.0, 1.4, 1.8]]))
    ([], [2])
    """
    spread, rates = noise_of(nbytes, times), nbytes / times
    over_next = np.log(times / np.roll(times, -1, axis=1))
    tops = over_next > max(np.log(ABOVE_NEXT), TIMES_NOISE * spread)
    tops[:, -1] = False  # it has no next one
    above = _above_line(nbytes, times) > max(np.log(ABOVE_LINE), TIMES_NOISE * spread)
    in_one_column = above.any(axis=0) & ~above.all(axis=0)
    disturbed = tops.any(axis=0) | in_one_column
    for rate in rates:
        for dip in dips(rate, spread):
            disturbed[dip.lowest] = True
    real = []
    for dip in dips(rates[0], spread):
        is_alone = dip.after == dip.before + 2 and tops[:, dip.lowest].any()
        falls_too = rates[:, dip.before + 1] < (1 - FALL / 2) * rates[:, dip.before]
        if not is_alone and falls_too.all():
            real.append(dip)
            disturbed[dip.before : dip.after] = False
    return real, np.flatnonzero(disturbed).tolist()


def unlike(first: Floats, second: Floats) -> list[tuple[int, int, float]]:
    """Return where two columns differ by more than FALL at almost all sizes: of the smaller half, the larger, or both.

    The first and the last position, and by what factor the second column takes longer there.

    >>> unlike(np.ones(8), np.array([1, 1, 1, 1, 2, 2, 2, 2.0]))
    [(4, 7, 2.0)]
    """
    half, different = len(first) // 2, []
    for start, end in (0, half), (half, len(first)):
        off = np.log(second[start:end] / first[start:end])
        if len(off) < 3:
            continue
        middle = float(np.median(off))
        on_same_side = off * np.sign(middle) > np.log1p(FALL / 2)
        if abs(middle) > np.log1p(FALL) and np.mean(on_same_side) >= 0.8:
            different.append((start, end - 1, float(np.exp(middle))))
    if len(different) == 2 and (different[0][2] > 1) == (different[1][2] > 1):
        return [(0, len(first) - 1, float(np.median(second / first)))]
    return different


# A rate below this share of the others' median, and a latency above this factor, are another one's.
LOW_RATE, HIGH_LATENCY = 0.7, 1.5

# A link at half rate gives such a share of what is possible, or of what others reach.
HALF = (0.45, 0.6)

# How many of the smallest sizes say what the latency is, and up to which size.
SMALLEST, SMALL = 5, 1 << 14

# From this size on, a peak is one of bytes and not of latencies.
LARGE = 1 << 26

# Devices and the preset of a node with them. PCIe cards have other links.
PRESETS = (
    (re.compile(r"H100(?!.*(PCIe|NVL))"), "dgx-h100"),
    (re.compile(r"A100(?!.*PCI)"), "dgx-a100"),
    (re.compile(r"V100-SXM3"), "dgx2"),
    (re.compile(r"V100-SXM2"), "dgx1"),
    (re.compile(r"MI250"), "mi250"),
)


def differences(tables: Sequence[BenchmarkTable]) -> Iterator[Finding]:
    """Yield the outliers of each group of tables that are alike: collective, label, and in one node or in several."""
    groups: dict[tuple[str, str, bool], list[BenchmarkTable]] = {}
    for table in tables:
        if len(table.nbytes) and table.ranks != 1 and table.collective:
            key = table.collective, table.label, len(table.hosts) > 1
            groups.setdefault(key, []).append(table)
    for group in groups.values():
        nbytes = reduce(np.intersect1d, [table.nbytes for table in group])
        if len(group) > 1 and len(nbytes):
            yield from _low_rates(group, nbytes)
            yield from _high_latencies(group, nbytes[nbytes <= SMALL][:SMALLEST])


def _low_rates(group: list[BenchmarkTable], nbytes: Floats) -> Iterator[Finding]:
    """Yield tables whose peak is far below that of the others."""
    peaks = np.array([table.busbw[np.isin(table.nbytes, nbytes)].max() for table in group])
    shares = _against_others(group, peaks)
    low = np.flatnonzero(shares < LOW_RATE).tolist()
    others = "the other table's" if len(group) == 2 else "the others' median"
    for i in low:
        found = f"peak busbw {peaks[i]:.3g} GB/s up to {format_bytes(nbytes[-1])}"
        found += f", {shares[i]:.0%} of {others}"
        is_half = HALF[0] <= shares[i] <= HALF[1]
        key = "benchmarks.half the rate" if is_half else "benchmarks.low rate"
        yield _outlier(key, found, group, low, i)


def _high_latencies(group: list[BenchmarkTable], small: Floats) -> Iterator[Finding]:
    """Yield tables whose smallest sizes take far longer than those of the others."""
    if not len(small) or len(group) < 3:
        return
    medians = [np.median(table.times[0, np.isin(table.nbytes, small)]) for table in group]
    latencies = np.array(medians)
    factors = _against_others(group, latencies)
    high = np.flatnonzero(factors > HIGH_LATENCY).tolist()
    for i in high:
        found = f"{duration(latencies[i])} at the smallest sizes"
        found += f", {factors[i]:.2g} times the others' median"
        yield _outlier("benchmarks.straggler", found, group, high, i)


def _against_others(group: list[BenchmarkTable], values: Floats) -> Floats:
    """Return each value over the median of tables with as many ranks or more, which have no reason to be better."""
    ranks = np.array([table.ranks for table in group])
    over = np.full(len(group), np.nan)
    for i, value in enumerate(values):
        is_other = np.arange(len(group)) != i
        others = values[is_other & (ranks >= ranks[i])]
        if len(others):
            over[i] = value / np.median(others)
    return over


def _outlier(key: str, found: str, group: list[BenchmarkTable], odd: list[int], i: int) -> Finding:
    """Return the finding on an odd table, with the hosts that all odd tables of its group have and no other has."""
    table, only = group[i], ""
    suspects = set.intersection(*(set(group[j].hosts) for j in odd))
    for j, other in enumerate(group):
        if j not in odd:
            suspects -= set(other.hosts)
    hosts = [host for host in table.hosts if host in suspects]
    if hosts:
        these = "these tables have" if len(odd) > 1 else "this table has"
        only = f"; only {these} {named(hosts)}"
    how = "it once more, then look at its links"
    if len(table.hosts) > 1:
        how = "each of its hosts with one that is good"
    return finding(
        key,
        table.head.at,
        found=f"{table.title}: {found}",
        only=only,
        how=how,
        again=table.again(table.nbytes[0], table.nbytes[-1]),
    )


def against_preset(table: BenchmarkTable) -> Iterator[Finding]:
    """Yield the peak as a share of what the preset allows; about half of it or less is a fault."""
    devices = " ".join(table.devices)
    presets = [preset for pattern, preset in PRESETS if pattern.search(devices)]
    is_one_node = len(table.hosts) == len(table.devices) == 1 < table.ranks
    is_large = table.collective in CONTRACTS and table.nbytes[-1] >= LARGE
    if not (presets and is_one_node and is_large):
        return
    most = 0.0
    with suppress(ModuleNotFoundError):  # reading a log needs no extra, whereas presets are YAML
        most = _most(table, presets[0])
    if not most:
        return
    top = int(table.busbw.argmax())
    share = table.busbw[top] / most
    key = "less than half of a preset"
    if share > HALF[1]:
        key = "preset"
    elif share >= HALF[0]:
        key = "half of a preset"
    yield finding(
        f"benchmarks.{key}",
        table.places[top],
        peak=table.busbw[top],
        share=share,
        most=most,
        preset=presets[0],
        size=format_bytes(table.nbytes[top]),
        host=table.hosts[0],
    )


def _most(table: BenchmarkTable, preset: str) -> float:
    """Return the busbw in GB/s that a preset allows inside a node at the largest size.

    0 if nothing says so.

    A link-by-link preset needs all ranks of its node.
    """
    from collectives.machine import machine

    on, n = machine(preset), int(table.nbytes[-1])
    if table.ranks > on.ranks_per_node or (on.links and table.ranks != on.ranks_per_node):
        return 0.0
    if on.links:
        from collectives.topology.bound import seconds

        least = seconds(table.collective, on, table.ranks, n)
    else:
        link = on.inside or on.network
        least = lower_bound(
            table.collective, table.ranks, n, link.alpha, link.beta, latency=link.latency
        )
    return busbw(table.collective, table.ranks, n, least) if least > 0 else 0.0

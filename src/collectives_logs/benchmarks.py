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
    if (more := len(tables) - MAX_NAMED) > 0:
        yield Finding("table", f"{many(more, 'more table')}; what is wrong with them follows, too")
    faults = (
        one._replace(found=f"{table.title}: {one.found}") if len(tables) > 1 else one
        for table in tables
        for one in _faults(table)
    )
    count: Counter[str] = Counter()
    for one in chain(faults, differences(tables)):
        count[one.kind] += 1
        if count[one.kind] <= MAX_NAMED:
            yield one
    for kind, times in count.items():
        if times > MAX_NAMED:
            yield Finding(kind, f"{many(times - MAX_NAMED, 'more table')} with such a finding")


def _facts(table: BenchmarkTable) -> Iterator[Finding]:
    nbytes, rate, at = table.nbytes, table.busbw, (table.head.at,)
    ranks = many(table.ranks, "rank") if table.ranks else "ranks that are not named"
    on = f" of {named(table.hosts, MAX_HOSTS)}" if table.hosts else ""
    devices = f" ({named(table.devices, MAX_HOSTS)})" if table.devices else ""
    label = f", {table.label}" if table.label else ""
    span = " to ".join(dict.fromkeys(format_bytes(size) for size in (*nbytes[:1], *nbytes[-1:])))
    sizes = f"{many(len(nbytes), 'size')}, {span}" if len(nbytes) else "no size"
    yield Finding(
        "table",
        f"{table.collective or 'a collective'} on {ranks}{on}{devices}{label}: {sizes}",
        at=at,
    )
    if table.ranks == 1 or len(nbytes) < LEAST_SIZES or nbytes[-1] < LEAST_SPAN * nbytes[0]:
        return
    latency, per_byte, error = fit(nbytes, table.times[0])
    speed = f"{table.factor / per_byte / 1e9:.3g} GB/s" if per_byte > 0 else "no cost per byte"
    over = f"fitted over {sizes}, median error {error:.0%}"
    line = table.factor * nbytes / (latency + per_byte * nbytes) / 1e9
    found = f"latency {duration(latency)} and busbw {speed}, {over}"
    yield Finding("fit", found, at=at, draw=lambda: _curve(nbytes, rate, line))
    top = int(rate.argmax())
    half, most = (
        format_bytes(nbytes[(rate >= share * rate[top]).argmax()]) for share in (0.5, 0.9)
    )
    knee = "no knee among these sizes"
    if nbytes[0] * per_byte < latency < nbytes[-1] * per_byte:
        knee = f"latency and bytes cost alike at {_about(latency / per_byte)}"
    peak = f"peak busbw {rate[top]:.3g} GB/s at {format_bytes(nbytes[top])}"
    yield Finding(
        "knee", f"{peak}, half of it from {half}, 90% from {most}; {knee}", at=(table.places[top],)
    )


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
    yield from _ended(table)
    if not len(table.nbytes):
        return
    yield from _wrong(table)
    if table.ranks == 1:
        yield finding("benchmarks.one rank", table.head.at)
        return
    noise = noise_of(table.nbytes, table.times)
    if noise > NOISY:
        yield finding(
            "benchmarks.noise",
            table.head.at,
            noise=noise,
            again=table.again(*table.nbytes[[0, -1]]),
        )
    dips, disturbed = odd(table.nbytes, table.times)
    yield from (_dip(table, dip) for dip in dips)
    if disturbed:
        yield _disturbed(table, disturbed)
    for start, end, factor in unlike(*table.times) if len(table.times) > 1 else ():
        first, last = table.nbytes[start], table.nbytes[end]
        sizes, at = f"{format_bytes(first)} to {format_bytes(last)}", _places(table, (start, end))
        yield finding(
            "benchmarks.in place", *at, factor=factor, sizes=sizes, again=table.again(first, last)
        )
    yield from against_preset(table)


def _ended(table: BenchmarkTable) -> Iterator[Finding]:
    """Yield a run that failed, or one without the sizes up to the last that was asked for."""
    head, nbytes = table.head, table.nbytes
    last = f"after {format_bytes(nbytes[-1])}" if len(nbytes) else "before the first size"
    factor = nbytes[-1] / nbytes[-2] if len(nbytes) > 1 else 2.0
    following = factor * nbytes[-1] if len(nbytes) else 8.0
    if head.failure:
        at, text = head.failure
        yield finding("benchmarks.failed", at, found=text, last=last)
    elif not head.is_whole and following <= head.last:
        at = table.places[-1] if table.places else head.at
        again = table.again(following, following)
        yield finding(
            "benchmarks.ends early", at, last=last, expected=format_bytes(head.last), again=again
        )


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
    nbytes, rate = table.nbytes, table.busbw
    before, lowest = (f"{rate[i]:.3g} GB/s at {format_bytes(nbytes[i])}" for i in dip[:2])
    until = nbytes[min(dip.after, len(nbytes) - 1)]
    end = f"recovers at {format_bytes(until)}" if dip.after < len(nbytes) else "does not recover"
    least, most = PROTOCOLS_CHANGE
    is_small = rate[dip.before] <= MAX_FALL * rate[dip.lowest] and table.collective not in OF_PAIRS
    is_protocol = is_small and least <= nbytes[dip.before] <= most and not table.head.command
    key = "benchmarks.dip at a protocol's sizes" if is_protocol else "benchmarks.dip"
    falls = {"before": before, "lowest": lowest, "end": end}
    return finding(
        key, *_places(table, dip[:2]), **falls, again=table.again(nbytes[dip.before], until)
    )


def _disturbed(table: BenchmarkTable, at: list[int]) -> Finding:
    """Return sizes that are no fault: something else ran then, or the first one pays for what is set up late."""
    times = [duration(seconds) for seconds in table.times[:, at[0]]]
    first = (
        " out of place, ".join(times)
        + " in place" * (len(times) > 1)
        + ", the first" * (len(at) > 1)
    )
    sizes = named([format_bytes(nbytes) for nbytes in table.nbytes[at]])
    again = table.again(table.nbytes[max(at[0] - 1, 0)], table.nbytes[at[-1]])
    how = "with more warm-ups (-w)" if at == [0] else "and see whether it repeats"
    return finding(
        "benchmarks.disturbed", *_places(table, at), sizes=sizes, times=first, how=how, again=again
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
    tops = np.log(times / np.roll(times, -1, axis=1)) > max(
        np.log(ABOVE_NEXT), TIMES_NOISE * spread
    )
    tops[:, -1] = False  # it has no next one
    lines = _above_line(nbytes, times) > max(np.log(ABOVE_LINE), TIMES_NOISE * spread)
    disturbed = tops.any(axis=0) | (lines.any(axis=0) & ~lines.all(axis=0))
    falls = [dips(rate, spread) for rate in rates]
    disturbed[[dip.lowest for some in falls for dip in some]] = True
    real = []
    for dip in falls[0]:
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
    half, found = len(first) // 2, []
    for some in (slice(0, half), slice(half, len(first))):
        off = np.log(second[some] / first[some])
        middle = float(np.median(off)) if len(off) >= 3 else 0.0
        if (
            abs(middle) > np.log1p(FALL)
            and np.mean(off * np.sign(middle) > np.log1p(FALL / 2)) >= 0.8
        ):
            found.append((some.start, some.stop - 1, float(np.exp(middle))))
    if len(found) == 2 and (found[0][2] > 1) == (found[1][2] > 1):
        return [(0, len(first) - 1, float(np.median(second / first)))]
    return found


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
            groups.setdefault((table.collective, table.label, len(table.hosts) > 1), []).append(
                table
            )
    for group in groups.values():
        nbytes = reduce(np.intersect1d, [table.nbytes for table in group])
        if len(group) > 1 and len(nbytes):
            yield from _low_rates(group, nbytes)
            yield from _high_latencies(group, nbytes[nbytes <= SMALL][:SMALLEST])


def _low_rates(group: list[BenchmarkTable], nbytes: Floats) -> Iterator[Finding]:
    peaks = np.array([table.busbw[np.isin(table.nbytes, nbytes)].max() for table in group])
    shares = _against_others(group, peaks)
    low = np.flatnonzero(shares < LOW_RATE).tolist()
    than = "the other table's" if len(group) == 2 else "the others' median"
    for i in low:
        found = f"peak busbw {peaks[i]:.3g} GB/s up to {format_bytes(nbytes[-1])}, {shares[i]:.0%} of {than}"
        is_half = HALF[0] <= shares[i] <= HALF[1]
        yield _outlier(
            "benchmarks.half the rate" if is_half else "benchmarks.low rate", found, group, low, i
        )


def _high_latencies(group: list[BenchmarkTable], small: Floats) -> Iterator[Finding]:
    if not len(small) or len(group) < 3:
        return
    latencies = np.array(
        [np.median(table.times[0, np.isin(table.nbytes, small)]) for table in group]
    )
    factors = _against_others(group, latencies)
    high = np.flatnonzero(factors > HIGH_LATENCY).tolist()
    for i in high:
        found = f"{duration(latencies[i])} at the smallest sizes, {factors[i]:.2g} times the others' median"
        yield _outlier("benchmarks.straggler", found, group, high, i)


def _against_others(group: list[BenchmarkTable], values: Floats) -> Floats:
    """Return each value over the median of tables with as many ranks or more, which have no reason to be better."""
    ranks = np.array([table.ranks for table in group])
    found = np.full(len(group), np.nan)
    for i, value in enumerate(values):
        others = np.delete(values, i)[np.delete(ranks, i) >= ranks[i]]
        found[i] = value / np.median(others) if len(others) else np.nan
    return found


def _outlier(key: str, found: str, group: list[BenchmarkTable], odd: list[int], i: int) -> Finding:
    """Return the finding on an odd table, with the hosts that all odd tables of its group have and no other has."""
    table, only = group[i], ""
    good = {host for j, other in enumerate(group) if j not in odd for host in other.hosts}
    hosts = [
        host
        for host in table.hosts
        if all(host in group[j].hosts for j in odd) and host not in good
    ]
    if hosts:
        only = f"; only {'these tables have' if len(odd) > 1 else 'this table has'} {named(hosts)}"
    how = (
        "each of its hosts with one that is good"
        if len(table.hosts) > 1
        else "it once more, then look at its links"
    )
    again = table.again(table.nbytes[0], table.nbytes[-1])
    return finding(
        key, table.head.at, found=f"{table.title}: {found}", only=only, how=how, again=again
    )


def against_preset(table: BenchmarkTable) -> Iterator[Finding]:
    """Yield the peak as a share of what the preset allows; about half of it or less is a fault."""
    preset = next(
        (preset for pattern, preset in PRESETS if pattern.search(" ".join(table.devices))), ""
    )
    is_one_node = len(table.hosts) == len(table.devices) == 1 < table.ranks
    can_tell = (
        preset and is_one_node and table.collective in CONTRACTS and table.nbytes[-1] >= LARGE
    )
    most = 0.0
    with suppress(ModuleNotFoundError):  # reading a log needs no extra, whereas presets are YAML
        most = _most(table, preset) if can_tell else 0.0
    if most:
        top = int(table.busbw.argmax())
        peak, share = table.busbw[top], table.busbw[top] / most
        key = (
            "preset"
            if share > HALF[1]
            else "half of a preset"
            if share >= HALF[0]
            else "less than half of a preset"
        )
        of = {
            "most": most,
            "preset": preset,
            "size": format_bytes(table.nbytes[top]),
            "host": table.hosts[0],
        }
        yield finding(f"benchmarks.{key}", table.places[top], peak=peak, share=share, **of)


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

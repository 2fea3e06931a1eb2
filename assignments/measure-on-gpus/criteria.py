"""Hidden tests: random logs and traces, whose rows and exposed times are known because they were planted."""

from itertools import chain
from typing import Any

import numpy as np

from collectives.core.contracts import CONTRACTS
from collectives_course.submission import Criterion, Submission, reading
from collectives_course.verdict import Failed

from .consistent import need_consistent

Row = dict[str, Any]
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")
LENGTH = 3000  # of a trace, in microseconds
KERNELS = (
    "ampere_sgemm_128x64_tn",
    "void at::native::vectorized_elementwise_kernel<4>",
    "multi_tensor_apply_kernel",
    "void pack_for_nccl<float>",
)
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def variant(seed: int) -> dict[str, Any]:
    """Draw how many samples a choice needs."""
    return {"samples": 5 + seed % 3}


def _rows(submission: Submission, sizes: list[int]) -> list[Row]:
    """Rows of these sizes with times drawn at random."""
    times = submission.random.uniform(5, 5000, (len(sizes), 2)).round(2)
    return [
        {
            "bytes": nbytes,
            "seconds": float(out) * 1e-6,
            "in_place": float(inside) * 1e-6,
            "wrong": 0,
        }
        for nbytes, (out, inside) in zip(sizes, times, strict=True)
    ]


def _number(value: float | None, digits: int = 2) -> str:
    """A number as a table has it; N/A for none."""
    return "N/A" if value is None else f"{value:.{digits}f}"


def _line(row: Row, wrong: tuple[str, str] = ("0", "0")) -> str:
    """A row as nccl-tests prints it; N/A for what was not measured."""
    nbytes = row["bytes"]
    text = f"{nbytes:12d}  {nbytes // 4:12d}  {'float':>8}  {'sum':>6}  {-1:6d}"
    for seconds, count in zip((row["seconds"], row["in_place"]), wrong, strict=True):
        us, rate, busbw = None, None, None
        if seconds is not None:
            us = seconds * 1e6
            rate = nbytes / seconds / 1e9
            busbw = 1.75 * rate
        text += f"  {_number(us):>9}  {_number(rate):>6}  {_number(busbw):>6}  {count:>6}"
    return text


def _log(lines: list[str]) -> str:
    """A log of nccl-tests on 8 GPUs that has these lines below its head."""
    head = [
        "# nThread 1 nGpus 8 minBytes 1024 maxBytes 268435456 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1",
    ]
    for rank in range(8):
        where = f"node1 device {rank:2d} [0x07] NVIDIA H100"
        head.append(f"#  Rank {rank:2d} Group  0 Pid   4711 on  {where}")
    titles = [
        "#                                                   out-of-place                       in-place",
        "#       size   count  type  redop  root  time  algbw  busbw  #wrong  time  algbw  busbw  #wrong",
        "#        (B)    (elements)               (us)  (GB/s)  (GB/s)       (us)  (GB/s)  (GB/s)",
    ]
    end = ["# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 70.1", "#", ""]
    return "\n".join(head + titles + lines + end)


def _need_rows(submission: Submission, lines: list[str], expected: list[Row]) -> None:
    """Raise Failed unless parse returns these rows of a log with these lines."""
    told = submission.call("parse", _log(lines))
    if not isinstance(told, list) or len(told) != len(expected):
        got = f"{len(told)} rows" if isinstance(told, list) else f"{told!r:.80}"
        raise Failed(f"parse: got {got}, expected a list of {len(expected)} rows")
    for row, wanted in zip(told, expected, strict=True):
        if not isinstance(row, dict) or set(row) != set(wanted):
            raise Failed(f"parse: got a row {row!r:.200}, expected a dict with {', '.join(wanted)}")
        for name, value in wanted.items():
            if not _is_close(row[name], value):
                what = f"parse, {wanted['bytes']:,} bytes"
                raise Failed(f"{what}: {name} is {row[name]!r:.80}, expected {value}")


def _is_close(told: Any, wanted: float | None, within: float = 1e-6) -> bool:
    """Tell if a number is the wanted one but for rounding, or both are None."""
    if wanted is None or told is None:
        return told is wanted
    return isinstance(told, int | float) and bool(abs(told - wanted) <= within * abs(wanted))


def parsed(submission: Submission) -> None:
    """A log of sizes in order, with nothing between its rows."""
    rows = _rows(submission, [1 << power for power in range(10, 29, 2)])
    _need_rows(submission, [_line(row) for row in rows], rows)


def odd_lines(submission: Submission) -> None:
    """Put lines of NCCL and comments between the rows.

    Some are not measured, not checked or wrong, in any order.
    """
    rows = _rows(submission, [4096, 4096, 1 << 20, 1024, 1 << 26, 1 << 14])
    rows[1]["in_place"] = None
    rows[3]["seconds"] = None
    counts = [("0", "N/A"), ("N/A", "N/A"), ("3", "4"), ("0", "0"), ("N/A", "2"), ("1", "0")]
    for row, wrong in zip(rows, (0, None, 7, 0, 2, 1), strict=True):
        row["wrong"] = wrong
    lines = [_line(row, wrong) for row, wrong in zip(rows, counts, strict=True)]
    between = [
        "node1:4711:4790 [3] NCCL INFO Channel 00/16 : 0 1 2 3 4 5 6 7",
        f"#{lines[0]}",
        "",
        "# 2048 512 warm-up: not counted",
        "8 GPUs",
    ]
    mixed = list(chain.from_iterable(zip(lines, [*between, ""], strict=True)))
    _need_rows(submission, mixed, sorted(rows, key=lambda row: row["bytes"]))


def bandwidth(submission: Submission) -> None:
    """Draw bytes and seconds for each collective and number of ranks."""
    random = submission.random
    for collective in COLLECTIVES:
        for p in (1, 2, 7, 8, 64, int(random.integers(9, 60))):
            nbytes = int(random.integers(1, 1 << 30))
            seconds = float(random.uniform(1e-5, 1e-2))
            told = submission.call("busbw", collective, p, nbytes, seconds)
            wanted = CONTRACTS[collective].factor(p) * nbytes / seconds / 1e9
            if not _is_close(told, wanted):
                call = f"busbw({collective}, {p}, {nbytes}, {seconds:.4g})"
                raise Failed(f"{call}: got {told!r:.80}, expected {wanted:.6g} GB/s")


def sizes_won(submission: Submission) -> None:
    """Make the first faster up to a size: it loses at the next two, and wins again.

    A sample in five is far off.
    """
    random, sizes = submission.random, [1024 * 4**power for power in range(9)]
    for wins in (3, 6, 0, len(sizes)):
        first, second = [], []
        for at, nbytes in enumerate(sizes):
            is_first = at < wins or at > wins + 1
            for rows, is_faster in ((first, is_first), (second, not is_first)):
                # Neither means nor minima tell which is faster.
                typical, outlier = (1e-5, 50.0) if is_faster else (1.2e-5, 0.02)
                noise = random.uniform(0.97, 1.03, 5)
                noise[2] = outlier
                samples = typical * 1.5**at * noise
                rows += [{"bytes": nbytes, "seconds": float(seconds)} for seconds in samples]
        # Sizes that only one has.
        second += [{"bytes": nbytes, "seconds": 1e-9} for nbytes in (1000, 3000, 1 << 30)]
        first = [first[i] for i in random.permutation(len(first))]
        second = [second[i] for i in random.permutation(len(second))]
        wanted = sizes[wins - 1] if wins else 0
        told = submission.call("faster_up_to", first, second)
        with reading("faster_up_to"):
            if told != wanted:
                expected = f"{wanted:,}: faster there and at each smaller size"
                raise Failed(f"faster_up_to: got {told!r:.80}, expected {expected}")
    _need_tie_to_end(submission, sizes)


def _need_tie_to_end(submission: Submission, sizes: list[int]) -> None:
    """At one size both take the same time, so the first is faster only up to the one before."""
    even = int(submission.random.integers(1, len(sizes) - 1))
    first, second = [], []
    for at, nbytes in enumerate(sizes):
        seconds = 1e-5 * (at + 1)
        first.append({"bytes": nbytes, "seconds": seconds})
        second.append({"bytes": nbytes, "seconds": seconds if at == even else 2 * seconds})
    told, wanted = submission.call("faster_up_to", first, second), sizes[even - 1]
    with reading("faster_up_to"):
        if told != wanted:
            expected = f"{wanted:,}: at the next size both are as fast"
            raise Failed(f"faster_up_to: got {told!r:.80}, expected {expected}")


def _event(cat: str, name: str, start: int, length: int, tid: int = 7, ph: str = "X") -> Row:
    """An event of a trace."""
    return {
        "ph": ph,
        "cat": cat,
        "name": name,
        "pid": 0,
        "tid": tid,
        "ts": 1e9 + start,
        "dur": float(length),
    }


def _spans(random: np.random.Generator, count: int, longest: int) -> list[tuple[int, int]]:
    """Starts and lengths of so many intervals, which may overlap."""
    starts = random.integers(0, LENGTH - longest, count)
    lengths = random.integers(1, longest, count)
    return list(zip(starts.tolist(), lengths.tolist(), strict=True))


def _events(cat: str, name: str, spans: list[tuple[int, int]], tid: int = 7) -> list[Row]:
    """An event of this category and name for each interval."""
    return [_event(cat, name, start, length, tid) for start, length in spans]


def _in_a_row(random: np.random.Generator, count: int) -> list[tuple[int, int]]:
    """Return spans of one stream: none overlaps another, and some touch."""
    edges = np.sort(random.choice(LENGTH, 2 * count, replace=False))
    edges[2:8:2] = edges[1:7:2]
    return [
        (int(start), int(end - start)) for start, end in zip(edges[::2], edges[1::2], strict=True)
    ]


def _marked(spans: list[tuple[int, int]]) -> Any:
    """For each microsecond, whether an interval is under way."""
    marks = np.zeros(LENGTH, bool)
    for start, length in spans:
        marks[start : start + length] = True
    return marks


def _need_exposed(
    submission: Submission, events: list[Row], talks: Any, computes: Any, what: str
) -> None:
    """Raise Failed unless exposed returns the seconds of communication beside which nothing computes."""
    events = [events[i] for i in submission.random.permutation(len(events))]
    told = submission.call("exposed", events)
    wanted = float((talks & ~computes).sum()) * 1e-6
    if not _is_close(told, wanted, 1e-6):
        whole = f"{talks.sum()} µs of communication and {computes.sum()} µs of computing"
        raise Failed(f"exposed, {what}: got {told!r:.80}, expected {wanted:.6g} s, of {whole}")


def _kernels(talks: list[tuple[int, int]], computes: list[tuple[int, int]]) -> list[Row]:
    """Kernels that communicate, on a stream of their own, and kernels that compute."""
    events = _events("kernel", NCCL, talks, tid=20)
    for number, (start, length) in enumerate(computes):
        events.append(_event("kernel", KERNELS[number % len(KERNELS)], start, length))
    return events


def streams(submission: Submission) -> None:
    """Neither kind of kernel overlaps its own."""
    random, what = submission.random, "one stream for each"
    for count in (4, 12):
        talks, computes = _in_a_row(random, count), _in_a_row(random, 2 * count)
        events = _kernels(talks, computes)
        _need_exposed(submission, events, _marked(talks), _marked(computes), what)


def overlaps(submission: Submission) -> None:
    """Let kernels of several streams overlap, in a trace that has other events, too."""
    random = submission.random
    for count in (5, 20):
        talks, computes = _spans(random, count, 300), _spans(random, count, 200)
        talks += [(start + length // 4, length // 2) for start, length in talks[:3]]
        computes += [(start + length // 4, length // 2) for start, length in computes[:3]]
        events = _kernels(talks, computes)
        for cat, name in (
            ("gpu_memcpy", "Memcpy HtoD"),
            ("cpu_op", "aten::mm"),
            ("gpu_user_annotation", "nccl:all_reduce"),
            ("user_annotation", "gloo:all_reduce"),
        ):
            events += _events(cat, name, _spans(random, 9, 300))
        of_process = {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "ts": 0.0}
        events.append({**of_process, "args": {"name": "python"}})
        events.append(_event("kernel", KERNELS[0], 0, LENGTH, ph="B"))
        _need_exposed(submission, events, _marked(talks), _marked(computes), "several streams")
    spans = _spans(random, 4, 500)
    marks, nothing = _marked(spans), _marked([])
    _need_exposed(submission, _kernels(spans, []), marks, nothing, "no computing")
    _need_exposed(submission, _kernels([], spans), nothing, marks, "no communication")


def on_cpu(submission: Submission) -> None:
    """Gloo's calls count as communication, and ATen's operators as computing."""
    random, what = submission.random, "a trace of a processor"
    for count in (4, 16):
        talks, computes = _spans(random, count, 300), _spans(random, 2 * count, 90)
        events = _events("user_annotation", "gloo:all_reduce", talks, tid=3)
        events += _events("cpu_op", "aten::addmm", computes, tid=1)
        events += _events("cpu_op", "c10d::allreduce_", _spans(random, 9, 300), tid=1)
        of_step = _spans(random, 3, 300)
        events += _events("user_annotation", "Optimizer.step#SGD.step", of_step, tid=1)
        events.append(_event("Trace", "PyTorch Profiler (0)", 0, LENGTH))
        _need_exposed(submission, events, _marked(talks), _marked(computes), what)


def best(submission: Submission) -> None:
    """Plant one far sample where a mean or a minimum would decide."""
    random, enough = submission.random, submission.variant["samples"]
    drawn = sorted(random.choice([1, 2, 5, 10, 25, 50, 100], 5, replace=False).tolist())
    # The best, the second here, is neither the least nor the largest.
    caps = [float(drawn[i]) for i in (0, 2, 4, 1, 3)]
    rows = []
    for place, cap in enumerate(caps):
        typical = 0.02 * (1 + 0.1 * place)
        # The best has as many as it needs.
        samples = enough - 1 if place == 0 else enough + 2 * (place - 1)
        measured = typical * random.uniform(0.99, 1.01, samples)
        if place == 1:
            measured[0] *= 30  # a mean would choose another
        if place == 2:
            measured[0] /= 30  # and so would a minimum
        rows += [{"bucket_cap_mb": cap, "seconds": float(seconds)} for seconds in measured]
    rows = [rows[i] for i in random.permutation(len(rows))]
    few = [row for row in rows if row["bucket_cap_mb"] == caps[0]]
    for given, wanted in ((rows, caps[1]), (few, None)):
        told = submission.call("choose", given)
        with reading("choose"):
            if told != wanted:
                expected = f"{wanted}; a bucket needs {enough} samples"
                raise Failed(f"choose: got {told!r:.80}, expected {expected}")


def report(submission: Submission) -> None:
    """Compute again what report.json says."""
    need_consistent(submission.folder / "report.json", submission.variant["samples"])


CRITERIA = [
    Criterion("parse", 10, "Rows of a log of nccl-tests, in bytes and seconds.", parsed),
    Criterion(
        "odd-lines",
        15,
        "Rows between NCCL's lines and comments, with N/A, wrong elements, any order.",
        odd_lines,
    ),
    Criterion("busbw", 15, "Bus bandwidth of five collectives on 1 to 64 ranks.", bandwidth),
    Criterion("faster-up-to", 10, "The size up to which one is faster, by medians.", sizes_won),
    Criterion(
        "exposed", 15, "Exposed communication of a GPU's trace, to the microsecond.", streams
    ),
    Criterion("overlaps", 10, "The same, where kernels of several streams overlap.", overlaps),
    Criterion("exposed-cpu", 10, "The same, in a trace of gloo on a processor.", on_cpu),
    Criterion("choose", 5, "The best size of buckets, by medians of enough samples.", best),
    Criterion(
        "report",
        10,
        "report.json agrees with itself: its rows follow from its logs and traces.",
        report,
    ),
]

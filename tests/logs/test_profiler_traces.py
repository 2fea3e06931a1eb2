"""Traces of torch.profiler: known times are measured, planted faults found, and no file makes the reader fail."""

import gzip
import json
import random
import tracemalloc
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from collectives_logs.calls import waiting
from collectives_logs.json_stream import MAX_BROKEN, objects
from collectives_logs.kineto import begins, findings_of, read, shared, union
from collectives_logs.sources import START, start_of
from logs.found import finders
from logs.traces import RING, Event, all_reduce, event, gemm, step, text, training, write

kinds, only = finders(findings_of)


@pytest.mark.parametrize("is_gzip", [False, True])
def test_a_trace_is_measured(is_gzip: bool, tmp_path: Path) -> None:
    (path,) = write(tmp_path, [text(training([80.0] * 8, steps=2), rank=3)], is_gzip)
    assert begins(start_of(path))
    trace = read(path)
    assert trace.rank == 3
    assert trace.world == 4
    assert trace.backend == "nccl"
    assert [*trace.steps] == [4000.0, 4000.0]
    assert trace.span == 8000.0
    assert trace.communication == 640.0
    assert trace.exposed == 320.0
    assert only([path], "trace").found == "rank 3 of 4, nccl, 2 steps of 4 ms"
    said = only([path], "overlap").found
    assert (
        said
        == "communication takes 8% of the time, and 50% of it is hidden behind computation; exposed: 4% of the time"
    )


def test_bandwidths_of_calls_that_are_alike(tmp_path: Path) -> None:
    calls = [
        all_reduce(1e4 * i, duration, 1 << 20)
        for i, duration in enumerate([1000.0, 2000.0, 9000.0])
    ]
    first = next(
        one for one in findings_of(write(tmp_path, [text(calls)])) if one.kind == "collective"
    )
    assert first.found == (
        "all_reduce of 4 MiB on 4 ranks: 3 calls, 12 ms in all, median 2 ms: algbw 2.1 GB/s, busbw 3.15 GB/s; "
        "each rank sends at least 6 MiB, if no switch adds, and busbw is that over time"
    )


def test_a_rank_that_begins_last_is_named(tmp_path: Path) -> None:
    chance = random.Random(3)

    def rank(number: int) -> str:
        long, short = [500 + 10 * number + chance.random() for _ in range(9)], [40.0 + number] * 9
        return text(training(short if number == 2 else long), rank=number)

    paths = write(tmp_path, [rank(number) for number in (1, 3, 2, 0)], is_gzip=True)
    late = only(paths, "straggler")
    assert late.found.startswith(
        "rank 2 begins last in 9 of 9 calls of all_reduce: a call takes 42 µs there and 51"
    )
    assert late.at[0].file == str(paths[2])
    assert "waiting" not in kinds(paths)


def test_ranks_that_wait_by_turns(tmp_path: Path) -> None:
    def rank(number: int) -> str:
        return text(
            training([50.0 if call % 4 == number else 400.0 for call in range(24)]), rank=number
        )

    paths = write(tmp_path, [rank(number) for number in range(4)])
    assert only(paths, "waiting").found.startswith(
        "84% of the time in all_reduce is beyond the shortest rank's"
    )
    assert "straggler" not in kinds(paths)


def test_healthy_ranks_have_no_fault(tmp_path: Path) -> None:
    chance = random.Random(5)
    paths = write(
        tmp_path,
        [text(training(chance.uniform(90, 95) for _ in range(12)), number) for number in range(4)],
    )
    assert kinds(paths) == ["trace", *["collective"] * 9, "overlap", "kernels"]


def test_calls_that_do_not_match_are_not_compared(tmp_path: Path) -> None:
    paths = write(tmp_path, [text(training([90.0] * (8 + number)), number) for number in range(2)])
    assert only(paths, "calls").found == "rank 0 has 8 calls of all_reduce, rank 1 9"
    paths = write(tmp_path, [text(training([90.0] * 8), 1)] * 2)
    assert only(paths, "twice").found == "2 traces are of rank 1"


def test_many_small_messages(tmp_path: Path) -> None:
    calls = [all_reduce(10.0 * i, 5, 256) for i in range(606)]
    said = only(
        write(tmp_path, [text([*calls, step(1, 0, 3030), step(2, 3030, 3030)])]), "small messages"
    ).found
    assert said == "303 calls of all_reduce a step, median 1 KiB"
    assert "small messages" not in kinds(
        write(tmp_path, [text([*calls, *(step(i, i, 1) for i in range(7))])])
    )
    large = [all_reduce(10.0 * i, 5, 1 << 20) for i in range(606)]
    assert "small messages" not in kinds(write(tmp_path, [text(large)]))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (RING, "all_reduce RING_LL"),
        (
            "ncclDevKernel_AllReduce_Sum_bf16_TREE_LL(ncclDevKernelArgsStorage<4096ul>)",
            "all_reduce TREE_LL",
        ),
        (
            "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
            "all_reduce RING_LL",
        ),
        (
            "ncclKernel_AllReduce_NVLS_TREE_SIMPLE_Sum_half(ncclDevComm*)",
            "all_reduce NVLS_TREE_SIMPLE",
        ),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)", ""),
        ("ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)", ""),
    ],
)
def test_names_of_kernels(name: str, says: str, tmp_path: Path) -> None:
    trace = read(*write(tmp_path, [text([all_reduce(0, 1, name=name)])]))
    assert [*trace.calls] == [("all_reduce", "[0, 1, 2, 3]")]
    assert [*trace.kernels] == [says] * bool(says)


def test_a_kernel_without_arguments_is_known_by_its_name(tmp_path: Path) -> None:
    names = [
        "ncclKernel_ReduceScatter_RING_LL_Sum_half(x)",
        "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(x)",
    ]
    names += [
        "ncclDevKernel_SendRecv(x)",
        "void vllm::cross_device_reduce_2stage<half, 4>(x)",
        "gemm",
    ]
    trace = read(
        *write(tmp_path, [text([event("kernel", name, 0, 1, stream=20) for name in names])])
    )
    assert [name for name, _ in trace.calls] == [
        "reduce_scatter",
        "generic kernel",
        "send and receive",
        "all_reduce",
    ]


def test_a_trace_of_cpu_ranks(tmp_path: Path) -> None:
    """Shapes and types of inputs, as Gloo's events have them.

    An all-gather's input is a part of the whole.
    """

    def call(name: str, start: float, duration: float, elements: int, kind: str) -> Event:
        return event(
            "user_annotation",
            name,
            start,
            duration,
            **{"Input Dims": [[elements]], "Input type": [kind]},
        )

    events = [
        call("gloo:all_reduce", 100, 50, 1000, "long int"),
        call("gloo:all_gather", 200, 50, 10, "float"),
        event("user_annotation", "gloo:barrier", 300, 10),
        event("user_annotation", "collectives:reduce_scatter", 400, 10),
        event("user_annotation", "collectives:reduce_scatter", 450, 1e6, finished=False),
        event("cpu_op", "aten::mm", 120, 100),
        event("cpu_op", "c10d::allreduce_", 90, 500),
    ]
    trace = read(*write(tmp_path, [text(events, backend="gloo")]))
    assert [(name, *calls.nbytes, calls.size) for (name, _), calls in trace.calls.items()] == [
        ("all_reduce", 8000, 4),
        ("all_gather", 160, 4),
        ("barrier", 0, 4),
        ("reduce_scatter", 0, 4),
    ]
    assert trace.communication == 120.0
    assert trace.exposed == 70.0
    several = read(*write(tmp_path, [text(events, backend="gloo", pg_count=2)]))
    assert {calls.size for calls in several.calls.values()} == {0}


def test_a_trace_without_computation_says_nothing_of_overlap(tmp_path: Path) -> None:
    """A sample whose only step is shorter than the calls, and whose kernels are communication alone."""
    paths = write(tmp_path, [text([all_reduce(0, 900), all_reduce(2000, 900), step(1, 0, 500)])])
    assert read(paths[0]).span == 2900.0
    assert read(paths[0]).exposed == 1800.0
    assert not {"exposed", "overlap"} & {*kinds(paths)}


def test_no_communication(tmp_path: Path) -> None:
    paths = write(tmp_path, [text([gemm(0, 5)]), text([])])
    assert kinds(paths)[-1] == "no communication"


@pytest.mark.parametrize("is_gzip", [False, True])
def test_a_trace_that_is_cut_short(is_gzip: bool, tmp_path: Path) -> None:
    chance = random.Random(4)
    whole = text(training(chance.uniform(50, 90) for _ in range(300)))
    (path,) = write(tmp_path, [whole], is_gzip)
    for part in (0.999, 0.9, 0.5):
        data = path.read_bytes()
        cut = tmp_path / "cut"
        cut.write_bytes(data[: int(part * len(data))])
        trace = read(cut)
        assert 100 < sum(len(calls.durations) for calls in trace.calls.values()) <= 300
        assert trace.broken == 1 or part > 0.99
    events = whole.split('"ph"')
    events[8] = events[8].replace(":", ";", 3)
    path.write_text('"ph"'.join(events))
    assert only([path], "cut").found == "1 place of the trace cannot be read"
    assert len(next(iter(read(path).calls.values())).durations) == 299


def test_an_archive_that_expands_is_read_in_pieces(tmp_path: Path) -> None:
    """A few kilobytes that become 64 MiB of blanks, and a second member behind them."""
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(
        gzip.compress(b'{"traceEvents": [' + b" " * (1 << 26)) + gzip.compress(b'{"ph": "X"}]}')
    )
    tracemalloc.start()
    assert read(path).broken == 0
    assert len(start_of(path)) <= START
    assert tracemalloc.get_traced_memory()[1] < 1 << 24
    tracemalloc.stop()


def test_what_is_no_trace() -> None:
    assert not begins(b"\x1f\x8b" + bytes(99))
    assert not begins(zlib.compress(b"traceEvents"))
    assert not begins(b'{"events": []}')


def test_objects_are_found_in_any_pieces() -> None:
    whole = 'Text {\n[{"a": "}{"}, {"b": [1]},\n  {"c": oops},\n\n{"d": {"e": 2}}'
    wanted = [None, {"a": "}{"}, {"b": [1]}, None, {"d": {"e": 2}}]
    whole = whole.replace("Text {\n[", "Text {\n{\n")
    chance = random.Random(2)
    for _ in range(50):
        ends = sorted(chance.sample(range(len(whole)), 5))
        pieces = [whole[a:b] for a, b in zip([0, *ends], [*ends, len(whole)], strict=True)]
        assert [*objects(["\n", *pieces])] == wanted
    assert sum(each is None for each in objects(["{x\n" * 9999])) == MAX_BROKEN + 1


def test_intervals_agree_with_a_count_of_each_microsecond() -> None:
    chance = np.random.default_rng(7)
    for _ in range(100):
        sets = []
        for _ in range(2):
            starts, lengths = (
                chance.integers(0, 80, 9).astype(float),
                chance.integers(0, 15, 9).astype(float),
            )
            ticks = {
                t for s, d in zip(starts, lengths, strict=True) for t in range(int(s), int(s + d))
            }
            sets.append((union(starts, lengths), ticks))
        (a, in_a), (b, in_b) = sets
        assert a.length == len(in_a)
        assert b.length == len(in_b)
        assert shared(a, b) == len(in_a & in_b)


def test_noise_names_nobody() -> None:
    chance = np.random.default_rng(1)
    for ranks in (3, 4, 8, 64):
        for _ in range(50):
            assert waiting(chance.lognormal(0, 1, (ranks, 40))).last is None


def many_events(nbytes: int) -> Iterator[str]:
    """A trace of about so many bytes."""
    yield '{"distributedInfo": {"rank": 0, "world_size": 4}, "traceEvents": [\n'
    written, number = 0, 0
    while written < nbytes:
        some = [(all_reduce, gemm)[i % 2](100.0 * (number + i), 80.0) for i in range(2000)]
        piece = "".join(f"  {json.dumps(each)},\n" for each in some)
        number, written = number + len(some), written + len(piece)
        yield piece
    yield '{"ph": "M"}]}'


@pytest.mark.parametrize("nbytes", [1 << 22, pytest.param(100_000_000, marks=pytest.mark.extended)])
def test_memory_stays_small(nbytes: int, tmp_path: Path) -> None:
    path = tmp_path / "large.json.gz"
    with gzip.open(path, "wt", compresslevel=1) as file:
        file.writelines(many_events(nbytes))
    tracemalloc.start()
    trace = read(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sum(len(calls.durations) for calls in trace.calls.values()) * 600 > nbytes
    assert trace.exposed == trace.communication
    assert peak < min(60_000_000, 8 * nbytes)

"""Files of NCCL Inspector in all their formats: rates, ranks that begin last, slow sizes, and no file that fails."""

import gzip
import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from collectives_logs.inspector import begins, findings_of
from collectives_logs.sources import start_of
from logs.found import finders

RANKS = 4
Record = dict[str, Any]


def header(rank: int, size: int = RANKS) -> Record:
    return {"id": "0xabc", "rank": rank, "n_ranks": size, "nnodes": 2}


def metadata(rank: int) -> Record:
    return {
        "inspector_output_format_version": "v4.2",
        "hostname": f"node{rank // 2}",
        "pid": 100 + rank,
    }


def call(
    number: int, time: float, nbytes: int = 1 << 24, coll: str = "AllReduce", **more: Any
) -> Record:
    told = {
        "coll": coll,
        "coll_sn": number,
        "coll_msg_size_bytes": nbytes,
        "coll_exec_time_us": time,
    }
    return {"coll_perf": {**told, "coll_timing_source": "kernel_gpu", **more}}


def lines(rank: int, calls: Iterable[Record]) -> str:
    """As up to v4.2: each call has its header."""
    return "".join(
        json.dumps(
            {"header": header(rank), "metadata": metadata(rank), **each}, separators=(",", ":")
        )
        + "\n"
        for each in calls
    )


def write(folder: Path, texts: Iterable[str]) -> list[Path]:
    paths = []
    for number, text in enumerate(texts):
        paths.append(folder / f"node-pid{number}.log")
        paths[-1].write_text(text)
    return paths


def job(folder: Path, late: int | None = None) -> list[Path]:
    """Twelve calls on each rank; a rank that is late has short calls."""
    return write(
        folder,
        [
            lines(rank, [call(n, 300 if rank == late else 1000 + 10 * rank + n) for n in range(12)])
            for rank in range(RANKS)
        ],
    )


kinds, only = finders(findings_of)


def test_a_healthy_job(tmp_path: Path) -> None:
    paths = job(tmp_path)
    assert kinds(paths) == ["communicator", "collective"]
    assert only(paths, "communicator").found == "communicator 0xabc: ranks 0–3 of 4, on 2 hosts"
    assert only(paths, "collective").found == (
        "all_reduce of 16 MiB on 4 ranks: 48 calls, 12.2 ms a rank, busbw 25 GB/s (median), 24.9 GB/s (slowest tenth)"
    )


@pytest.mark.parametrize("late", range(RANKS))
def test_the_rank_that_begins_last(late: int, tmp_path: Path) -> None:
    said = only(job(tmp_path, late), "straggler")
    assert said.found.startswith(
        f"rank {late} of 0xabc on node{late // 2} begins last in 12 of 12 calls of all_reduce"
    )
    assert said.at[0].file.endswith(f"pid{late}.log")


def test_calls_are_matched_by_number(tmp_path: Path) -> None:
    """Each rank lacks other calls, and has the rest in another order.

    Only the late rank's times are short.
    """
    chance, texts = random.Random(2), []
    for rank in range(RANKS):
        calls = [call(n, (50 if rank == 1 else 500) * (n + 1)) for n in range(40) if n % 10 != rank]
        chance.shuffle(calls)
        texts.append(lines(rank, calls))
    assert (
        "rank 1 of 0xabc on node0 begins last in 24 of 24 calls"
        in only(write(tmp_path, texts), "straggler").found
    )


def test_a_size_that_a_smaller_one_beats(tmp_path: Path) -> None:
    sizes = [(n, 1 << n, 2.0 ** (n - 14)) for n in range(14, 25)]
    calls = [call(n, time * (5 if n == 22 else 1), nbytes) for n, nbytes, time in sizes]
    said = only(write(tmp_path, [lines(0, calls)]), "slow size").found
    assert said == "all_reduce of 4 MiB on 4 ranks has busbw 4.92 GB/s, and of 2 MiB 24.6 GB/s"
    assert "slow size" not in kinds(
        write(tmp_path, [lines(0, [call(*size[:1], size[2], size[1]) for size in sizes])])
    )


def test_bytes_of_a_part_are_those_of_the_whole(tmp_path: Path) -> None:
    """NCCL counts a rank's part in an all-gather and in a reduce-scatter, as the Inspector's own rates do."""
    calls = [
        call(1, 1000, 1 << 20, "AllGather"),
        call(1, 1000, 1 << 20, "ReduceScatter"),
        call(1, 9, 8192, "Broadcast"),
    ]
    said = [
        one.found
        for one in findings_of(write(tmp_path, [lines(0, calls)]))
        if one.kind == "collective"
    ]
    assert [each.split(" on ")[0] for each in said] == [
        "all_gather of 4 MiB", "reduce_scatter of 4 MiB", "broadcast of 8 KiB",
    ]  # fmt: skip
    assert "busbw 3.15 GB/s" in said[0]


def test_markers_give_the_header_of_what_follows(tmp_path: Path) -> None:
    """As from v4.3."""
    records: list[Record] = []
    for rank in range(2):
        stats = {"dump_stats": {"coll_records": 6, "coll_dropped_total": 10 * rank}}
        records.append({"header": header(rank, 2), "metadata": metadata(rank), **stats})
        records += [
            call(
                n, 100 + 900 * rank, coll_algo="RING", coll_proto="LL128", coll_timing_source="cpu"
            )
            for n in range(6)
        ]
        records.append({"proxy_trace": {"record_type": "proxy_op", "steps": []}})
    (path,) = write(tmp_path, ["".join(json.dumps(record) + "\n" for record in records)])
    assert kinds([path]) == [
        "communicator",
        "dropped",
        "CPU times",
        "collective",
        "choice",
        "straggler",
    ]
    assert only([path], "dropped").found.startswith(
        "10 calls were overwritten before they were written"
    )
    assert only([path], "choice").found == "all_reduce RING LL128 (12)"


def test_indented_archives_and_cut_lines(tmp_path: Path) -> None:
    whole = lines(2, [call(n, 70 + n) for n in range(9)])
    path = tmp_path / "log.gz"
    path.write_bytes(gzip.compress(whole.encode()))
    assert begins(start_of(path))
    wanted = kinds([path])
    path.write_text(
        "Some text {\n"
        + "\n".join(json.dumps(json.loads(line), indent=2) for line in whole.splitlines())
    )
    assert kinds([path]) == wanted
    path.write_text(whole[:-40] + "\n" + whole)
    assert only([path], "cut").found == "1 place cannot be read"
    assert "17 calls" in only([path], "collective").found

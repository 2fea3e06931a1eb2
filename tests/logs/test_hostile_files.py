"""Files that nobody means well with: each is read, or refused in one line, without gigabytes or hours."""

import gzip
import json
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest

from collectives.cli import main
from command import finished
from logs.test_inspector_files import call as inspected
from logs.test_inspector_files import header
from logs.test_ras_reports import mismatch, report
from logs.traces import all_reduce, event, text
from places import ROOT

MAX_BYTES = 1_000_000_000
READ = """
import sys
from collectives.cli import main
from logs.mutated import most_memory
for path in sys.argv[1:]:
    print(path, main(["read", path]), file=sys.stderr)
print(most_memory())
"""


def call(number: int, **more: Any) -> dict[str, Any]:
    known = {"process_group": ("0", ""), "collective_seq_id": number, "state": "started"}
    return known | {"profiling_name": "nccl:all_reduce"} | more


def dump(groups: dict[str, Any], *calls: dict[str, Any]) -> bytes:
    return pickle.dumps({"pg_config": groups, "entries": [*calls]}, protocol=4)


def files() -> dict[str, bytes]:
    """Each with what the time or memory of its reader was proportional to."""
    plain = b"\x80\x02}X\x09\x00\x00\x00pg_config](%bes."
    ranks = str([*range(100_000)])
    frame = {"filename": " " * 10_000_000, "name": "f", "line": 1}
    return {
        "blank-lines.txt": b"\n" * 1_000_000,
        "many-versions.log": b"".join(
            b"n:1:1 [0] NCCL INFO NCCL version 2.%d.0\n" % i for i in range(60_000)
        ),
        "one-entry-of-65536-sizes-200000-times_0": dump(
            {}, *[call(1, input_sizes=[[1] * 64] * 1024)] * 200_000
        ),
        "one-stack-of-frames-200000-times_0": dump({}, *[call(1, frames=[frame] * 64)] * 200_000),
        "one-text-of-ranks-700-times_0": dump({str(i): {"ranks": ranks} for i in range(700)}),
        "calls-times-groups_0": dump(
            {str(i): {"ranks": "[0]"} for i in range(4000)},
            *(call(i, process_group=(str(i % 4000), "")) for i in range(60_000)),
        ),
        "dicts-of-a-byte_0": gzip.compress(plain % (b"}" * 80_000_000)),
        "dicts-of-json_0.json": gzip.compress(b'{"pg_config": [%b0]}' % (b"{}," * 25_000_000)),
    }


@pytest.mark.integration  # seconds
def test_small_files_take_neither_gigabytes_nor_hours(tmp_path: Path) -> None:
    paths = []
    for name, content in files().items():
        paths.append(tmp_path / name)
        paths[-1].write_bytes(content)
    command = [sys.executable, "-c", READ, *map(str, paths)]
    done = finished(command, cwd=ROOT / "tests")
    said = done.stderr.splitlines()
    assert done.returncode == 0, done.stderr
    assert [f"{path} {code}" for path in paths for code in (0, 2) if f"{path} {code}" in said] == [
        f"{path} {0 if path.name.startswith(('many', 'calls')) else 2}" for path in paths
    ]
    assert int(done.stdout.splitlines()[-1]) < MAX_BYTES


# Contents by the name of a file that has one, and what the one line says that refuses it.
TITLES = "# size count type redop root time algbw busbw #wrong\n"
REFUSED = {
    "job.log": [
        (None, "cannot read"),
        (b"", "got 0 bytes of an unknown kind, expected one of: "),
        (b"\x80\x04\x95" + bytes(range(256)), "got 259 bytes of an unknown kind"),
    ],
    "trace_0": [
        (pickle.dumps({"pg_config": print}), "got a pickle with opcode 0x93, expected"),
        (b"\x80\x02cos\nsystem\n(Vpg_config\ntR.", "got a pickle with opcode 0x63"),
        (pickle.dumps({"pg_config": "x" * 99})[:-9], "broken pickle"),
        (
            b"\x80\x02}X\x09\x00\x00\x00pg_config"
            + b")"
            + b"\x85" * 10**5
            + b"sN)"
            + b"\x85" * 10**5
            + b"s.",
            "broken pickle",
        ),
        (
            b"\x80\x02X\x09\x00\x00\x00pg_configr\xff\xff\xff\x7f.",
            "got a str, expected the dict of a dump",
        ),
        (b"\x80\x02X\xff\xff\xff\xffpg_config", "cut at byte"),
        (b'{"pg_config": {}, "entries": NaN}', "got NaN, which is not JSON"),
        (b'{"pg_config": {}, "entries": [', "Expecting value"),
        (b'{"pg_config": ' + b"[" * 10**5, "nested too deep"),
        (b'{"pg_config": "\xff"}', "can't decode byte"),
        (b'{"pg_config": ' + b"9" * 10**4 + b"}", "Exceeds the limit"),
    ],
}

SHAPES: dict[str, Any] = {"Input Dims": [[1 << 40] * 99], "Input type": [[]]}
REPORT = '{"version": 1, "nccl_version": 2, '
# Contents of which something is read, by the kind that they are taken for.
READ_IN_PART = {
    "profiler trace": [
        '{"traceEvents": [',
        '{"traceEvents": [' + "[" * 100_000,
        '{"traceEvents": [' + '{"a":' * 100_000,
        '{"traceEvents": [{"ph": "X", "cat": "kernel", "name": null, "ts": NaN, "dur": Infinity, "args": 7}]}',
        '{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "ncclKernel_", "ts": 1e400, "dur": -1}]}',
        '{"traceEvents": [{"ph": "X", "cat": ["kernel"], "name": {"a": 1}, "ts": 1, "dur": 1}]}',
        '{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "ncclKernel_", "ts": '
        + "9" * 5000
        + ', "dur": 1}]}',
        '{"distributedInfo": [], "traceEvents": [7, "a", null, {}, true]}',
        '{"distributedInfo": {"rank": -1, "world_size": 1e9, "backend": {}}, "traceEvents": []}',
        '{"distributedInfo": ' + "[" * 100_000 + ', "traceEvents": []}',
        '{"traceEvents": [' + "\n{" * 10_000,
        text([all_reduce(0, 0, -5, 1 << 60), event("kernel", "nccl" * 50_000 + "Kernel", 1, 0)]),
        text([event("user_annotation", "gloo:all_reduce", 0, 1, **SHAPES)]),
    ],
    "benchmark": [
        TITLES + "1 " * 30_000,
        TITLES + "1024 256 float sum -1 " + "-" * 65_000,
        TITLES + " " * 65_000 + "1",
        "# size count type"
        + " x" * 30_000
        + "\n# nThread 1 nGpus 1 minBytes 1 maxBytes 1 step: 2(factor)",
        TITLES + "1024 256 float sum -1 nan inf -inf nan\n-8 2 float sum -1 1 1 1 0",
        TITLES + "1024 256 float sum -1 -5 1 1 0\n2048 512 float sum -1 0 0 0 0",
        TITLES + "9999999999999999999 2 float sum -1 1e308 1e308 1e308 1e308",
        REPORT + '"results": ' + "[" * 100_000,
        REPORT + '"config": ' + '{"a":' * 100_000,
        REPORT + '"config": [], "results": [1, null, {"size": "x"}, {"size": 1e400}]}',
        REPORT + '"config": {"devices": {"rank": 1}}, "results": [{"size": NaN, "in_place": []}]}',
        REPORT + '"results": [{"size": 8, "in_place": {"time": ' + "9" * 5000 + "}}]}",
        '{"name": {}, "size": [1], "type": 1, "inPlace": "", "time": "x", "algBw": null, "busBw": 1, "gpus": 1e999}',
        '{"collective": [], "algorithm": {}, "backend": 1, "where": null, "ranks": "x", "bytes": [], "samples": 0}',
        '{"collective": "", "algorithm": "ring", "backend": "", "where": "x", "ranks": -1, "bytes": -8, "samples": []}',
    ],
    "NCCL Inspector": [
        json.dumps({"coll_perf": {}}) + "\n" + json.dumps(record) + "\n" + "[" * 100_000
        for record in (
            {"coll_perf": {}},
            {"coll_perf": []},
            {"header": [], "coll_perf": inspected(1, 1)["coll_perf"]},
            {"header": {"rank": 9, "n_ranks": 4}, **inspected(1, 5)},
            {"header": {"rank": 0, "n_ranks": 1 << 40}, **inspected(1, 5)},
            {"header": header(0), **inspected(-5, float("nan"))},
            {"header": header(0), **inspected(1, float("inf"))},
            {
                "header": {"id": {}, "rank": 0, "n_ranks": 4},
                **inspected(1 << 90, 0, -7, "x" * 99_999),
            },
            {"header": header(0), "dump_stats": {"coll_dropped_total": "many"}, "metadata": 7},
            {
                "header": header(0),
                "coll_perf": {"coll": None, "coll_exec_time_us": 3, "coll_algo": [1] * 999},
            },
        )
    ],
    "NCCL RAS": [
        "\n".join([*report("MISMATCH", blocks=mismatch("status", [line])), line])
        for line in (
            "Rank " + "9" * 65_000,
            "Rank 1 has " + "x " * 30_000 + "-- ",
            " " * 65_000 + "Rank 1",
            "1 " * 30_000,
            "The missing ranks: " + "7," * 30_000,
            "#0-0 (" + "f" * 65_000,
            "99999999 ranks have launched up to operation " + "9" * 60_000,
            "Rank 1057455228 -- GPU -5 managed by process 0 on node ::",
            "Communicator ranks have different ",
            "#999999999-1 (0) MISMATCH",
        )
    ],
}


def read(
    path: Path, content: str | bytes | None, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str, list[str]]:
    """What the command returns and prints; its complaint has one line at most."""
    if content is not None:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    code = main(["read", str(path)])
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    assert "nan" not in said.out.lower()
    assert max(map(len, said.out.splitlines()), default=0) < 500
    return code, said.out, said.err.splitlines()


NAMED = [(name, *each) for name, contents in REFUSED.items() for each in contents]
TAKEN = [(kind, each) for kind, contents in READ_IN_PART.items() for each in contents]


@pytest.mark.parametrize(("name", "content", "says"), NAMED, ids=range(len(NAMED)))
def test_what_is_refused(
    name: str,
    content: str | bytes | None,
    says: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, printed, (complaint,) = read(tmp_path / name, content, capsys)
    assert code == 2
    assert printed == ""
    assert says in complaint


@pytest.mark.parametrize(("kind", "content"), TAKEN, ids=range(len(TAKEN)))
def test_what_is_read_in_part(
    kind: str, content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, printed, complaints = read(tmp_path / "file", content, capsys)
    assert (code, complaints) == (0, []) or (
        kind == "benchmark" and (code, len(complaints)) == (2, 1)
    )
    assert code or printed.startswith(f"{kind}:")

"""Files of one format with bytes cut, doubled, changed and mixed, read in a process of its own.

Prints its memory.

python -m logs.mutated FORMAT NUMBER
"""

import contextlib
import gzip
import io
import json
import pickle
import random
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from collectives.cli import main
from collectives_logs.finding import Finding
from collectives_logs.read import read
from collectives_logs.sources import LogError
from logs import (
    benchmark_logs,
    flight_dumps,
    nccl_logs,
    test_inspector_files,
    test_ras_reports,
    traces,
)
from logs.test_nccl_logs import JOBS


def benchmarks() -> list[str]:
    run = benchmark_logs.Run(sizes=tuple(1 << power for power in range(10, 22)), ranks=4)
    written = (
        benchmark_logs.text,
        benchmark_logs.report,
        benchmark_logs.our_rows,
        benchmark_logs.rccl_rows,
    )
    return [benchmark_logs.text(run._replace(style="old")), *(write(run) for write in written)]


def dumps() -> list[str | bytes]:
    of = flight_dumps.job(2, 5, 8)
    of.programs[1].pop()
    dump = flight_dumps.dumps(of)[1]
    return [json.dumps(dump), *(pickle.dumps(dump, protocol=protocol) for protocol in (2, 4))]


def inspector() -> list[str]:
    make = test_inspector_files
    return [
        "".join(
            make.lines(rank, [make.call(n, 90 * rank + n) for n in range(6)]) for rank in range(2)
        )
    ]


def logs() -> list[str]:
    return ["\n".join([*nccl_logs.lines(job), *nccl_logs.SAID]) for job in JOBS]


def ras() -> list[str]:
    make = test_ras_reports
    values = [
        "  6 ranks have launched up to operation 4",
        "  2 ranks have launched up to operation 3",
    ]
    values += [
        f"  {make.rank(1)}",
        f"  {make.rank(2)}",
        f"  Rank 5 has launched up to operation 2 -- {make.where(5)}",
    ]
    blocks = make.mismatch("AllReduce operation counts", values) + make.mismatch("status", values)
    return ["\n".join(make.report("MISMATCH", blocks=blocks) * 2)]


def profiles() -> list[str]:
    return [traces.text([*traces.training([90.0] * 6)], rank) for rank in range(2)]


FORMATS: dict[str, Callable[[], list[str] | list[str | bytes]]] = {
    "benchmark": benchmarks,
    "flight recorder": dumps,
    "NCCL Inspector": inspector,
    "log": logs,
    "NCCL RAS": ras,
    "profiler trace": profiles,
}

PIECES = (b"", b"-1", b"99", b"99999999999", b"1e999", b"null", b"[", b"{", b" nan ", b"\n")


def mutant(whole: bytes, chance: random.Random) -> bytes:
    data = bytearray(whole)
    for _ in range(chance.randrange(1, 9)):
        a = chance.randrange(len(data) + 1)
        b = min(len(data), a + chance.choice((1, 5, 60, 2000)))
        noise = bytes(chance.randrange(256) for _ in range(b - a))
        data[a:b] = chance.choice((data[a:b] * 2, noise, *PIECES))
    return (
        gzip.compress(bytes(data))[: chance.choice((None, 300))]
        if chance.random() < 0.2
        else bytes(data)
    )


def check_command(path: Path) -> None:
    """It prints findings, or one line that says why not."""
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()) as said,
    ):
        assert main(["read", str(path)]) in (0, 2)
    assert len(said.getvalue().splitlines()) <= 1
    assert "Traceback" not in said.getvalue()


def fuzz(name: str, number: int) -> None:
    chance = random.Random(11)
    files = [each.encode() if isinstance(each, str) else each for each in FORMATS[name]()]
    with tempfile.TemporaryDirectory() as folder:
        whole, path = Path(folder) / "whole_0", Path(folder) / "broken_1"
        whole.write_bytes(files[0])
        for i in range(number):
            path.write_bytes(mutant(chance.choice(files), chance))
            with contextlib.suppress(LogError):
                assert all(isinstance(found, Finding) for _, found in read([whole, path]))
            if i % 50 == 0:
                check_command(path)


def most_memory() -> int:
    """The most bytes that this program had.

    Ru_maxrss would count those of the process that started it, too.
    """
    return 1024 * int(re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[0])


if __name__ == "__main__":
    fuzz(sys.argv[1], int(sys.argv[2]))
    print(most_memory())

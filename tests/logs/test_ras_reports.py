"""Reports of NCCL's RAS: what each block says, ranks that are behind though others are named, no text that fails."""

from pathlib import Path

import pytest

from collectives.cli import main
from collectives_logs.finding import Finding
from collectives_logs.ras import begins, findings, read
from collectives_logs.sources import numbered

VERSION = [
    "NCCL version 2.26.2 compiled with CUDA 12.6",
    "CUDA runtime version 12060, driver version 12060",
    "",
]
SUMMARY = """Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      2          4            1          8        8

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group""".splitlines()


def report(
    errors: str = "OK", status: str = "RUNNING", blocks: str = "", size: int = 8
) -> list[str]:
    """A job of two nodes with four processes each, and one communicator of all."""
    row = f"    0         1         2         4  {size:8d}  {size:8d}  {status:>8s}  {errors}"
    return [
        *VERSION,
        *SUMMARY,
        row,
        "",
        "Errors",
        "======",
        "",
        "Warnings",
        "========",
        "",
        *blocks.splitlines(),
    ]


def rank(number: int) -> str:
    return f"Rank {number} -- {where(number)}"


def where(number: int) -> str:
    return f"GPU {number % 4} managed by process {1000 + 7 * number} on node 10.0.0.{number // 4}"


def mismatch(what: str, lines: list[str]) -> str:
    return "\n".join(
        [
            "#0-0 (fa93daea854b060b) MISMATCH",
            f"  Communicator ranks have different {what}",
            *lines,
            "",
        ]
    )


def said(lines: list[str]) -> dict[str, Finding]:
    return {one.kind: one for one in findings(read(numbered(lines, "ras.txt")))}


def test_a_healthy_report() -> None:
    found = said(report())
    assert [*found] == ["job", "communicator", "agree"]
    assert found["job"].found == "NCCL 2.26.2: 2 nodes, 8 GPUs"
    assert found["communicator"].found == "1 communicator of 8 ranks: RUNNING, OK"
    assert found["communicator"].at[0].line == 16


def test_ranks_that_are_behind_are_named() -> None:
    launched = [
        "  6 ranks have launched up to operation 64",
        "  2 ranks have launched up to operation 60",
    ]
    block = mismatch("AllReduce operation counts", [*launched, "  " + rank(2), "  " + rank(5)])
    found = said(report("MISMATCH", blocks=block))["behind"]
    assert found.found.endswith(
        "launched AllReduce operations: ranks 2, 5 up to 60; 6 ranks up to 64"
    )
    assert found.follows.startswith(
        "behind: ranks 2, 5 (process 1014 on 10.0.0.0 (GPU 2), process 1035 on 10.0.0.1"
    )
    assert [place.line for place in found.at] == [24, 27]


def test_the_report_names_those_ahead() -> None:
    """As in NVIDIA/nccl#1911: the others are behind."""
    launched = [
        "  6 ranks have launched up to operation 640",
        "  2 ranks have launched up to operation 641",
    ]
    block = mismatch("AllGather operation counts", [*launched, "  " + rank(1), "  " + rank(2)])
    assert said(report("MISMATCH", blocks=block))["behind"].follows.startswith(
        "behind: ranks 0, 3–7;"
    )
    block = mismatch("AllGather operation counts", launched)
    assert "behind: 6 ranks, not named" in said(report("MISMATCH", blocks=block))["behind"].follows


def test_one_rank_on_a_line_of_its_own() -> None:
    lines = [
        "  7 ranks have launched up to operation 64",
        f"  Rank 6 has not launched any operations -- {where(6)}",
    ]
    found = said(report("MISMATCH", blocks=mismatch("collective operation counts", lines)))[
        "behind"
    ]
    assert "launched collective operations: rank 6 up to 0; 7 ranks up to 64" in found.found
    assert "process 1042 on 10.0.0.1 (GPU 2)" in found.follows
    unknown = [
        lines[0],
        "  Rank 6 has launched up to operation 9 -- [process information not found]",
    ]
    found = said(report("MISMATCH", blocks=mismatch("Reduce operation counts", unknown)))["behind"]
    assert "rank 6 up to 9" in found.found
    assert found.follows.startswith("behind: rank 6;")


def test_a_later_report_tells_what_has_moved() -> None:
    def after(lowest: int, most: int) -> list[str]:
        lines = [
            f"  7 ranks have launched up to operation {most}",
            f"  Rank 3 has launched up to operation {lowest} -- x",
        ]
        return report("MISMATCH", blocks=mismatch("AllReduce operation counts", lines))

    assert "stuck" in said([*after(5, 9), *after(5, 12)])
    assert "behind" in said([*after(5, 9), *after(6, 12)])
    assert [*said([*after(5, 9), *report()])] == ["job", "communicator", "agree"]


def test_status_that_differs() -> None:
    lines = [
        "  5 ranks have status NOCOMM",
        "  2 ranks have status RUNNING",
        "  " + rank(0),
        "  " + rank(4),
    ]
    lines += [f"  Rank 7 has status FINALIZE -- {where(7)}"]
    found = said(report("MISMATCH", "FINALIZE", mismatch("status", lines)))
    assert found["status differs"].found.endswith(
        ": 5 ranks NOCOMM; ranks 0, 4 RUNNING; rank 7 FINALIZE"
    )
    assert found["communicator"].follows == "ranks have begun to give it up"


def test_processes_that_do_not_answer() -> None:
    block = """INCOMPLETE
  Missing communicator data from 2 job processes
  Process 1035 on node 10.0.0.1 managing GPU 1
  Process 1042 on node 10.0.0.1 managing GPUs 2,3

DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 1000 on node 10.0.0.0 managing GPU 0

#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 2 ranks
  The missing ranks: 5,6

TIMEOUT
  Encountered 2 communication timeouts while gathering communicator data
"""
    found = said(report("INCOMPLETE", blocks=block))
    assert found["dead"].found == "RAS considers 1 process dead: process 1000 on 10.0.0.0 (GPU 0)"
    assert found["incomplete"].found == "#0-0 (cf264af53edbe986) lacks 2 ranks: ranks 5–6"
    assert found["warning"].found.startswith("RAS Encountered 2 communication timeouts")
    first = said(report("INCOMPLETE", blocks=block.partition("DEAD")[0]))["incomplete"].found
    assert first == (
        "RAS has no answer from 2 processes: process 1035 on 10.0.0.1 (GPU 1), process 1042 on 10.0.0.1 (GPU 2,3)"
    )
    newer = f"#0-0 (cf26) INCOMPLETE\n  Missing communicator data from 1 rank\n  {rank(6)}"
    assert (
        "rank 6 (process 1042 on 10.0.0.1 (GPU 2))"
        in said(report("INCOMPLETE", blocks=newer))["incomplete"].found
    )


def test_errors_of_ranks() -> None:
    block = f"""#0-0 (5eed) ERROR
  Asynchronous errors on 3 ranks
  2 ranks reported Remote process error
  {rank(1)}
  {rank(3)}
  Rank 4 reported System error -- {where(4)}
"""
    found = said(report("ERROR", blocks=block))["error"]
    assert (
        found.found
        == "#0-0 (5eed): ranks 1, 3 reported Remote process error; rank 4 reported System error"
    )


@pytest.mark.parametrize("status", ["INIT", "ABORT", "NOCOMM"])
def test_communicators_that_do_not_run(status: str) -> None:
    assert said(report(status=status))["communicator"].follows
    assert "fault of RAS itself" in said(report(status=status, size=0))["communicator"].follows


def test_nodes_that_differ_and_indentation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Then the summary has other columns; manuals indent reports."""
    lines = report()
    at = lines.index("(total)   per node  per process    (total)  (total)")
    lines[at - 1 : at + 2] = [
        "  Nodes  Processes",
        "      1          8",
        "  Nodes  Processes  GPUs",
    ]
    lines[at + 2 : at + 2] = ["(total)    (total)      (total)", "      2         10           11"]
    path = tmp_path / "ras.rst"
    path.write_text("Text\n\n" + "\n".join(f"  {line}" for line in lines))
    assert main(["read", str(path)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("NCCL RAS:\n  job: NCCL 2.26.2: 2 nodes, 11 GPUs")
    assert not begins("\n".join(VERSION).encode())

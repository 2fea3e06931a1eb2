"""A program in MSCCL XML where an algorithm is named: shown, simulated, measured on ranks, verified on a machine."""

import json
from argparse import Namespace
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from collectives.algorithms import from_file
from collectives.cli import proofs
from collectives.core.schedule import Schedule, Step
from collectives_interop import msccl
from collectives_interop.as_schedule import schedule
from command import Capture, run
from interop.programs import chain, ring
from interop.test_as_schedule import RIGHT, relay
from sweep import each


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in (RIGHT | {"relay": relay(4)}).items():
        (tmp_path / f"{name.replace(' ', '_')}.xml").write_text(text)
    (tmp_path / "wrong.xml").write_text(ring(3).replace('type="rrcs"', 'type="rcs"', 1))
    return tmp_path


def test_show_takes_collective_and_ranks_from_the_file(capsys: Capture, folder: Path) -> None:
    code, out, err = run(capsys, "show", f"{folder}/ring.xml")
    assert (code, err) == (0, "")
    assert out.startswith(f"all_reduce by {folder}/ring.xml on 3 ranks: 4 steps, 3 chunks.")
    assert "   0 | +2<2   | +0<0   | +1<1\n" in out
    assert run(capsys, "show", "all_reduce", f"{folder}/ring.xml", "-p", "3") == (0, out, "")


def test_simulate_counts_the_messages_of_the_program(capsys: Capture, folder: Path) -> None:
    code, out, _ = run(capsys, "simulate", f"{folder}/ring.xml", "--bytes", "3000", "--json")
    row = json.loads(out)
    assert (code, row["collective"], row["ranks"], row["messages"]) == (0, "all_reduce", 3, 12)
    assert row["bytes_by_link"] == {"network": 12 * 1000}


@pytest.mark.parametrize("verb", ["show", "simulate", "bench"])
def test_what_a_file_is_not_is_said_in_one_line(capsys: Capture, folder: Path, verb: str) -> None:
    for name, extra, fault in (
        ("none", "", "none.xml: there is no such file"),
        ("ring", "--root 1 -p 3" if verb != "bench" else "-p 4", ""),
        ("chain", "", "there is no such file"),
        (
            "relay",
            "",
            "relay.xml: not a schedule: GPU 1 needs several values of chunk 0 at the same time",
        ),
    ):
        code, _, err = run(capsys, *verb.split(), f"{folder}/{name}.xml", *extra.split())
        assert (code, err.count("\n")) == (2, 1), err
        assert fault in err
    code, _, err = run(capsys, *verb.split(), f"{folder}/wrong.xml")
    assert code == 2
    assert "wrong.xml: wrong result: GPU 0, chunk 1" in err


def test_a_root_is_that_of_the_file(capsys: Capture, folder: Path) -> None:
    (folder / "chain.xml").write_text(chain("broadcast", 3))
    assert run(capsys, "show", f"{folder}/chain.xml", "--root", "0")[0] == 0
    code, _, err = run(capsys, "show", f"{folder}/chain.xml", "--root", "1")
    assert (code, err.count("\n"), "got 1, expected 0" in err) == (2, 1, True)


def test_verify_tells_loads_and_time(capsys: Capture, folder: Path) -> None:
    code, out, _ = run(
        capsys, "verify", f"{folder}/ring.xml", "--machine", "textbook", "--bytes", "3000", "--json"
    )
    row = json.loads(out)
    assert (code, row["busiest_sent"], row["busiest_received"], row["busiest_link"], row["least"]) == (
        0, 4 / 3, 4 / 3, 4 / 3, 4 / 3
    )  # fmt: skip
    _, out, _ = run(capsys, "simulate", f"{folder}/ring.xml", "--bytes", "3000", "--json")
    assert row["simulated_seconds"] == json.loads(out)["seconds"]
    _, out, _ = run(capsys, "verify", f"{folder}/ring.xml", "--machine", "textbook")
    assert (
        "busiest GPU: 1.33 n sent, 1.33 n received, at least 1.33 n; busiest link: 1.33 n; textbook, 1 MiB: "
        in out
    )
    code, out, _ = run(capsys, "verify", f"{folder}/relay.xml", "--machine", "textbook")
    assert (code, "textbook, 1 MiB: " in out, "not a schedule" in out) == (0, True, True)


# Programs of one collective and number of ranks, which are measured by the same ranks.
ALIKE: dict[tuple[str, int], list[str]] = {}
for name, text in RIGHT.items():
    of = schedule(msccl.read(text.encode()))
    ALIKE.setdefault((of.collective, of.p), []).append(name.replace(" ", "_"))


@pytest.mark.integration
@pytest.mark.parametrize(
    ("collective", "p"),
    each(ALIKE, few=[("all_reduce", 3), ("all_to_all", 4), ("gather", 5), ("all_gather", 7)]),
)
def test_ranks_end_with_the_right_elements(
    capsys: Capture, folder: Path, collective: str, p: int
) -> None:
    files = [f"{folder}/{name}.xml" for name in ALIKE[collective, p]]
    sizes = "--bytes 8 4K 40008 256K --repetitions 2 --warmups 1 --dtype int64 --json"
    code, out, err = run(capsys, "bench", *files, *sizes.split())
    assert (code, [json.loads(line)["wrong"] for line in out.splitlines()]) == (
        0,
        [0] * 4 * len(files),
    ), err


def test_a_file_that_no_package_reads_is_one_line(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    code, _, err = run(capsys, "show", "ring.yaml")
    assert (code, err.count("\n")) == (2, 1)
    assert "suffix of ring.yaml: got .yaml, expected one of .xml" in err
    for module in (from_file, proofs):
        monkeypatch.setattr(module, "suffixes", lambda group: {})
    code, _, err = run(capsys, "show", f"{folder}/ring.xml")
    assert (
        code,
        err.count("\n"),
        "got .xml, expected none: no installed package reads any" in err,
    ) == (2, 1, True)
    code, _, err = run(capsys, "verify", f"{folder}/ring.xml")
    assert (code, err.count("\n")) == (2, 1)
    assert "expected either a collective and an algorithm, or --all" in err


def test_a_package_adds_a_format_by_entry_points(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each group has the suffix as a name."""
    read = EntryPoint("swap", f"{__name__}:read_swap", from_file.READERS)
    verify = EntryPoint("swap", f"{__name__}:verify_swaps", proofs.OF_FILES)
    added = {read.group: [read], verify.group: [verify]}
    monkeypatch.setattr(from_file, "entry_points", lambda group: added[group])
    code, out, _ = run(capsys, "show", "two.swap")
    assert (code, out.splitlines()[0]) == (
        0,
        "all_reduce by two.swap on 2 ranks: 1 step, 1 chunk. +2<0 adds chunk 2 from rank 0, =2<0 replaces it.",
    )
    assert run(capsys, "verify", "one.swap", "two.swap") == (0, "one.swap two.swap\n", "")


def read_swap(path: Path) -> Schedule:
    assert path == Path("two.swap")
    return Schedule("all_reduce", 2, 1, 1, lambda t: Step([0, 1], [1, 0], 0, add=True))


def verify_swaps(arguments: Namespace) -> None:
    print(*arguments.files)

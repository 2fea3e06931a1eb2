"""The command line: what it prints, and what it says about wrong input."""

import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.metadata import EntryPoint, version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from collectives import cli
from collectives.algorithms import ALGORITHMS
from collectives.bench import Settings
from collectives.cli import parser, verbs
from collectives.cli.measure import FIELDS, settings
from collectives.core.schedule import Schedule
from collectives.figures.player import player_data
from collectives.launch import programs
from command import Capture, finished, run
from places import ROOT

HEAVY = ("torch", "pydantic", "matplotlib", "pandas", "numba", "psutil", "scipy", "yaml")


def test_list_names_every_algorithm(capsys: Capture) -> None:
    code, out, _ = run(capsys, "list", "-p", "6", "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [(row["collective"], row["algorithm"]) for row in rows] == list(ALGORITHMS)
    exchange = next(row for row in rows if row["algorithm"] == "one_shot")
    assert exchange == {
        "collective": "all_reduce",
        "algorithm": "one_shot",
        "ranks": 6,
        "steps": 1,
        "messages": 30,
        "busiest_port": 5.0,
    }
    assert "two_tree" in run(capsys, "list")[1]


def test_show_prints_the_table(capsys: Capture) -> None:
    code, out, _ = run(capsys, "show", "all_reduce", "recursive_doubling", "-p", "2")
    assert code == 0
    assert out.splitlines() == [
        "all_reduce by recursive_doubling on 2 ranks: 1 step, 1 chunk. "
        "+2<0 adds chunk 2 from rank 0, =2<0 replaces it.",
        "",
        "step | rank 0 | rank 1",
        "   0 | +0<1   | +0<0",
    ]


def test_show_as_json_is_what_the_player_reads(capsys: Capture) -> None:
    _, out, err = run(
        capsys, "show", "all_reduce", "two_tree", "-p", "8", "--segments", "2", "--json"
    )
    assert json.loads(out) == player_data(
        ALGORITHMS["all_reduce", "two_tree"](8, segments=2), "two_tree"
    )
    assert out.count("\n") == 1
    assert err == ""
    # Up and down, two trees, two segments, 7 edges.
    assert sum(len(step[0]) for step in json.loads(out)["steps"]) == 2 * 2 * 2 * 7


def test_show_draws(capsys: Capture, tmp_path: Path) -> None:
    code, out, err = run(
        capsys, "show", "broadcast", "binomial", "-p", "4", "--svg", f"{tmp_path}/tree"
    )
    assert code == 0
    assert out == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"tree-{kind}-{theme}.svg" for kind in ("steps", "time") for theme in ("dark", "light")
    ]
    assert (
        "messages in each step: 1, 2. In step 0, for example, rank 0 sends chunk 0 to rank 1, replacing."
        in err
    )


def test_a_large_schedule_is_shown_in_part(capsys: Capture) -> None:
    _, out, _ = run(capsys, "show", "all_reduce", "ring", "-p", "40")
    assert out.splitlines()[-1] == "(54 more steps and 28 more ranks are not shown)"


@pytest.mark.integration
def test_verify_all_names_every_algorithm(capsys: Capture) -> None:
    code, out, _ = run(capsys, "verify", "--all", "--max-ranks", "9", "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert sorted((row["collective"], row["algorithm"]) for row in rows) == sorted(ALGORITHMS)
    assert {(row["max_ranks"], row["fingerprints_at"]) for row in rows} == {(9, None)}
    made = {row["algorithm"]: row["schedules"] for row in rows if row["collective"] == "all_gather"}
    nodes = sum(p % g == 0 for p in range(1, 10) for g in range(1, p + 1))
    # with messages of three sizes; with nodes of every size, on all channels and on two
    assert made == dict.fromkeys(made, 9) | {"pat": 3 * 9, "multi_channel_ring": 2 * nodes}


def test_verify_one(capsys: Capture) -> None:
    code, out, _ = run(capsys, "verify", "broadcast", "binomial", "-p", "5", "--root", "3")
    assert code == 0
    assert out == "ok  broadcast binomial on 5 ranks, every contribution counted\n"


def test_verify_fails_on_a_wrong_schedule(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    ring = ALGORITHMS["all_reduce", "ring"]
    monkeypatch.setitem(
        ALGORITHMS, ("all_reduce", "ring"), lambda p: _without_its_last_step(ring(p))
    )
    code, _, err = run(capsys, "verify", "all_reduce", "ring", "-p", "4")
    assert code == 1
    assert "times, not 1" in err
    assert "<--" in err


def _without_its_last_step(schedule: Schedule) -> Schedule:
    return replace(schedule, nsteps=schedule.nsteps - 1)


def test_the_version_is_that_of_the_distribution_which_a_folder_has_not(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(capsys, "--version") == (
        0,
        f"collective-communication {version('collective-communication')}\n",
        "",
    )
    monkeypatch.setattr(cli, "distributions", lambda name: iter(()))
    assert run(capsys, "show", "all_reduce", "ring", "-p", "2")[0] == 0
    assert run(capsys, "--version") == (
        0,
        "collective-communication as a folder, not installed\n",
        "",
    )


@pytest.mark.parametrize(
    ("verb", "module", "extra"),
    [
        ("simulate", "yaml", "simulate"),
        ("bench", "torch.distributed", "run"),
        ("show", "matplotlib.figure", "pages"),
        ("run", "matplotlib.figure", "experiments"),
        ("export", "pyarrow", "experiments"),
        ("cluster", "numba", "cluster"),
        ("synthesize", "yaml", "synthesis"),
        ("grade", "yaml", "course"),
    ],
)
def test_a_missing_package_names_the_extra_that_brings_it(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, verb: str, module: str, extra: str
) -> None:
    def needs(_: object) -> None:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    monkeypatch.setattr(
        cli, "_load", lambda _: SimpleNamespace(__doc__="x", add_arguments=id, run=needs)
    )
    install = f"pip install 'collective-communication[{extra}]'"
    said = f"collectives: {verb} needs {module}, which is not installed: {install}"
    assert run(capsys, verb) == (2, "", f"{said}\n")


def test_another_package_adds_a_verb_by_a_module_or_an_attribute_of_it(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "others.py").write_text(
        '"""The verb ``probe``: do nothing."""\n'
        "def add_arguments(parser): parser.add_argument('--code', type=int)\n"
        "def run(arguments): return arguments.code\n"
        "class Fail:\n"
        '    """Fail in two: always."""\n'
        "    add_arguments = staticmethod(add_arguments)\n"
        "    run = staticmethod(lambda arguments: 4)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    points = [
        EntryPoint("probe", "others", cli.GROUP),
        EntryPoint("fail", "others:Fail", cli.GROUP),
    ]
    monkeypatch.setattr(cli, "_added", lambda: {each.name: each for each in points})
    assert run(capsys, "probe", "--code", "3")[0] == 3
    assert run(capsys, "fail")[0] == 4
    assert cli.verbs()["probe"] == "do nothing"
    assert cli.verbs()["fail"] == "fail in two: always"


def test_every_verb_is_in_the_table_of_extras() -> None:
    table = [
        line
        for line in (ROOT / "chapters" / "install.md").read_text().splitlines()
        if line.startswith("| ")
    ]
    assert set(cli.verbs()) <= set(re.findall(r"`([a-z-]+)`", "\n".join(table)))


def test_the_largest_numbers_are_accepted(capsys: Capture) -> None:
    code, out, _ = run(capsys, "show", "all_reduce", "ring", "-p", "1024")
    assert code == 0
    assert "2022 more steps and 1012 more ranks" in out
    assert (
        run(
            capsys,
            "verify",
            "broadcast",
            "chain",
            "-p",
            "1",
            "--segments",
            "65536",
            "--timeout",
            "604800",
        )[0]
        == 0
    )


def test_ranks_that_memory_cannot_hold_are_refused(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "collectives.bench.psutil.virtual_memory", lambda: SimpleNamespace(total=1 << 27)
    )
    code, out, err = run(capsys, "bench", "--ranks", "2", "--bytes", "1M")
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert (
        "memory for 2 ranks and their buffers on this machine: got 128 MiB, expected 136 MiB or more"
        in err
    )


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("Unable to allocate 8 EiB"),
        OverflowError("int too large"),
        OSError(28, "No space left"),
    ],
)
def test_what_the_machine_cannot_do_is_one_line(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fails(_: Schedule) -> str:
        raise error

    monkeypatch.setattr("collectives.cli.schedules.grid", fails)
    code, out, err = run(capsys, "show", "all_reduce", "ring")
    assert code == 1
    assert out == ""
    assert err.count("\n") == 1
    assert str(error) in err


def test_back_ends_are_listed_and_an_absent_one_is_refused_with_the_same_reason(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs.importlib.util, "find_spec", lambda _: None)
    code, out, _ = run(capsys, "backends", "--json")
    rows = {row["backend"]: row for row in map(json.loads, out.splitlines())}
    assert code == 0
    assert list(rows) == ["p2p", "gloo", "p2p_nccl", "nccl", "horovod", "mpi", "mpich", "impi"]
    assert rows["p2p"]["version"].startswith("torch ")
    assert rows["horovod"]["absent"] == programs.NO_HOROVODRUN
    assert f"horovod     absent: {programs.NO_HOROVODRUN}\n" in run(capsys, "backends")[1]
    code, out, err = run(capsys, "bench", "--backend", "p2p", "horovod")
    assert code == 1
    assert out == ""
    assert err == f"collectives: horovod is absent: {programs.NO_HOROVODRUN}\n"


def test_verify_all_stops_at_the_first_fault(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Sees the planted fault.
    monkeypatch.setattr("collectives.cli.proofs.workers", ThreadPoolExecutor)
    ring = ALGORITHMS["all_reduce", "ring"]
    monkeypatch.setitem(
        ALGORITHMS,
        ("all_reduce", "ring"),
        lambda p: _without_its_last_step(ring(p)) if p > 1 else ring(p),
    )
    code, _, err = run(capsys, "verify", "--all", "--max-ranks", "5")
    assert code == 1
    assert "all_reduce on 2 ranks, 2 chunks, 1 step" in err


def test_bench_measures_by_default_what_settings_does() -> None:
    arguments = parser(["bench"]).parse_args(["bench"])
    assert settings(arguments) == [[Settings()]]
    own = {"algorithms", "collective", "ranks", "bytes"}
    # A command is one launch.
    assert {*FIELDS, *own, "launch"} == set(Settings.model_fields)


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        (
            "all_reduce ring tree --backend p2p gloo",
            {"algorithms": ["ring", "tree"], "backends": ["p2p", "gloo"]},
        ),
        (
            "--bytes 4 64K --warmups 0 --repetitions 10000",
            {"bytes": [4, 65536], "warmups": 0, "repetitions": 10_000},
        ),
        ("all_reduce two_tree --segments 2", {"segments": 2, "algorithms": ["two_tree"]}),
        (
            "reduce --root 3 --timeout 1.5",
            {"collective": "reduce", "root": 3, "timeout": 1.5},
        ),
        ("gather --in-place", {"in_place": True, "collective": "gather"}),
        ("--no-in-place", {"in_place": False}),
        (
            "-p 3 --machine summit --op max --dtype int32",
            {"ranks": 3, "machine": "summit", "op": "max"},
        ),
    ],
)
def test_what_is_typed_is_what_is_measured(words: str, changed: dict[str, Any]) -> None:
    arguments = parser(["bench"]).parse_args(["bench", *words.split()])
    ((made,),) = settings(arguments)
    assert made == Settings(**changed | {"dtype": made.dtype})


@pytest.mark.parametrize(
    ("words", "earlier"),
    [
        ("broadcast", "--collective broadcast"),
        ("all_reduce ring tree -p 2 3", "--algorithm ring tree --ranks 2 3"),
        ("all_gather broadcast", "--collective all_gather broadcast"),
        (
            "reduce broadcast chain binomial",
            "--collective reduce broadcast --algorithm chain binomial",
        ),
        ("broadcast chain", "broadcast --algorithm chain"),
        ("--where loopback all_reduce ring", "--where loopback --algorithm ring"),
    ],
)
def test_words_stand_for_the_earlier_options_of_bench(words: str, earlier: str) -> None:
    asked, same = (
        settings(parser(["bench"]).parse_args(["bench", *typed.split()]))
        for typed in (words, earlier)
    )
    assert asked == same
    assert asked != [[Settings()]]


NUMPY_ALONE = [
    "--help",
    "list",
    "verify all_reduce ring",
    "error all_reduce ring",
    "show all_reduce ring",
    "export all_reduce ring -p 4 --to msccl",
]


@pytest.mark.integration
@pytest.mark.parametrize("words", [*NUMPY_ALONE, *(f"{verb} --help" for verb in verbs())])
def test_what_is_not_needed_is_not_imported(words: str) -> None:
    code = (
        "import sys, json\nfrom collectives.cli import main\n"
        f"try:\n    main({words.split()!r})\nexcept SystemExit:\n    pass\n"
        f"print('\\n' + json.dumps([name for name in {HEAVY!r} if name in sys.modules]))"
    )
    done = finished([sys.executable, "-c", code], check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == []

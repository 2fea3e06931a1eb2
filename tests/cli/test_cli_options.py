"""Options that are fields of Settings have its defaults and limits, and a verb imports only what it needs."""

import json
import subprocess
import sys
from typing import Any

import pytest

from collectives.bench import Settings
from collectives.cli import parser, verbs
from collectives.cli.bench import HELP, _settings
from command import Capture, run

HEAVY = ("torch", "pydantic", "matplotlib", "pandas", "numba", "psutil", "yaml")


def test_bench_measures_by_default_what_settings_does() -> None:
    arguments = parser(["bench"]).parse_args(["bench"])
    assert _settings(arguments) == [[Settings()]]


def test_every_field_is_an_option() -> None:
    assert {*HELP, "collective"} == set(Settings.model_fields)


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        ("--algorithm ring tree --backend p2p gloo", {"algorithms": ["ring", "tree"], "backends": ["p2p", "gloo"]}),
        ("--bytes 4 64K --warmups 0 --repetitions 10000", {"bytes": [4, 65536], "warmups": 0, "repetitions": 10_000}),
        ("--segments 2 --algorithm two_tree", {"segments": 2, "algorithms": ["two_tree"]}),
        ("--collective reduce --root 3 --timeout 1.5", {"collective": "reduce", "root": 3, "timeout": 1.5}),
        ("--in-place --collective gather", {"in_place": True, "collective": "gather"}),
        ("--no-in-place", {"in_place": False}),
        ("--ranks 3 --machine summit --op max --dtype int32", {"ranks": 3, "machine": "summit", "op": "max"}),
    ],
)
def test_what_is_typed_is_what_is_measured(words: str, changed: dict[str, Any]) -> None:
    arguments = parser(["bench"]).parse_args(["bench", *words.split()])
    ((made,),) = _settings(arguments)
    assert made == Settings(**changed | {"dtype": made.dtype})


@pytest.mark.parametrize("words", ["--warmups -1", "--warmups 10001", "--segments 0", "--segments 1025", "--root x"])
def test_limits_are_the_models(capsys: Capture, words: str) -> None:
    code, out, err = run(capsys, "bench", f"{words.split()[0]}={words.split()[1]}")
    assert (code, out) == (2, "")
    assert "expected a whole number from" in err


@pytest.mark.integration
@pytest.mark.parametrize("words", [["--help"], ["list"], *([verb, "--help"] for verb in verbs() if verb != "bench")])
def test_what_is_not_needed_is_not_imported(words: list[str]) -> None:
    code = (
        "import sys, json\nfrom collectives.cli import main\n"
        f"try:\n    main({words!r})\nexcept SystemExit:\n    pass\n"
        f"print('\\n' + json.dumps([name for name in {HEAVY!r} if name in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == []

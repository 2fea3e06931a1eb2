"""Run the command with wrong arguments: it exits with 2, and says in one line what was wrong and what is allowed.

Nothing is printed as data, started or written. `test_messages` has the texts whose words matter.
"""

import argparse
import os
import string
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from test_cli_own import OWN

from collectives.backends import BACKENDS
from collectives.cli import parser, verbs
from collectives.core.contracts import CONTRACTS
from collectives.machine import presets
from command import Capture, run
from interop.programs import ring

MAX_CHARACTERS = 600

# Wrong words, what of them the message names, and what it says is allowed instead.
WRONG = [
    # unknown words
    ("shwo", "'shwo'", "'show'"),
    ("bench --rankz 3", "'--rankz'", "'--ranks'"),
    ("simulate all_reduce ring tree", "'tree'", "none"),
    ("bench all_reduce --where loopback ring", "'ring'", "none"),
    ("bench --backend glo", "'glo'", "'gloo'"),
    ("show all_reduce rnig", "'rnig'", "ring"),
    ("bench all_reduce rnig", "'rnig'", "ring"),
    ("show allreduce ring", "'allreduce'", "all_reduce"),
    ("bench ring all_reduce", "'ring'", "all_reduce"),
    ("bench --collective ring", "'ring'", "all_reduce"),
    ("simulate all_reduce ring --machine sumit", "'sumit'", "'summit'"),
    ("synthesize broadcast --machine dgx1 --steps 3", "'broadcast'", "'all_gather'"),
    # something is missing, or too much
    ("", "COMMAND", "required"),
    ("verify", "nothing", "a collective and an algorithm"),
    ("verify all_reduce", "got all_reduce", "a collective and an algorithm"),
    ("verify /dev/null", "/dev/null", ".xml"),
    ("verify all_reduce ring --all", "all_reduce ring --all", "either"),
    ("show all_reduce", "no algorithm", "one_shot"),
    ("show ring", "show ring", "all_reduce ring"),
    ("show all_reduce mine.py", "'mine.py'", "FILE.py:FUNCTION"),
    ("export all_reduce --to msccl", "no algorithm", "all_reduce two_tree"),
    ("export all_reduce ring --to goal", "--bytes", "one size"),
    ("synthesize all_gather --machine dgx1", "--steps", "required"),
    ("cluster", "cluster", "-- COMMAND"),
    # said twice
    ("bench reduce --collective broadcast", "reduce and --collective broadcast", "one of the two"),
    ("bench all_reduce ring tree --algorithm ring", "tree and --algorithm ring", "one of the two"),
    # options that do not go together
    ("show all_reduce ring --root 3", "--root: got 3", "none"),
    ("show all_reduce ring --root 0", "--root: got 0", "none"),
    ("simulate all_reduce ring --segments 2", "--segments: got 2", "none"),
    ("export all_reduce ring --to msccl --segments 2", "--segments: got 2", "none"),
    ("bench --root 3", "--root: got 3", "none"),
    ("verify --all -p 4", "--ranks: got 4", "none"),
    ("verify a.xml --max-ranks 4", "--max-ranks: got 4", "none"),
    ("verify a.xml --bytes 4", "--bytes", "--machine"),
    ("verify all_reduce ring --machine textbook", "--machine", "FILE"),
    ("verify all_reduce ring --max-ranks 3", "--max-ranks", "--all"),
    ("export all_reduce ring --to msccl --nodes 2", "--nodes: got [2]", "none"),
    ("export all_reduce ring --to nccl-tuner", "got ring", "none"),
    ("export all_reduce --to nccl-tuner --rows a --nodes 2", "--nodes: got [2]", "none"),
    ("export all_gather --to nccl-tuner", "all_gather", "all_reduce"),
    ("simulate all_reduce ring --trace x.json", "trace", "--bytes"),
    ("bench -e 4", "no -b", "first size"),
    ("bench -b 8 -e 4", "got 8 to -e 4", "at most that of -e"),
    ("bench -b 8 --bytes 4", "got 8 beside --bytes", "no --bytes"),
    ("bench -b 0", "got 0", "above 0"),
    ("bench -b 8 -f 1", "'1'", "from 2"),
    ("bench --json --nccl-tests", "--nccl-tests", "--json"),
    ("cluster --check -- true", "--check", "-- COMMAND"),
    ("cluster --check --hosts 1", "1 hosts", "two or more"),
    ("compare a b --csv --json", "--json", "--csv"),
    # numbers beyond a limit
    ("show all_reduce ring -p 0", "'0'", "1 to 1,024"),
    ("list -p 1025", "'1025'", "1 to 1,024"),
    ("show all_reduce ring -p 1000000000", "'1000000000'", "1 to 1,024"),
    ("verify all_reduce tree -p 1048577", "'1048577'", "1 to 1,048,576"),
    ("verify all_reduce tree --segments 1000000000000", "'1000000000000'", "1 to 65,536"),
    ("verify --all --max-ranks 129", "'129'", "1 to 128"),
    ("verify all_reduce ring -p 100000", "100,000 ranks", "expected"),
    ("verify all_reduce one_shot -p 4097", "4,097", "4,096"),
    ("verify all_reduce ring --timeout 604801", "'604801'", "604800"),
    ("show broadcast flat -p 4 --root 4", "root 4", "0 to 3"),
    ("show all_reduce ring -p 256 --svg x", "130,560", "at most"),
    ("simulate all_to_all pairwise -p 50000", "2,500,000,000", "134,217,728"),
    ("simulate all_reduce ring --bytes 257G", "'257G'", "256 GiB"),
    ("simulate all_reduce ring -p 10 --machine summit", "10", "multiple of 6"),
    ("bench --ranks 16385", "16385", "16384"),
    ("bench --segments 1025", "1025", "1024"),
    ("bench --segments 0", "got 0", "1"),
    ("bench --repetitions 10001", "10001", "10000"),
    ("bench --warmups 10001", "10001", "10000"),
    ("bench --bytes 8 99999999999999999999G", "'99999999999999999999G'", "2^63"),
    ("calibrate --ranks 1", "'1'", "2 to 16,384"),
    ("synthesize all_gather --machine dgx1 --steps 2 --limit 60", "'60'", "500ns"),
    ("synthesize all_gather --machine dgx1 --steps 2 --limit 0s", "0s", "above 0s"),
    ("synthesize all_reduce --machine dgx1 --steps 3", "got 3", "even"),
    # what a format or a back end cannot have
    ("export all_reduce ring -p 33 --to msccl", "65", "at most 64"),
    ("export gather flat --to msccl", "gather", "all_reduce"),
    ("export broadcast flat --root 1 --to msccl", "root: got 1", "0"),
    ("export all_reduce in_network -p 4 --to msccl", "got 1", "none for MSCCL"),
    ("export all_reduce in_network -p 4 --to goal --bytes 1K", "got 1", "none for GOAL"),
    ("bench all_reduce in_network -p 2", "got 1", "none for bench"),
    # runs to compare
    ("compare", "RUN", "required"),
    ("compare ring.xml", "got 1", "2 to 26"),
    ("compare ring.xml mine.py/../ring.xml", "'mine.py/../ring.xml'", "a file of rows"),
    ("compare ring.xml ./ring.xml", "'./ring.xml'", "different"),
    ("compare ring.xml mine.py", "ring.xml", "NAME.parquet"),
    ("compare pipe link", "'pipe'", "a file of rows"),
    ("compare . ring.xml", ".: ", "NAME.parquet"),
    # a schedule of one's own
    ("show all_reduce mine.py:no", "'no'", "function"),
    ("show all_reduce nowhere.py:no", "nowhere.py", "file"),
    ("list nowhere.py:no", "nowhere.py", "file"),
    ("list mine.py:more -p 2", "3 ranks", "2"),
    ("show broadcast mine.py:right -p 2", "all_reduce", "broadcast"),
    # files that are not there, or cannot be written
    ("verify ring.xml --machine none", "'none'", "dgx1"),
    ("verify ring.xml --machine none.yaml", "none.yaml", "file"),
    ("run no-such.ipynb", "no-such.ipynb", "existing file"),
    ("simulate all_reduce ring --machine nowhere.yaml", "nowhere.yaml", "file"),
    ("export all_reduce --to nccl-tuner --rows /nowhere", "/nowhere", "read"),
    ("export all_reduce ring --to msccl --output /", "/: ", "got a folder"),
    ("export all_reduce ring --to msccl --output /nowhere/a.xml", "/nowhere/a.xml", "existing"),
    (
        "synthesize all_gather --machine dgx1 --steps 2 --output mine.xml",
        "mine.xml",
        ".py",
    ),
    ("show all_reduce ring -p 2 --svg no-such-folder/x", "no-such-folder/x", "write"),
    ("simulate all_reduce ring --bytes 8 --trace /nowhere/x", "/nowhere/x", "existing folder"),
    ("simulate all_reduce ring --bytes 8 --trace .", "write .", "got a folder"),
    ("simulate all_reduce ring --bytes 8 --trace /dev/null", "/dev/null", "device"),
    ("simulate all_reduce ring --bytes 8 --trace pipe", "pipe", "pipe"),
    ("simulate all_reduce ring --bytes 8 --trace link", "link", "link"),
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a program, a schedule, a pipe and a link. Nothing is written there, or started."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    monkeypatch.setattr(os, "fork", refuse)
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    Path("link").symlink_to("elsewhere")
    Path("mine.py").write_text(OWN)
    Path("ring.xml").write_text(ring(3))
    before = sorted(path.name for path in tmp_path.iterdir())
    yield tmp_path
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert Path("pipe").is_fifo()


def refused(capsys: Capture, *words: str) -> str:
    """The line with which a command is refused, below the usage that argparse may print."""
    code, out, err = run(capsys, *words)
    assert code == 2, err
    assert out == "", err
    *usage, line = err.splitlines()
    assert not usage or usage[0].startswith("usage: ")
    assert line.startswith("collectives")
    assert len(line) <= MAX_CHARACTERS
    return line


@pytest.mark.parametrize(
    ("words", "wrong", "allowed"), WRONG, ids=[words[:60] or "nothing" for words, _, _ in WRONG]
)
def test_a_refusal_names_what_is_wrong_and_what_is_allowed(
    capsys: Capture, words: str, wrong: str, allowed: str
) -> None:
    line = refused(capsys, *words.split())
    assert wrong in line
    assert allowed in line


def numbers() -> list[tuple[str, str]]:
    """Return every verb with each of its options that is read as a number, a size or a time."""
    options = []
    for verb in verbs():
        (of_verbs,) = (
            action
            for action in parser([verb])._actions
            if isinstance(action, argparse._SubParsersAction)
        )
        for action in of_verbs.choices[verb]._actions:
            is_number = callable(action.type) and action.type is not Path
            if is_number and action.option_strings:
                options += [(verb, action.option_strings[-1])]
    return options


@pytest.mark.parametrize(
    "value", ["x", "", "-1", "nan", "1e9", "½", "9" * 5000, "1 2"], ids=lambda value: value[:9]
)
@pytest.mark.parametrize(("verb", "option"), numbers())
def test_every_number_is_checked_before_anything_is_done(
    capsys: Capture, verb: str, option: str, value: str
) -> None:
    line = refused(capsys, verb, f"{option}={value}")
    assert option in line
    assert value[:30] in line  # a long one is cut


@pytest.mark.parametrize("verb", verbs())
def test_an_option_that_does_not_exist_is_refused_by_every_verb(capsys: Capture, verb: str) -> None:
    refused(capsys, verb, "--no-such-option")


KNOWN = [("bench --backend {}", list(BACKENDS))]
KNOWN += [("simulate {} ring", list(CONTRACTS)), ("bench {} ring", list(CONTRACTS))]
KNOWN += [("bound all_reduce --machine {}", presets())]
KNOWN += [("{}", list(verbs()))]


@pytest.mark.parametrize(("words", "names"), KNOWN)
def test_a_name_with_a_wrong_letter_is_shown_beside_the_known_ones(
    capsys: Capture, words: str, names: list[str]
) -> None:
    for nth, name in enumerate(names):
        place = nth % len(name)
        letter = string.ascii_lowercase[(nth + 7) % 26]
        typed = f"{name[:place]}{letter}{name[place + 1 :]}q"
        line = refused(capsys, *words.format(typed).split())
        assert repr(typed) in line
        assert name in line


def test_a_wrong_schedule_is_marked_before_ranks_start(capsys: Capture) -> None:
    code, out, err = run(capsys, "bench", "all_reduce", "mine.py:wrong", "-p", "2")
    assert code == 2
    assert out == ""
    assert "rank 0 holds chunk 0 of rank 1 0 times, not 1" in err.splitlines()[0]


@pytest.mark.extended  # it takes ten seconds
def test_a_trace_of_a_million_messages_is_refused(capsys: Capture) -> None:
    words = "simulate all_reduce ring -p 2048 --bytes 1M --trace x.json"
    code, _, err = run(capsys, *words.split())
    assert code == 2
    assert err.count("\n") == 1
    assert "1,000,000 messages" in err

"""Run the command with wrong arguments: it exits with 2, prints no data, and names the fault in one line."""

import os
from pathlib import Path

import pytest
from test_cli_own import OWN

from command import Capture, run
from interop.programs import ring

WRONG = [
    # unknown words
    ("", "the following arguments are required: COMMAND"),
    ("shwo", "unknown command 'shwo': did you mean 'show'? Known are list, show"),
    ("bench --rankz 3", "unknown option of bench '--rankz': did you mean '--ranks'? Known are"),
    ("simulate all_reduce ring tree", "too many arguments for simulate: got 'tree', expected none"),
    ("bench --backend glo", "unknown backend 'glo': did you mean 'gloo'?"),
    ("show all_reduce rnig", "no algorithm 'rnig' for 'all_reduce'; all_reduce has one_shot"),
    ("show allreduce ring", "collectives with algorithms are broadcast"),
    ("simulate all_reduce ring --machine sumit", "unknown machine 'sumit': did you mean 'summit'?"),
    ("synthesize broadcast --machine dgx1 --steps 3", "invalid choice: 'broadcast'"),
    # something is missing, or too much
    (
        "verify",
        "verify: got nothing, expected either a collective and an algorithm, or files that end in .json or .xml",
    ),
    (
        "verify all_reduce",
        "verify: got all_reduce, expected either a collective and an algorithm, or files",
    ),
    (
        "verify /dev/null",
        "verify: got /dev/null, expected either a collective and an algorithm, or files that",
    ),
    (
        "verify all_reduce ring --all",
        "verify: got all_reduce ring --all, expected either a collective",
    ),
    (
        "show all_reduce",
        "show all_reduce: got no algorithm, expected one of one_shot, reduce_broadcast,",
    ),
    (
        "show ring",
        "show ring: got no algorithm, expected a collective and an algorithm, as in all_reduce ring",
    ),
    ("show all_reduce mine.py", "got 'mine.py', expected FILE.py:FUNCTION"),
    ("export all_reduce --to msccl", "got no algorithm, expected one"),
    ("export all_reduce ring --to goal", "--bytes: got None, expected one size"),
    ("synthesize all_gather --machine dgx1", "the following arguments are required: --steps"),
    ("cluster", "cluster takes either --check or -- COMMAND"),
    # options that do not go together
    ("show all_reduce ring --root 3", "all_reduce ring takes no --root: got 3, expected none"),
    ("show all_reduce ring --root 0", "all_reduce ring takes no --root: got 0, expected none"),
    ("simulate all_reduce ring --segments 2", "all_reduce ring takes no --segments: got 2"),
    ("export all_reduce ring --to msccl --segments 2", "all_reduce ring takes no --segments"),
    (
        "bench reduce --collective broadcast",
        "collective: got reduce and --collective broadcast, expected one of the two",
    ),
    (
        "bench all_reduce ring tree --algorithm ring",
        "algorithm: got ring tree and --algorithm ring, expected one of the two",
    ),
    ("bench ring all_reduce", "unknown collective 'ring'; known are broadcast"),
    ("bench all_reduce rnig", "no algorithm 'rnig' for 'all_reduce'; all_reduce has one_shot"),
    ("bench all_reduce --where loopback ring", "too many arguments for bench: got 'ring'"),
    ("bench --root 3", "all_reduce takes no --root: got 3, expected none"),
    ("verify --all -p 4", "--all takes no --ranks: got 4, expected none"),
    ("verify a.xml --max-ranks 4", "FILE takes no --max-ranks: got 4, expected none"),
    ("verify a.xml --bytes 4", "--bytes goes with --machine"),
    ("verify all_reduce ring --machine textbook", "--machine and --bytes go with FILE"),
    ("verify all_reduce ring --max-ranks 3", "--max-ranks goes with --all: got a single algorithm"),
    (
        "export all_reduce ring --to msccl --nodes 2",
        "--to msccl takes no --nodes: got [2], expected none",
    ),
    (
        "export all_reduce ring --to nccl-tuner",
        "--to nccl-tuner takes no algorithm: got ring, expected none",
    ),
    (
        "export all_reduce --to nccl-tuner --rows a --nodes 2",
        "--to nccl-tuner takes no --nodes: got [2], expected",
    ),
    (
        "export all_gather --to nccl-tuner",
        "got all_gather, expected all_reduce, or --rows of another",
    ),
    ("simulate all_reduce ring --trace x.json", "a trace shows one size: give one with --bytes"),
    ("bench -e 4", "-e and -f: got no -b, expected the first size, too"),
    (
        "bench -b 8 -e 4",
        "-b: got 8 to -e 4, expected a size above 0, at most that of -e, and no --bytes",
    ),
    ("bench -b 8 --bytes 4", "-b: got 8 beside --bytes, expected"),
    ("bench -b 0", "-b: got 0 to -e 0, expected a size above 0"),
    ("bench -b 8 -f 1", "-f/--stepfactor: got '1', expected a whole number from 2"),
    ("bench --json --nccl-tests", "not allowed with argument"),
    ("cluster --check -- true", "cluster takes either --check or -- COMMAND"),
    ("cluster --check --hosts 1", "--check: got 1 hosts in 1 racks, expected two or more in one"),
    # numbers that are none, or beyond a limit
    ("show all_reduce ring -p 0", "got '0', expected a whole number from 1 to 1,024"),
    ("list -p 1025", "-p/--ranks: got '1025', expected a whole number from 1 to 1,024"),
    (
        "show all_reduce ring -p 1000000000",
        "got '1000000000', expected a whole number from 1 to 1,024",
    ),
    (
        "verify all_reduce tree -p 1048577",
        "got '1048577', expected a whole number from 1 to 1,048,576",
    ),
    ("verify all_reduce tree --segments 1000000000000", "expected a whole number from 1 to 65,536"),
    (
        "verify --all --max-ranks 129",
        "--max-ranks: got '129', expected a whole number from 1 to 128",
    ),
    (
        "verify all_reduce ring -p 100000",
        "got 100,000 ranks x 100,000 chunks, expected a product of",
    ),
    (
        "verify all_reduce one_shot -p 4097",
        "a message for each pair: got 4,097, expected at most 4,096",
    ),
    ("verify all_reduce ring --timeout 604801", "--timeout: got '604801', expected seconds"),
    ("show broadcast flat -p 4 --root 4", "root 4 is not one of the ranks 0 to 3"),
    ("show all_reduce ring -p 256 --svg x", "ranks x steps to draw: got 130,560, expected at"),
    ("simulate all_to_all pairwise -p 50000", "got 2,500,000,000, expected at most 134,217,728"),
    ("simulate all_reduce ring --bytes 257G", "got '257G', expected at most 256 GiB"),
    ("simulate all_reduce ring --bytes=-4", "invalid size '-4'"),
    (
        "simulate all_reduce ring -p 10 --machine summit",
        "the nodes of summit: got 10, expected a multiple of 6",
    ),
    (
        f"bench --ranks {'9' * 5000}",
        "--ranks: got '9999999999999999999999999999999999999999', expected a whole number",
    ),
    ("bench --ranks 16385", "ranks: Input should be less than or equal to 16384, got 16385"),
    ("bench --ranks x", "--ranks: got 'x', expected a whole number"),
    ("bench --segments 1025", "segments: Input should be less than or equal to 1024, got 1025"),
    ("bench --segments 0", "segments: Input should be greater than or equal to 1, got 0"),
    (
        "bench --repetitions 10001",
        "repetitions: Input should be less than or equal to 10000, got 10001",
    ),
    ("bench --warmups 10001", "warmups: Input should be less than or equal to 10000, got 10001"),
    ("bench --warmups=-1", "--warmups: got '-1', expected a whole number from 0"),
    ("bench --bytes 8 999999999G", "got '999999999G', expected at most 256 GiB"),
    (
        "bench --bytes 8 99999999999999999999G",
        "'99999999999999999999G' is too large; expected less than 2^63 bytes",
    ),
    ("bench --timeout inf", "--timeout: got 'inf', expected seconds: above 0, at most 604800"),
    ("bench --timeout nan", "--timeout: got 'nan', expected seconds"),
    ("cluster --timeout 0 -- true", "--timeout: got '0', expected seconds"),
    ("calibrate --timeout -1", "--timeout: got '-1', expected seconds"),
    ("calibrate --ranks 1", "--ranks: got '1', expected a whole number from 2 to 16,384"),
    ("synthesize all_gather --machine dgx1 --steps 0", "got '0', expected a whole number from 1"),
    (
        "synthesize all_gather --machine dgx1 --steps 2 --limit 60",
        "invalid time '60'; expected for example 500ns",
    ),
    ("synthesize all_gather --machine dgx1 --steps 2 --limit 0s", "got 0s, expected above 0s"),
    (
        "synthesize all_reduce --machine dgx1 --steps 3",
        "steps of an all_reduce: got 3, expected an even number",
    ),
    # what a format or a back end cannot have
    (
        "export all_reduce ring -p 33 --to msccl",
        "steps of a thread block: got 65, expected at most 64, a limit of RCCL",
    ),
    ("export gather flat --to msccl", "collective: got gather, expected all_reduce"),
    ("export broadcast flat --root 1 --to msccl", "root: got 1, expected 0"),
    (
        "export all_reduce in_network -p 4 --to msccl",
        "got 1, expected none for MSCCL, whose GPUs do the adding",
    ),
    (
        "export all_reduce in_network -p 4 --to goal --bytes 1K",
        "got 1, expected none for GOAL, whose ranks do the",
    ),
    (
        "bench all_reduce in_network -p 2",
        "got 1, expected none for bench, which runs on ranks",
    ),
    # runs to compare
    ("compare", "the following arguments are required: RUN"),
    ("compare ring.xml", "runs to compare: got 1, expected 2 to 26"),
    (
        "compare ring.xml mine.py/../ring.xml",
        "unknown run 'mine.py/../ring.xml': expected a file of rows, a folder",
    ),
    (
        "compare ring.xml ./ring.xml",
        "runs to compare: got 'ring.xml' and './ring.xml', expected different ones",
    ),
    ("compare ring.xml mine.py", "ring.xml: got no rows, expected NAME.parquet, or what"),
    ("compare pipe link", "unknown run 'pipe': expected a file of rows"),
    ("compare . ring.xml", ".: got a folder without rows, expected one with files NAME.parquet"),
    ("compare a b --csv --json", "not allowed with argument"),
    # a schedule of one's own
    ("bench all_reduce mine.py:wrong -p 2", "0 times, not 1"),
    ("show all_reduce mine.py:no", "has no function 'no'"),
    ("show all_reduce nowhere.py:no", "there is no file nowhere.py"),
    ("list nowhere.py:no", "there is no file nowhere.py"),
    ("list mine.py:more -p 2", "got 3 ranks, expected 2"),
    ("show broadcast mine.py:right -p 2", "is all_reduce on 2 ranks, not broadcast on 2"),
    # files that are not there, or cannot be written
    ("verify ring.xml --machine none", "unknown machine 'none'"),
    ("verify ring.xml --machine none.yaml", "there is no machine file none.yaml"),
    ("run no-such.ipynb", "notebook: got no-such.ipynb, expected an existing file"),
    ("simulate all_reduce ring --machine nowhere.yaml", "there is no machine file nowhere.yaml"),
    ("export all_reduce --to nccl-tuner --rows /nowhere", "cannot read /nowhere"),
    (
        "export all_reduce ring --to msccl --output /",
        "cannot write /: got a folder, link, device or pipe",
    ),
    (
        "export all_reduce ring --to msccl --output /nowhere/a.xml",
        "cannot write /nowhere/a.xml: expected an existing",
    ),
    (
        "synthesize all_gather --machine dgx1 --steps 2 --output mine.xml",
        "--output: got mine.xml, expected a name",
    ),
    ("show all_reduce ring -p 2 --svg no-such-folder/x", "cannot write no-such-folder/x-steps"),
    (
        "simulate all_reduce ring --bytes 8 --trace /nowhere/x",
        "cannot write /nowhere/x: expected an existing folder",
    ),
    (
        "simulate all_reduce ring --bytes 8 --trace .",
        "cannot write .: got a folder, link, device or pipe",
    ),
    (
        "simulate all_reduce ring --bytes 8 --trace /dev/null",
        "cannot write /dev/null: got a folder, link, device",
    ),
    (
        "simulate all_reduce ring --bytes 8 --trace pipe",
        "cannot write pipe: got a folder, link, device or pipe",
    ),
    (
        "simulate all_reduce ring --bytes 8 --trace link",
        "cannot write link: got a folder, link, device or pipe",
    ),
]


@pytest.mark.parametrize(
    ("words", "message"), WRONG, ids=[words[:60] or "nothing" for words, _ in WRONG]
)
def test_wrong_arguments_are_explained(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    Path("link").symlink_to("elsewhere")
    Path("mine.py").write_text(OWN)
    Path("ring.xml").write_text(ring(3))
    code, out, err = run(capsys, *words.split())
    assert (code, out) == (2, "")
    assert message in err
    assert err.startswith(("usage: ", "collectives: "))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "link",
        "mine.py",
        "pipe",
        "ring.xml",
    ]
    assert Path("pipe").is_fifo()


@pytest.mark.extended  # it takes ten seconds
def test_a_trace_of_a_million_messages_is_refused(capsys: Capture, tmp_path: Path) -> None:
    words = f"simulate all_reduce ring -p 2048 --bytes 1M --trace {tmp_path}/x.json"
    code, _, err = run(capsys, *words.split())
    assert (code, "expected at most 1,000,000 messages" in err, list(tmp_path.iterdir())) == (
        2,
        True,
        [],
    )

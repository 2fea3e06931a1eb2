"""Twenty messages of the command whose words matter: each is the first that many users read.

What all refusals have in common is in `test_wrong_arguments`.
"""

from pathlib import Path

import pytest

from command import Capture, run

MESSAGES = {
    "bench ring all_reduce": (
        "collectives: unknown collective 'ring'; known are broadcast, scatter, gather, "
        "all_gather, all_to_all, reduce, reduce_scatter, all_reduce"
    ),
    "bench --backend glo": (
        "collectives: unknown backend 'glo': did you mean 'gloo'? Known are p2p, gloo, "
        "p2p_nccl, nccl, horovod, mpi, mpich, impi"
    ),
    "bench all_reduce --where moon -p 2": (
        "collectives: unknown where 'moon'; known are loopback, cluster, horovodrun, mpirun, "
        "mpich, impi, torchrun, slurm, and cluster:LATENCY,RATE or cluster:MACHINE"
    ),
    "bench reduce --collective broadcast": (
        "collectives: collective: got reduce and --collective broadcast, expected one of the two"
    ),
    "bench --root 3": "collectives: all_reduce takes no --root: got 3, expected none",
    "bench -b 8 -e 4": (
        "collectives: -b: got 8 to -e 4, expected a size above 0, at most that of -e, and no "
        "--bytes"
    ),
    "bench --bytes 8 999999999G": (
        "collectives bench: error: argument --bytes: got '999999999G', expected at most 256 GiB"
    ),
    "bench --segments 1025": "collectives: segments: Input should be less than or equal to 1024, got 1025",
    "simulate all_reduce ring tree": "collectives: too many arguments for simulate: got 'tree', expected none",
    "simulate all_reduce ring --machine sumit": (
        "collectives: unknown machine 'sumit': did you mean 'summit'? Known are a100, b200, b300, dgx-1v,"
        " dgx-a100, dgx-h100, dgx1, dgx2, ethernet, gb200-nvl72, h100, h200, marenostrum5, mi250, mi300x,"
        " mi350x, ndv2, p4d, p5, summit, textbook, files NAME.yaml, LATENCY,RATE, mesh:5x5 and torus:4x4"
    ),
    "simulate all_reduce ring -p 10 --machine summit": (
        "collectives: ranks do not fill the nodes of summit: got 10, expected a multiple of "
        "6, or a part of one node"
    ),
    "show ring": (
        "collectives: show ring: got no algorithm, expected a collective and an algorithm, as"
        " in all_reduce ring"
    ),
    "show all_reduce mine.py": (
        "collectives: a schedule of your own: got 'mine.py', expected FILE.py:FUNCTION or FILE.xml"
    ),
    "show all_reduce ring --root 3": "collectives: all_reduce ring takes no --root: got 3, expected none",
    "show broadcast flat -p 4 --root 4": "collectives: root 4 is not one of the ranks 0 to 3",
    "show all_reduce ring -p 0": (
        "collectives show: error: argument -p/--ranks: got '0', expected a whole number from "
        "1 to 1,024"
    ),
    "verify all_reduce ring -p 100000": (
        "collectives: verify keeps a number for every rank and chunk: got 100,000 ranks x "
        "100,000 chunks, expected a product of at most 134,217,728"
    ),
    "compare one": "collectives: runs to compare: got 1, expected 2 to 26",
    "calibrate --ranks 1": (
        "collectives calibrate: error: argument -p/--ranks: got '1', expected a whole number "
        "from 2 to 16,384"
    ),
    "cluster": "collectives: cluster takes either --check or -- COMMAND",
}


@pytest.mark.parametrize("words", MESSAGES)
def test_the_message_is_the_recorded_one(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, *words.split())
    assert code == 2
    assert out == ""
    assert err.splitlines()[-1] == MESSAGES[words]
    assert list(tmp_path.iterdir()) == []

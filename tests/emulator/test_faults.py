"""A host that is cut off, or a rank that is killed, ends an all-reduce of the others with an error that says where.

All on one emulated cluster. Every algorithm has ranks of its own, which do all-reduces until one
fails; so it does not matter in which of them the fault comes.
"""

import json
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from collectives.algorithms import build
from collectives.emulator import Cluster, cluster
from collectives.processes import ChildProcess, end
from places import TASKS
from sweep import each

pytestmark = [pytest.mark.integration, pytest.mark.alone]

RANK = str(TASKS / "lossy.py")
HOSTS = 4
LOST = 2
LEFT = [0, 1, 3]
TIMEOUT = 1.5  # of the groups, in seconds
LIMIT = 60.0  # seconds after which a rank hangs
QUICK = ["ring", "two_tree"]
EACH = pytest.mark.parametrize(
    "algorithm", each([*QUICK, "one_shot", "halving_doubling"], few=QUICK)
)
FAILED = r"all_reduce by (\w+) failed on rank (\d), in step (\d+), (sending to|receiving from) rank (\d): "


class Ranks:
    """The hosts' processes, and what goes to and comes from all of them or from some."""

    def __init__(self, hosts: Cluster, processes: list[ChildProcess]) -> None:
        self.hosts, self.processes = hosts, processes

    def tell(self, what: Any, ranks: list[int]) -> None:
        for rank in ranks:
            stream = self.processes[rank].stdin
            assert stream is not None
            stream.write(json.dumps(what).encode() + b"\n")
            stream.flush()

    def hear(self, ranks: list[int]) -> list[Any]:
        return [self._answer(rank) for rank in ranks]

    def _answer(self, rank: int) -> Any:
        stream = self.processes[rank].stdout
        assert stream is not None
        assert select.select([stream], [], [], LIMIT)[0], (
            f"rank {rank} says nothing for {LIMIT:g} s"
        )
        return json.loads(stream.readline())

    def all_reduce(self, algorithm: str, left: list[int], file: Path) -> None:
        """New ranks whose all-reduces have begun."""
        everyone = list(range(HOSTS))
        self.tell(
            {"algorithm": algorithm, "left": left, "file": str(file), "timeout": TIMEOUT}, everyone
        )
        assert self.hear(everyone) == [{"right": True}] * HOSTS
        self.tell("go", everyone)
        time.sleep(0.1)

    def again(self, left: list[int]) -> None:
        """An all-reduce in a new group of these ranks, which then end."""
        self.tell("again", left)
        assert self.hear(left) == [{"right": True}] * len(left)
        self.tell("end", left)
        assert self.hear(left) == [{"ended": 0}] * len(left)


@pytest.fixture(scope="module")
def ranks(allowed: None) -> Iterator[Ranks]:
    """A process on each host of a cluster."""
    with cluster(HOSTS, "5ms", "25MB/s") as hosts, ExitStack() as stack:
        processes = []
        for host in range(HOSTS):
            process = hosts.popen(
                host,
                [sys.executable, RANK],
                environment=hosts.variables(host) | {"OMP_NUM_THREADS": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            processes.append(stack.enter_context(process))
            stack.callback(end, [process])
        made = Ranks(hosts, processes)
        assert made.hear(list(range(HOSTS))) == [{"host": str(host)} for host in range(HOSTS)]
        yield made


def need_told(algorithm: str, ranks: list[int], said: list[Any]) -> None:
    """Each error names the collective and a message of its schedule that this rank waited for.

    One blames the lost.
    """
    schedule = build("all_reduce", algorithm, HOSTS, segments=1)
    peers = set()
    for rank, event in zip(ranks, said, strict=True):
        found = re.match(FAILED, event["error"])
        assert found, event["error"]
        assert found.group(1, 2) == (algorithm, str(rank))
        step, peer = schedule.step(int(found[3])), int(found[5])
        pair = (rank, peer) if found[4] == "sending to" else (peer, rank)
        assert pair in set(zip(step.src.tolist(), step.dst.tolist(), strict=True)), event["error"]
        peers.add(peer)
    assert LOST in peers


@EACH
def test_a_cut_host_ends_an_all_reduce_and_a_healed_one_takes_part_again(
    ranks: Ranks, algorithm: str, tmp_path: Path
) -> None:
    everyone = list(range(HOSTS))
    ranks.all_reduce(algorithm, everyone, tmp_path / "store")
    ranks.hosts.cut(LOST)
    try:
        need_told(algorithm, everyone, ranks.hear(everyone))
    finally:
        ranks.hosts.heal(LOST)
    ranks.again(everyone)


@EACH
def test_a_killed_rank_ends_an_all_reduce_and_the_others_go_on(
    ranks: Ranks, algorithm: str, tmp_path: Path
) -> None:
    ranks.all_reduce(algorithm, LEFT, tmp_path / "store")
    ranks.tell("die", [LOST])
    need_told(algorithm, LEFT, ranks.hear(LEFT))
    ranks.tell("end", [LOST])
    assert ranks.hear([LOST]) == [{"ended": -9}]
    ranks.again(LEFT)

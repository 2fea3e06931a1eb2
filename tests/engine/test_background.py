"""Calls in the background end with their group, and never keep a program from its end."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from command import PIPES, started
from places import PATIENCE

pytestmark = pytest.mark.integration

RANK = """
import json, sys, threading, time
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed as dist

import collectives

def sockets():
    links = [each.readlink() for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    return sum(str(link).startswith("socket") for link in links)

rank, file, do = int(sys.argv[1]), sys.argv[2], sys.argv[3]
counts = [sockets(), threading.active_count()]
dist.init_process_group("gloo", store=dist.FileStore(file, 2), rank=rank, world_size=2, timeout=timedelta(hours=1))
x = torch.full((100,), float(rank))
collectives.all_reduce(x, algorithm="ring")
collectives.all_reduce(x, algorithm="ring", async_op=True).wait()
assert x.tolist() == [2.0] * 100, x
if do == "leave":
    if rank == 0:
        collectives.all_reduce(x, async_op=True)
        time.sleep(0.5)
    else:
        print("ready", flush=True)
        sys.stdin.read()
        raise SystemExit(0)
else:
    dist.destroy_process_group()
    until = time.monotonic() + 100
    while [sockets(), threading.active_count()] != counts and time.monotonic() < until:
        time.sleep(0.001)  # and then leave at once, which may not abort the process
    print(json.dumps([counts, [sockets(), threading.active_count()]]))
"""


@contextmanager
def ranks(do: str, folder: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Two of them, whose group has a timeout of an hour: what waits for it hangs."""
    command = [sys.executable, "-c", RANK]
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                started(
                    [*command, str(rank), str(folder / "store"), do], stdin=subprocess.PIPE, **PIPES
                )
            )
            for rank in range(2)
        ]


def test_destroying_the_default_group_leaves_no_socket_and_no_thread(tmp_path: Path) -> None:
    with ranks("destroy", tmp_path) as processes:
        for process in processes:
            out, err = process.communicate(timeout=PATIENCE)
            assert process.returncode == 0, err
            before, after = json.loads(out)
            assert after == before


def test_a_program_ends_although_a_call_in_the_background_waits_for_ever(tmp_path: Path) -> None:
    with ranks("leave", tmp_path) as (first, second):
        assert second.stdout
        assert second.stdout.readline() == "ready\n"
        try:
            _, err = first.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            pytest.fail("rank 0 waits for a call that rank 1 never makes")
        assert first.returncode == 0, err

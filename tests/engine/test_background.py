"""Calls in the background end with their group, and never keep a program from its end."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.integration

LIMIT = 90.0  # seconds, of which importing torch takes most; the group's own timeout is an hour
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
    until = time.monotonic() + 20
    while [sockets(), threading.active_count()] != counts and time.monotonic() < until:
        time.sleep(0.001)  # and then leave at once, which may not abort the process
    print(json.dumps([counts, [sockets(), threading.active_count()]]))
"""


def ranks(do: str, folder: Path) -> list[subprocess.Popen[str]]:
    pipes: dict[str, Any] = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
    }
    command = [sys.executable, "-c", RANK]
    return [subprocess.Popen([*command, str(rank), str(folder / "store"), do], **pipes) for rank in range(2)]


def finish(processes: list[subprocess.Popen[str]]) -> None:
    for process in processes:
        process.kill()
        process.communicate()


def test_destroying_the_default_group_leaves_no_socket_and_no_thread(tmp_path: Path) -> None:
    processes = ranks("destroy", tmp_path)
    try:
        for process in processes:
            out, err = process.communicate(timeout=LIMIT)
            assert process.returncode == 0, err
            before, after = json.loads(out)
            assert after == before
    finally:
        finish(processes)


def test_a_program_ends_although_a_call_in_the_background_waits_for_ever(tmp_path: Path) -> None:
    first, second = ranks("leave", tmp_path)
    try:
        assert second.stdout
        assert second.stdout.readline() == "ready\n"
        try:
            _, err = first.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            pytest.fail("rank 0 waits for a call that rank 1 never makes")
        assert first.returncode == 0, err
    finally:
        finish([first, second])

"""Ranks that do what ranks should not: for test_launch.py."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist

import collectives


def run(settings: dict[str, Any], report: Callable[[dict[str, Any]], None]) -> None:
    me = dist.get_rank() == settings.get("rank")
    everyone: list[object] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, os.getpid())
    report({"pids": everyone})
    dist.barrier()  # so that the report is in before anything happens
    match settings["do"]:
        case "raise" if me:
            raise ValueError("a bug on purpose")
        case "killed" if me:
            os.kill(os.getpid(), signal.SIGKILL)
        case "raise" | "killed":
            # A rank that hears of it could be the first to end.
            time.sleep(settings.get("later", 0))
        case "leave":
            lose_a_peer(me, settings["algorithm"], report)
        case "environment":
            own = (os.environ[settings["name"]], os.environ["LOCAL_RANK"])
            dist.all_gather_object(everyone, own)
            report({"everyone": everyone})
        case "command lines":
            lines = list(map(command_line, Path("/proc").glob("[0-9]*/cmdline")))
            seen: list[object] = [None] * dist.get_world_size()
            dist.all_gather_object(
                seen, (len(settings["much"]), sum(b"seldom" in line for line in lines), len(lines))
            )
            report({"seen": seen})
        case "orphan":
            child = subprocess.Popen(["sleep", "600"])
            report({"child": child.pid})
            if me:
                raise ValueError("a bug on purpose")
            time.sleep(600)
        case "stop":
            if me:
                os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(600)
        case "mute":
            wait_in_vain(me)
        case "wait":
            time.sleep(600)
        case "sleep":
            child = subprocess.Popen(["sleep", "600"])
            report({"child": child.pid})
            print("going to sleep", flush=True)
            time.sleep(600)
    dist.barrier()


def command_line(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it has ended
        return b""


def lose_a_peer(me: bool, algorithm: str, report: Callable[[dict[str, Any]], None]) -> None:
    """One rank goes away instead of taking part; what do the others see?"""
    # So that all of it is there when it matters.
    collectives.all_reduce(torch.ones(4), algorithm=algorithm)
    if me:
        os._exit(3)
    try:
        collectives.all_reduce(torch.ones(1 << 20), algorithm=algorithm)
    except RuntimeError as error:
        report({"error": str(error)})
        raise


def wait_in_vain(me: bool) -> None:
    """One rank does nothing, and the others wait for it until their group's own, short timeout."""
    collectives.all_reduce(torch.ones(4), algorithm="ring")  # so that what it needs is loaded
    group = dist.new_group(timeout=timedelta(seconds=2))
    collectives.all_reduce(torch.ones(4), group=group, algorithm="ring")
    if me:
        time.sleep(600)
    collectives.all_reduce(torch.ones(4), group=group, algorithm="ring")

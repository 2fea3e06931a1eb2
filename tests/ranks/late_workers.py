"""Workers of a parameter server, one of which fails in its second step: for test_parameter_server.py.

Each rank writes its error to a file of its number.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist

from collectives_book.asynchronous.parameter_server import Server
from collectives_book.asynchronous.push_pull import serve, work

SECONDS = 4.0


def run(settings: dict[str, Any], report: Callable[[dict[str, Any]], None]) -> None:
    del report
    dist.barrier()  # all ranks have imported what they need
    try:
        take_part(settings["how"])
    except (RuntimeError, ValueError) as error:
        write(Path(settings["folder"], str(dist.get_rank())), f"{type(error).__name__}: {error}")
        if dist.get_rank() == 0:  # when it has ended, the launcher ends the others
            wait_for(Path(settings["folder"], "1"))
        raise


def write(path: Path, text: str) -> None:
    beside = path.with_suffix(".part")
    beside.write_text(text)
    beside.rename(path)


def wait_for(path: Path) -> None:
    until = time.monotonic() + 100
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.01)


def take_part(how: str) -> None:
    if dist.get_rank() == 0:
        serve(Server(torch.zeros(5), workers=2, steps=100, bound=3, rate=1.0), SECONDS)
        return

    def gradient(parameters: torch.Tensor, step: int) -> torch.Tensor:
        if dist.get_rank() == 2 and step == 1:
            fail(how)
        return torch.ones_like(parameters)

    work(gradient, 5, SECONDS)


def fail(how: str) -> None:
    if how == "leave":
        os._exit(0)
    if how == "mute":
        time.sleep(30)
    dist.send(torch.tensor([0.0] * 5 + [7.0]), 0)
    time.sleep(30)

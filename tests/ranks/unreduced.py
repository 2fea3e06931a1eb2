"""A check of training in which our group reduces nothing, each rank being alone in it: for test_gpu_check.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gpu_cases
from torch import distributed as dist

together = dist.new_group


def run(settings: dict[str, Any], report: Callable[[dict[str, Any]], None]) -> None:
    dist.new_group = alone
    gpu_cases.run(settings, report)


def alone(backend: str) -> dist.ProcessGroup:
    groups = [together([rank], backend=backend) for rank in range(dist.get_world_size())]
    return groups[dist.get_rank()] if backend == "collectives" else together(backend=backend)

"""NCCL's part of a rank: its GPU, the process group beside gloo's, and the version."""

import os
import re
from functools import cache
from pathlib import Path

import torch
from torch import distributed as dist


def device() -> torch.device:
    """Return this rank's GPU, now the current one: the only visible one, else the one with its number on its machine.

    Raises RuntimeError if there is none. Where two ranks see one and the same GPU only, NCCL itself refuses it.
    """
    local, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if count == 1:
        local = 0  # a scheduler may show each task a GPU of its own, which every task calls 0
    if local >= count:
        raise RuntimeError(f"NCCL needs a GPU for each rank: this is rank {local} of its machine, which has {count}")
    torch.cuda.set_device(local)
    return torch.device("cuda", local)


@cache
def group() -> dist.ProcessGroup:
    """Return the process group of all ranks over NCCL; made once, by all of them. Raises RuntimeError without a GPU."""
    device()
    made = dist.new_group(backend="nccl")
    if not isinstance(made, dist.ProcessGroup):
        raise RuntimeError("this process is not a member of the group of all ranks")
    return made


def close() -> None:
    """Destroy the group, if it was made; every rank calls it."""
    if group.cache_info().currsize:
        dist.destroy_process_group(group())
        group.cache_clear()


def driver() -> str:
    """Return the version of NVIDIA's driver, such as 580.95.05, as its module says it; "unknown" without one."""
    said = Path("/proc/driver/nvidia/version")
    found = re.search(r"\d+\.\d+(\.\d+)?", said.read_text()) if said.exists() else None
    return found[0] if found else "unknown"


def version() -> str:
    """Return the version of the NCCL in torch, such as 2.27.3."""
    return ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]

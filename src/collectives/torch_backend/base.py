"""The plain groups under a group of ours: gloo's for the CPU and, where GPUs are, NCCL's."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed import distributed_c10d as c10d


def bases(given: Any) -> dict[str, dist.ProcessGroup]:
    """A group for each kind of device that this machine has; all ranks call it alike."""
    rank, size, timeout = given.group_rank, given.group_size, given.timeout
    # torchrun's workers find the store of the last attempt when they restart, with the addresses of dead processes.
    store = c10d.PrefixStore(f"attempt_{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", given.store)
    found = {"cpu": _plain(given, "cpu", c10d.ProcessGroupGloo(c10d.PrefixStore("gloo", store), rank, size, timeout))}
    if torch.cuda.is_available() and dist.is_nccl_available():
        options = c10d.ProcessGroupNCCL.Options()
        options._timeout = timeout
        found["cuda"] = _plain(
            given, "cuda", c10d.ProcessGroupNCCL(c10d.PrefixStore("nccl", store), rank, size, options)
        )
    ranks = given.global_ranks_in_group or range(size)
    for base in found.values():  # `P2POp` and errors look up ranks in torch's book
        c10d._world.pg_group_ranks[base] = {each: i for i, each in enumerate(ranks)}
    return found


def forget(base: dist.ProcessGroup) -> None:
    """Take the group out of torch's book, which would keep it for ever."""
    c10d._world.pg_group_ranks.pop(base, None)


def beside(group: dist.ProcessGroup, device: str) -> str | None:
    """The back end that a group was to take for a device: nccl for cuda where it is ``cpu:collectives,cuda:nccl``."""
    named = c10d._world.pg_backend_config[group].split(",")
    return dict(each.split(":") for each in named).get(device)


def _plain(given: Any, device: str, backend: Any) -> dist.ProcessGroup:
    group = dist.ProcessGroup(given.store, given.group_rank, given.group_size)
    kind = getattr(dist.ProcessGroup.BackendType, backend.name().upper())
    group._set_default_backend(kind)
    group._register_backend(torch.device(device), kind, backend)
    group._set_group_name(f"{given.group_id}/{backend.name()}")  # type: ignore[arg-type]  # a str under another name
    return group

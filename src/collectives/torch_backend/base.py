"""The plain groups under a group of ours: gloo's for the CPU and, where GPUs are, NCCL's."""

from __future__ import annotations

import secrets
import time
from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed import distributed_c10d as c10d

PAUSE = 0.01  # seconds between two looks into a store


def bases(given: Any) -> dict[str, dist.ProcessGroup]:
    """A group for each kind of device that this machine has; all ranks call it alike."""
    store, rank, size, timeout = given.store, given.group_rank, given.group_size, given.timeout
    if dist.is_torchelastic_launched():
        store = c10d.PrefixStore(_attempt(store, rank, size, timeout), store)
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


def _attempt(store: Any, rank: int, size: int, timeout: timedelta) -> str:
    """Return a name that the group's ranks share, and no earlier attempt: torchrun's store outlives ranks that restart.

    A key may be of a rank that died, and each node's agent counts its own restarts. So each rank writes a word of its
    own, and rank 0 publishes those that it reads, until every rank has found its word among them.
    """
    word, seen, until = secrets.token_hex(8), "", time.monotonic() + timeout.total_seconds()
    store.set(f"word/{rank}", word)
    while time.monotonic() < until:
        if rank == 0:
            store.set("words", " ".join(store.get(f"word/{each}").decode() for each in range(size)))
        words = store.get("words").decode()
        if words != seen and word in words.split():
            seen = words
            store.add(words, 1)
        if words == seen and store.add(words, 0) == size:
            return str(words.split()[0])
        time.sleep(PAUSE)
    raise RuntimeError(f"ranks that torchrun has started do not meet within {timeout.total_seconds():g} s")


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

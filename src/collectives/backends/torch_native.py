"""The library's own collectives, through ``torch.distributed``: gloo (or whatever backs the group)."""

from __future__ import annotations

import torch
from torch import distributed as dist

from collectives.backends import Call


def perform(call: Call) -> None:
    """Perform the collective by torch's function of that name; the library picks the algorithm."""
    group = call.group or dist.group.WORLD
    match call.collective:
        case "all_reduce":
            dist.all_reduce(call.some(), op=call.op, group=group)
        case "broadcast":
            dist.broadcast(call.some(), group=group, group_src=call.root)
        case "reduce":
            dist.reduce(call.some(), op=call.op, group=group, group_dst=call.root)
        case "scatter":
            dist.scatter(call.wanted(), _parts(call.input, group), group=group, group_src=call.root)
        case "gather":
            dist.gather(call.given(), _parts(call.output, group), group=group, group_dst=call.root)
        case "all_gather":
            dist.all_gather_into_tensor(call.output, call.input, group=group)
        case "reduce_scatter":
            dist.reduce_scatter_tensor(call.output, call.input, op=call.op, group=group)
        case "all_to_all":
            sent, received = call.splits or (None, None)
            dist.all_to_all_single(call.output, call.input, received, sent, group=group)
        case _:
            raise ValueError(f"torch_native does not perform {call.collective!r}")


def _parts(whole: torch.Tensor | None, group: dist.ProcessGroup | None) -> list[torch.Tensor] | None:
    """The ranks' parts of a tensor, as views of it: what scatter and gather take as lists."""
    return None if whole is None else list(whole.view(-1).view(dist.get_world_size(group), -1).unbind())

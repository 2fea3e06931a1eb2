"""The library's own collectives, through ``torch.distributed``: gloo (or whatever backs the group)."""

from __future__ import annotations

from torch import distributed as dist

from collectives.backends import Call


def perform(call: Call) -> None:
    """Perform the collective by torch's function of that name; the library picks the algorithm."""
    group = call.group or dist.group.WORLD
    match call.collective:
        case "all_reduce":
            dist.all_reduce(call.output, op=call.op, group=group)
        case "broadcast":
            dist.broadcast(call.output, group=group, group_src=call.root)
        case "reduce":
            dist.reduce(call.output, op=call.op, group=group, group_dst=call.root)
        case "all_gather":
            dist.all_gather_into_tensor(call.output, call.input, group=group)
        case "reduce_scatter":
            dist.reduce_scatter_tensor(call.output, call.input, op=call.op, group=group)
        case _:
            raise ValueError(f"torch_native does not perform {call.collective!r}")

"""Add to the engine what CONTRIBUTING calls a newcomer's first change: a transport, and an op.

`run` has every rank perform all algorithms over them, and reports {"case": ..., "ok": bool} for
each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import distributed as dist

import collectives
from collectives.algorithms import executable
from collectives.engine import group
from collectives.engine.buffers import fill, hand_over
from collectives.engine.call import Call, CompiledCall
from collectives.engine.ops import OPS, Op
from collectives.engine.program import Average, Recv, Reduce, Send, Span, Wait
from collectives.engine.reduce import divide, reduce

Event = dict[str, Any]
N = 103
HYPOT: Any = "HYPOT"  # sqrt(a * a + b * b), which is associative


class OverGloo:
    """A transport by the sends and receives of torch's own group, one instruction after the other."""

    ranks_per_host = 1

    @classmethod
    def connect(cls, group: dist.ProcessGroup, is_background: bool) -> OverGloo:
        return cls()

    def run(self, made: CompiledCall, call: Call) -> None:
        works, rank, p = dict[int, Any](), dist.get_rank(), dist.get_world_size()
        tensor, scratch = fill(call, made, rank, p)

        def view(span: Span) -> torch.Tensor:
            return (scratch if span.scratch else tensor)[span.start : span.stop]

        for do in made.plan.instructions():
            match do:
                case Send():
                    works[do.number] = dist.isend(
                        torch.cat([view(span) for span in do.spans]), do.peer, tag=do.step
                    )
                case Recv():
                    works[do.number] = dist.irecv(view(do.into), do.peer, tag=do.step)
                case Wait():
                    works[do.number].wait()
                case Reduce():
                    reduce(call.op, view(do.into), [view(span) for span in do.operands])
                case Average() if call.op == dist.ReduceOp.AVG:
                    divide(view(do.span), p)
        hand_over(call, tensor, made.edges, rank, p)

    def close(self) -> None:
        pass


def hypot(into: Any, one: Any, other: Any, count: int) -> None:
    """Write the lengths of the vectors (one, other)."""
    for i in range(count):
        into[i] = np.sqrt(one[i] * one[i] + other[i] * other[i])


def run(settings: Event, report: Callable[[Event], None]) -> None:
    torch.set_num_threads(1)
    p, rank = dist.get_world_size(), dist.get_rank()
    every = [torch.arange(1.0, N + 1) * (each + 1) for each in range(p)]
    whole: dict[Any, Any] = {dist.ReduceOp.SUM: sum(every), dist.ReduceOp.AVG: sum(every) / p}  # type: ignore[operator]
    if settings["what"] == "transport":
        group.CONNECT["gloo"] = OverGloo.connect
    else:
        OPS[HYPOT] = Op(torch.hypot, hypot, hypot)
        whole = {HYPOT: torch.stack(every).square().sum(dim=0).sqrt()}
    for (collective, algorithm), (op, expected) in (
        (each, one) for each in executable() for one in whole.items()
    ):
        if collective == "all_reduce":
            tensor = every[rank].clone()
            collectives.all_reduce(tensor, op, algorithm=algorithm)
            ok = torch.tensor(torch.allclose(tensor, expected))
            dist.all_reduce(ok, dist.ReduceOp.PRODUCT)
            if rank == 0:
                report({"case": f"{algorithm} {op}", "ok": bool(ok)})

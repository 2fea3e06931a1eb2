"""What every rank does for test_overlap.py: steps with ragged layers, by right hooks and by wrong ones, counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import distributed as dist

from collectives import api
from collectives.backends import backend
from collectives.engine.call import Call
from collectives.torch_backend import hook
from collectives_book.overlap import ranks as overlap
from collectives_book.overlap.hooks import NOTHING, Hook

WIDTHS = [70, 5, 30, 11, 2, 17]
WAITING = 0.001  # of a layer


def run(settings: dict[str, Any], report: Callable[[dict[str, Any]], None]) -> None:
    torch.set_num_threads(1)
    called: list[int] = []
    perform = api.perform

    def counted(call: Call) -> Any:
        called.append(4 * call.any_tensor().numel())
        return perform(call)

    api.perform = counted  # type: ignore[assignment]
    for buckets in settings["buckets"]:
        for name, one in {"ring": hook("ring"), "two_tree": hook("two_tree"), **FAULTS}.items():
            report({"case": name, "asked": buckets, **case(one, buckets, called)})


def case(one: Hook, buckets: int, called: list[int]) -> dict[str, Any]:
    """The third step, when the buckets are made anew: what was reduced and when, on rank 0.

    Wrong gradients on all.
    """
    told = {
        "widths": WIDTHS,
        "seconds": WAITING,
        "batch": 3,
        "algorithms": ["it"],
        "repetitions": 1,
    }
    trial = overlap.Trial(told, buckets, {"it": one}, backend("p2p"))
    trial.step(NOTHING)
    trial.step(NOTHING)
    called.clear()
    step = trial.step("it")
    wrong = torch.tensor(step.wrong)
    dist.all_reduce(wrong)
    return {
        "wrong": int(wrong),
        "called": list(called),
        "bytes": trial.bytes,
        "reduced": [(note.nth, note.bytes) for note in trial.recorded.buckets],
        "first": trial.recorded.buckets[0].ready,
        "first_layer": trial.stack.marks[-2],  # when its backward pass began
        "marks": len(trial.stack.marks),
        "spans": [tuple(span) for span in step.spans],
        "gradients": torch.cat(
            [weight.grad.view(-1) for weight in trial.stack.parameters()]
        ).tolist(),
    }


def summed_twice(state: Any, bucket: Any) -> Any:
    """A bucket is reduced again when its sum is there."""
    for _ in range(2):
        dist.all_reduce(bucket.buffer())
    return done(bucket.buffer().div_(dist.get_world_size()))


def averaged_twice(state: Any, bucket: Any) -> Any:
    """The average of averages is the same: gradients do not tell."""
    hook("ring")(state, bucket).wait()
    return hook("ring")(state, bucket)


def left_out(state: Any, bucket: Any) -> Any:
    """The last bucket keeps this rank's own gradients."""
    return done(bucket.buffer()) if bucket.is_last() else hook("ring")(state, bucket)


def done(buffer: torch.Tensor) -> Any:
    future: Any = torch.futures.Future()
    future.set_result(buffer)
    return future


FAULTS: dict[str, Hook] = {
    "summed twice": summed_twice,
    "averaged twice": averaged_twice,
    "left out": left_out,
}

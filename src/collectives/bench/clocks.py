"""The clocks of a measurement: the seconds of one call on this rank, or of many calls in a row.

All ranks meet before a call, and the clock says how: by our own messages, at a moment on the clock
that ranks of one machine share, or on the GPUs themselves.
"""

import time
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch import distributed as dist

from collectives.backends import Backend, backend
from collectives.engine.call import Call
from collectives.launch.where import parse_where

# How often the time of an agreement is measured: the first times connections are made.
TRIES = 3


def clock_of(where: str, one: Backend) -> str:
    """Return the clock that times a call: on emulated hosts the one that their ranks share, else a GPU's own."""
    if parse_where(where).is_emulated:
        return "agreed"
    return "gpu" if one.device().type == "cuda" else "met"


def back_to_back(act: Callable[[], Any], one: Backend, calls: int) -> list[float]:
    """Return the seconds from the end of each call to the end of the next, on this rank or its GPU."""
    _latest(0.0)
    if one.device().type == "cuda":
        events = [torch.cuda.Event(enable_timing=True) for _ in range(calls + 1)]  # type: ignore[no-untyped-call]
        events[0].record()
        for event in events[1:]:
            act()
            event.record()
        torch.cuda.synchronize()
        seconds = [float(begin.elapsed_time(end)) * 1e-3 for begin, end in pairwise(events)]
    else:
        moments = [time.perf_counter()]
        for _ in range(calls):
            act()
            moments.append(time.perf_counter())
        seconds = [end - begin for begin, end in pairwise(moments)]
    one.flush()
    _latest(0.0)
    return seconds


def _on_the_clock(act: Callable[[], None], one: Backend, _: str) -> float:
    """Return the seconds of a call from when all ranks have met by our own messages.

    4 ranks on 2 cores leave a barrier of gloo's a millisecond apart. Ranks meet again after the
    call, because one that went on would check its sum on a core that another needs to finish; only
    after `flush`, without which Open MPI's last messages may wait until this rank calls MPI again.
    """
    _latest(0.0)
    start = time.perf_counter()
    act()
    seconds = time.perf_counter() - start
    one.flush()
    _latest(0.0)
    return seconds


def _on_the_common_clock(act: Callable[[], None], one: Backend, _: str) -> float:
    """Return the seconds of a call from a moment that all ranks have agreed on before it came.

    For ranks on one machine, which share its clock, and links so slow that they leave a barrier far
    apart: after a ring one hop. A GPU is idle when the moment comes, and has finished the call when
    the time ends.
    """
    _finish(one)
    start = _latest(time.monotonic()) + 3 * _trip()
    time.sleep(max(0.0, start - time.monotonic()))
    act()
    _finish(one)
    seconds = time.monotonic() - start
    one.flush()
    time.sleep(_trip())  # a rank that is done leaves the processor to the others
    return seconds


def _finish(one: Backend) -> None:
    """Wait until this rank's GPU is idle, if it has one."""
    if one.device().type == "cuda":
        torch.cuda.synchronize()


@cache
def _trip() -> float:
    """Return the seconds in which all ranks learn the latest moment: the longest time of any rank in the last try."""
    longest = 0.0
    for _ in range(TRIES):
        _latest(0.0)
        began = time.monotonic()
        _latest(0.0)
        longest = _latest(time.monotonic() - began)
    return longest


def _latest(moment: float) -> float:
    """Return the largest of all ranks' numbers, by our own messages, which take a fraction of the time of gloo's."""
    number = torch.tensor([moment], dtype=torch.float64)
    backend("p2p").perform(
        Call("all_reduce", number, number, dist.ReduceOp.MAX, algorithm="recursive_doubling")
    )
    return number.item()


def _on_the_gpu_s_clock(act: Callable[[], None], one: Backend, collective: str) -> float:
    """Return the seconds from when all ranks' GPUs are ready until this rank's GPU has finished the call.

    Ranks first exchange a number on the same stream. That ends on every GPU when the last rank has
    arrived, so the time has no skew of the hosts, and most of a launch is hidden behind it. Ranks
    still begin up to a hop apart, because a ring's or tree's last messages arrive one after the
    other: too far on emulated hosts.
    """
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    met = torch.zeros(dist.get_world_size(), device=one.device())
    torch.cuda.synchronize()
    # Under NCCL_ALGO=PAT an all-reduce is an error, and under Tree an all-gather is.
    if collective in ("all_gather", "reduce_scatter"):
        dist.all_gather_into_tensor(met, met[:1].clone(), group=one.group())
    else:
        dist.all_reduce(met, group=one.group())
    begin.record()
    act()
    end.record()
    end.synchronize()
    one.flush()
    return float(begin.elapsed_time(end)) * 1e-3


# What a row's "timing" says, where calls are not made back to back.
CLOCKS = {"met": _on_the_clock, "agreed": _on_the_common_clock, "gpu": _on_the_gpu_s_clock}

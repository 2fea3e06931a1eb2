"""A group of ours on one rank: callbacks that call, what the profiler sees, and what torch keeps of the group."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.profiler import profile

import collectives.torch_backend
from collectives.engine.work import Work
from collectives.torch_backend.group import Group
from collectives_logs.kineto import read

LIMIT = 60.0  # seconds


@pytest.fixture
def group() -> Iterator[Group]:
    dist.init_process_group(
        "cpu:collectives,cuda:gloo", store=dist.HashStore(), rank=0, world_size=1
    )
    assert isinstance(dist.group.WORLD, Group)
    yield dist.group.WORLD
    if dist.is_initialized():
        dist.destroy_process_group()


def held(group: Group) -> tuple[list[Work], threading.Event]:
    """Three calls that begin when the event is set."""
    go = threading.Event()
    first = group._run("barrier", [torch.ones(1)], [], [lambda _: go.wait(LIMIT)])  # type: ignore[list-item, return-value]
    return [first, *[dist.all_reduce(torch.ones(3), async_op=True) for _ in range(2)]], go


def call(later: Work) -> list[torch.Tensor]:
    return dist.all_reduce(torch.full((3,), 2.0), async_op=True).get_future().wait()  # type: ignore[no-any-return]


def wait(later: Work) -> list[torch.Tensor]:
    later.wait()
    return later.result()


def future(later: Work) -> list[torch.Tensor]:
    return later.get_future().wait()


@pytest.mark.parametrize("do", [call, wait, future])
def test_a_callback_may_call_and_wait(
    group: Group, do: Callable[[Work], list[torch.Tensor]]
) -> None:
    """Also for a call that is queued behind the one whose callback it is."""
    (_, first, later), go = held(group)
    done, seen = threading.Event(), list[Any]()

    def callback(_: object) -> None:
        seen.append(do(later))
        done.set()

    first.get_future().then(callback)
    go.set()
    assert done.wait(LIMIT)
    assert [each.tolist() for each in seen[0]] == [[2.0 if do is call else 1.0] * 3]


def test_calls_of_a_callback_come_before_what_is_queued(group: Group) -> None:
    (_, first, later), go = held(group)
    order: list[str] = []
    later.get_future().then(lambda _: order.append("queued"))
    first.get_future().then(lambda _: order.append(f"called {len(call(later))}"))
    go.set()
    later.wait()
    dist.barrier()
    assert order == ["called 1", "queued"]


def test_a_group_that_a_callback_destroys_ends(group: Group) -> None:
    (_, first, later), go = held(group)
    done = threading.Event()

    def callback(_: object) -> None:
        dist.destroy_process_group()
        with pytest.raises(RuntimeError, match="the process group was destroyed"):
            later.wait()
        done.set()

    first.get_future().then(callback)
    thread = next(each for each in threading.enumerate() if each.name == "collectives")
    go.set()
    assert done.wait(LIMIT)
    thread.join(LIMIT)
    assert not thread.is_alive()


def test_the_profiler_shows_each_call(group: Group, tmp_path: Path) -> None:
    """With its own end, not the profiler's, so that `collectives read` can say how long it took."""
    with profile() as profiled:
        dist.all_reduce(torch.ones(3))
        dist.all_gather([torch.ones(3)], torch.ones(3), async_op=True).wait()
        dist.barrier()
    names = [event.name for event in profiled.events() if event.name.startswith("collectives:")]
    assert names == ["collectives:all_reduce", "collectives:all_gather", "collectives:barrier"]
    profiled.export_chrome_trace(str(tmp_path / "trace.json"))
    calls = read(tmp_path / "trace.json").calls
    assert [name for name, _ in calls] == ["all_reduce", "all_gather", "barrier"]
    assert len({each.order[0] + each.durations[0] for each in calls.values()}) == 3


def test_an_empty_list_is_refused(group: Group) -> None:
    with pytest.raises(
        ValueError, match="all_reduce: got an empty list, expected at least one tensor"
    ):
        group.allreduce_coalesced([])
    with pytest.raises(ValueError, match="all_gather: got an empty list"):
        group.all_gather_single_coalesced([], [])
    with pytest.raises(ValueError, match="reduce_scatter: got an empty list"):
        group.reduce_scatter_single_coalesced([], [])


def test_torch_keeps_no_base_of_a_destroyed_group(group: Group) -> None:
    """On a machine with GPUs the base over NCCL stands in torch's book."""
    c10d._world.pg_group_ranks[group.base("cpu")] = {0: 0}
    dist.destroy_process_group()
    assert len(c10d._world.pg_group_ranks) == 0


@pytest.mark.parametrize("how", ["shutdown", "abort"])
def test_a_group_ends_the_groups_under_it(
    group: Group, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """NCCL warns at the program's exit of a group that was not shut down."""
    ended = list[object]()
    monkeypatch.setattr(dist.ProcessGroup, how, ended.append)
    bases = list(group._bases.values())
    dist.destroy_process_group() if how == "shutdown" else group.abort()
    assert ended == bases


def test_a_device_that_another_back_end_was_to_take_is_refused(group: Group) -> None:
    with pytest.raises(
        ValueError, match="device: got cuda, for which this group names gloo, expected collectives"
    ):
        group.base("cuda")
    assert collectives.torch_backend.__all__ == ["Options", "hook"]

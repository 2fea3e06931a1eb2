"""Ranks as threads of this process: ``where="threads"`` starts no process, for tests and for measuring code alone.

Each thread has torch.distributed's book of process groups to itself, so the same module runs as on any other launcher.
The threads share the interpreter, whose lock lets one of them compute at a time.
"""

import importlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from collectives.launch.address import loopback_interface
from collectives.launch.request import Request
from collectives.processes.supervise import Event, RankError

# Seconds that ranks have to end after one of them has failed.
GRACE = 10.0

_one_at_a_time = threading.Lock()
_this_rank = threading.local()


def shared() -> dict[bytes, Any] | None:
    """What the ranks of this thread's launch share, to be filled by them; None if this thread is not a rank."""
    found: dict[bytes, Any] | None = getattr(_this_rank, "shared", None)
    return found


def launch(wanted: Request) -> list[Event]:
    """`collectives.launch.launch`, by threads. Raises RankError when a rank fails or ``timeout`` seconds are over."""
    run, events, errors = importlib.import_module(wanted.module).run, list[Event](), dict[int, BaseException]()
    ranks, timeout = wanted.ranks, wanted.timeout

    def report(event: Event) -> None:
        events.append(event)
        wanted.on_event(event)

    with _one_at_a_time, _environment(wanted.environment), _a_world_for_each_thread():
        job = wanted.settings, ranks, timeout, _store(), dict[bytes, Any]()
        threads = [
            threading.Thread(
                target=_rank, args=(rank, run, report if rank == 0 else lambda _: None, errors, *job), daemon=True
            )
            for rank in range(ranks)
        ]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + timeout + GRACE
        for thread in threads:
            left = max(0.0, deadline - time.monotonic())
            thread.join(min(left, GRACE) if errors else left)
    late = [rank for rank, thread in enumerate(threads) if thread.is_alive()]
    if errors:
        first = next(iter(errors))
        raise RankError(f"rank {first} of {ranks} failed: {errors[first]}") from errors[first]
    if late:
        raise RankError(f"rank {late[0]} of {ranks} timed out after {timeout:g} s")
    return events


def _rank(
    rank: int,
    run: Callable[[Event, Callable[[Event], None]], None],
    report: Callable[[Event], None],
    errors: dict[int, BaseException],
    settings: Event,
    ranks: int,
    timeout: float,
    store: Any,
    both: dict[bytes, Any],
) -> None:
    from torch import distributed as dist

    _this_rank.world, _this_rank.shared = _empty_world(), both
    try:
        dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=timeout))
        run(settings, report)
        dist.barrier()
    except BaseException as error:
        errors[rank] = error
    finally:  # which ends connections that others wait for
        if dist.is_initialized():
            dist.destroy_process_group()


def _store() -> Any:
    from torch import distributed as dist

    return dist.HashStore()  # type: ignore[attr-defined]  # public, but not in the package's list


@contextmanager
def _environment(more: Mapping[str, str]) -> Iterator[None]:
    """Variables of this process while its threads are ranks; gloo listens on the loopback interface alone."""
    wanted = {"GLOO_SOCKET_IFNAME": loopback_interface(), "LOCAL_RANK": "0", **more}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class _Worlds:
    """torch.distributed's book of process groups: a rank's own in its thread, the process's in every other."""

    def __init__(self, process: Any) -> None:
        vars(self)["process"] = process

    def __getattr__(self, name: str) -> Any:
        return getattr(getattr(_this_rank, "world", self.process), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(getattr(_this_rank, "world", self.process), name, value)


def _empty_world() -> SimpleNamespace:
    maps = ("pg_map", "pg_names", "pg_group_ranks", "pg_backend_config", "tags_to_pg", "pg_to_tag", "pg_coalesce_state")
    return SimpleNamespace(default_pg=None, group_count=0, comms=[], **{name: {} for name in maps})


@contextmanager
def _a_world_for_each_thread() -> Iterator[None]:
    """As torch's own tests have it (torch.testing._internal.distributed.multi_threaded_pg)."""
    from torch._C._distributed_c10d import _set_thread_isolation_mode  # type: ignore[attr-defined]
    from torch.distributed import distributed_c10d

    process = distributed_c10d._world
    distributed_c10d._world = _Worlds(process)  # type: ignore[assignment]
    _set_thread_isolation_mode(True)
    try:
        yield
    finally:
        _set_thread_isolation_mode(False)
        distributed_c10d._world = process

"""What every rank does for test_alike.py: calls that ranks could take differently, and what each of them saw.

`run` reports one event per case: {"case": …, "seen": [what rank 0 saw, what rank 1 saw, …]}.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist

import collectives
from collectives.autotune import VARIABLE
from collectives.backends import backend
from collectives.engine.call import Call

Seen = Any
LIMIT = timedelta(seconds=5)
ROUNDS = 40


def run(settings: dict[str, Any], report: Callable[[dict[str, Any]], None]) -> None:
    torch.set_num_threads(1)
    rank, p = dist.get_rank(), dist.get_world_size()
    for case in CASES:
        seen = case(rank, p, settings)
        report({"case": case.__name__, "seen": everyone(seen, p)})


def everyone(seen: Seen, p: int) -> list[Seen]:
    told: list[Any] = [None] * p
    dist.all_gather_object(told, json.loads(json.dumps(seen)))
    return told


def chosen(collective: str, n: int, group: dist.ProcessGroup, **more: Any) -> Seen:
    """What our back end did, or said was wrong."""
    x = torch.zeros(n)
    try:
        return list(
            backend("p2p").perform(Call(collective, x, x.clone(), None, None, group, **more))[:2]
        )
    except (RuntimeError, ValueError) as error:
        return str(error)


def sent(sizes: Callable[[int, int], int], rank: int, p: int, name: str) -> Seen:
    """Whether an all-to-all of lists, with ``sizes(r, s)`` elements from rank r to rank s, is right; or the error."""
    given = [torch.full((sizes(rank, s),), 100.0 * rank + s) for s in range(p)]
    room = [torch.full((sizes(r, rank),), -1.0) for r in range(p)]
    try:
        collectives.all_to_all(room, given, group=dist.new_group(timeout=LIMIT), algorithm=name)
    except (RuntimeError, ValueError) as error:
        return str(error)
    return all(
        torch.equal(each, torch.full_like(each, 100.0 * r + rank)) for r, each in enumerate(room)
    )


def splits_of_very_different_sizes(rank: int, p: int, _: dict[str, Any]) -> Seen:
    """The last rank sends itself a megabyte; all else is next to nothing."""
    return sent(lambda r, s: 300_000 if r == s == p - 1 else 1 + r, rank, p, "auto")


def splits_alike_on_one_rank_only(rank: int, p: int, _: dict[str, Any]) -> Seen:
    """Rank 0 sends and gets 5 elements each way: nothing it knows tells it from an all-to-all of equal parts."""
    return sent(lambda r, s: 5 if 0 in (r, s) else 1 + r + s, rank, p, "auto")


def splits_longer_than_a_block(rank: int, p: int, _: dict[str, Any]) -> Seen:
    """Rank 0 sends much to the last rank, and nothing to itself."""
    return sent(lambda r, s: 300_000 if (r, s) == (0, p - 1) else r + 2 * s, rank, p, "auto")


def splits_with_an_algorithm_that_passes_on(rank: int, p: int, _: dict[str, Any]) -> Seen:
    return sent(lambda r, s: 5 if 0 in (r, s) else 1 + r + s, rank, p, "bruck")


def what_splits_choose(rank: int, p: int, _: dict[str, Any]) -> Seen:
    """Split sizes of 1 on each rank, and of 300,000."""
    group = dist.new_group(timeout=LIMIT)
    return [chosen("all_to_all", n * p, group, splits=((n,) * p,) * 2) for n in (1, 300_000)]


def machines_named_differently(rank: int, p: int, _: dict[str, Any]) -> Seen:
    """Rank 0 names a machine with long latencies, rank 1 one with short ones, the others none, or an unknown one."""
    return under(["1s,1GB/s", "1us,1MB/s", None, "nosuch"][rank % 4])


def files_of_different_content(rank: int, p: int, settings: dict[str, Any]) -> Seen:
    """Each rank's own file of one name, as on nodes that were calibrated apart."""
    file = Path(settings["folder"]) / str(rank) / "mine.yaml"
    file.parent.mkdir()
    latency = "1s" if rank == 0 else "1us"
    file.write_text(
        f"name: mine\nnetwork: {{latency: {latency}, rate: {'1GB/s' if rank == 0 else '1MB/s'}}}\n"
    )
    return under(str(file))


def a_machine_that_is_not_there(rank: int, p: int, _: dict[str, Any]) -> Seen:
    return under("nosuch" if rank == 0 else None)


def under(machine: str | None) -> Seen:
    """What is chosen in a new group with this rank's environment, first in the foreground, then in the background."""
    before = os.environ.pop(VARIABLE, None)
    if machine is not None:
        os.environ[VARIABLE] = machine
    group = dist.new_group(timeout=LIMIT)
    seen = [reduced(group, background) for background in (False, True)]
    os.environ.pop(VARIABLE, None)
    if before is not None:
        os.environ[VARIABLE] = before
    return seen


def reduced(group: dist.ProcessGroup, background: bool) -> Seen:
    x = torch.ones(1 << 14)
    call = Call("all_reduce", x, x, dist.ReduceOp.SUM, None, group, background=background)
    try:
        return list(backend("p2p").perform(call)[:2])
    except (RuntimeError, ValueError) as error:
        return str(error)


def two_threads(rank: int, p: int, _: dict[str, Any]) -> Seen:
    """Both sum on one group, in an order that nobody has said: every sum is right, or an error."""
    group = dist.new_group(timeout=LIMIT)
    seen: list[list[str]] = [[], []]
    start = threading.Barrier(2)

    def sums(which: int) -> None:
        start.wait()
        for i in range(ROUNDS):
            if (rank + which) % 2:
                time.sleep(1e-3)  # so that ranks take them in different orders
            x = torch.full((64,), float(1000 * which + rank))
            try:
                collectives.all_reduce(x, group=group, algorithm="recursive_doubling")
            except RuntimeError as error:
                seen[which].append(str(error))
                return
            right = torch.full_like(x, 1000.0 * which * p + p * (p - 1) // 2)
            if not torch.equal(x, right):
                seen[which].append(f"wrong in round {i}")

    threads = [threading.Thread(target=sums, args=(which,)) for which in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return seen


def nothing_is_left(rank: int, p: int, _: dict[str, Any]) -> Seen:
    """Descriptors and threads, after a few groups and after many, used in the foreground, the background, or both."""
    counts = []
    for rounds in (2, 40):
        for i in range(rounds):
            use(dist.new_group(timeout=LIMIT), i)
        counts.append(settled(counts[0] if counts else None))
    return counts


def use(group: dist.ProcessGroup, i: int) -> None:
    x = torch.ones(100)
    if i % 3 != 1:
        work = collectives.all_reduce(x, group=group, async_op=True, algorithm="ring")
        assert work
        work.wait()
    if i % 3:
        collectives.all_reduce(x, group=group, algorithm="ring")
    dist.destroy_process_group(group)


def settled(wanted: list[int] | None) -> list[int]:
    """How many there are, once threads that were told to end have had the time to."""
    deadline = time.monotonic() + 10
    while (now := there()) != wanted and wanted is not None and time.monotonic() < deadline:
        time.sleep(0.05)
    return now


def there() -> list[int]:
    me = Path("/proc/self")
    return [len(list((me / what).iterdir())) for what in ("fd", "task")] if me.is_dir() else [0, 0]


CASES = [
    splits_of_very_different_sizes,
    splits_alike_on_one_rank_only,
    splits_longer_than_a_block,
    splits_with_an_algorithm_that_passes_on,
    what_splits_choose,
    machines_named_differently,
    files_of_different_content,
    a_machine_that_is_not_there,
    two_threads,
    nothing_is_left,
]

"""The parts of `make gpu-check`: each launches ranks for some seconds, and notes what they report."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import torch

from collectives.backends import backend
from collectives.bench import Row, Settings, bench
from collectives.bench.settings import group_by_launch
from collectives.emulator import allowed
from collectives.launch import launch
from collectives.nccl import gpus
from collectives.units import duration, format_bytes
from ranks.cut_cable import cut_cable

TASK = "gpu_cases"
ALONE = "one GPU"

# Ranks that share GPUs, at most; and the emulated hosts' links, a thousand times as slow as fast
# ones.
RANKS, LINK = 8, "5ms,25MB/s"
SIZES = [4, 1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20]
# Which NCCL reads by itself where it exists.
NO_TOPOLOGY = "/var/run/nvidia-topologyd/virtualTopology.xml"
OURS = ["ring", "two_tree", "circulant", "recursive_doubling"]

Note = Callable[[Row], None]


def one_gpu(seconds: float, note: Note) -> None:
    """Have one rank use two streams and send to itself."""
    _checked("one_gpu", 1, seconds, note)


def ddp(seconds: float, note: Note) -> str | None:
    """Train over ours and over NCCL's own group on two ranks."""
    return _refused(2) or _checked("ddp", 2, seconds, note)


def algorithms(seconds: float, note: Note) -> None:
    """Perform every algorithm in groups of 1 to all ranks: one for each GPU, or several that share a single one."""
    count = torch.cuda.device_count()
    _checked("algorithms", count if count > 1 or _refused(2) else sharing(), seconds, note)


def bandwidth(seconds: float, note: Note) -> str | None:
    """Time large all-reduces by some of our algorithms beside NCCL's own, one rank for each GPU."""
    if (count := torch.cuda.device_count()) == 1:
        return ALONE
    ours, sizes = ["ring", "halving_doubling", "two_tree"], [64 << 10, 4 << 20, 64 << 20]
    wanted = Settings(
        algorithms=ours, backends=["p2p_nccl", "nccl"], ranks=count, bytes=sizes, repetitions=9
    )
    return _measured(wanted, seconds, note)


def loopback(seconds: float, note: Note) -> str | None:
    """Time NCCL's ring, tree and own choice, and our schedules, on ranks that share GPUs."""
    if reason := _refused(2):
        return reason
    backends = ["nccl:Ring", "nccl:Tree", "nccl", "p2p_nccl"]
    wanted = Settings(backends=backends, ranks=sharing(), share_gpus=True, **_ours())
    return _measured(wanted, seconds, note, hosts=sharing())


def horovod(seconds: float, note: Note) -> str | None:
    """Time Horovod by NCCL beside NCCL itself, on ranks that share GPUs."""
    if reason := backend("horovod").available() or _refused(2):
        return reason
    if not backend("horovod").on_gpus:
        return "Horovod is built without NCCL; `make horovod-nccl` builds it"
    wanted = Settings(
        backends=["horovod", "nccl"],
        ranks=sharing(),
        share_gpus=True,
        bytes=SIZES,
        repetitions=9,
    )
    return _measured(wanted, seconds, note, hosts=sharing())


def slow(typed: str, told: bool = False) -> Callable[[float, Note], str | None]:
    """Return the part that times a back end on emulated hosts of one rank each.

    NCCL gets the launcher's topology file with the speed and latency of their links if it is
    ``told``, else no file.
    """

    def run(seconds: float, note: Note) -> str | None:
        if reason := _refused(2) or _no_hosts():
            return reason
        wanted = Settings(backends=[typed], ranks=sharing(), where=f"cluster:{LINK}", **_ours())
        known = {"hosts": sharing(), "topology_file": LINK if told else None}
        with set_variables({} if told else {"NCCL_TOPO_FILE": NO_TOPOLOGY}):
            return _measured(wanted, seconds, note, **known)

    return run


@contextmanager
def set_variables(values: dict[str, str]) -> Iterator[None]:
    """Set variables of this process, which its ranks inherit, until the block ends.

    What the user has set stays.
    """
    added = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


def two_hosts(seconds: float, note: Note) -> str | None:
    """Time NCCL on two emulated hosts of several ranks each, which only NCCL 2.30 and newer lets share a GPU."""
    if reason := _refused(4) or _no_hosts() or _refusal(gpus.several_ranks):
        return reason
    each = sharing() // 2
    wanted = Settings(
        backends=["nccl", "p2p_nccl"], ranks=2 * each, where=f"cluster:{LINK},{each}", **_ours()
    )
    return _measured(wanted, seconds, note, hosts=2)


def cut(seconds: float, note: Note) -> str | None:
    """Cut the cable of one of up to four hosts in the middle of an all-reduce."""
    if reason := _refused(2) or _no_hosts():
        return reason
    cut_cable("nccl", min(4, sharing()), seconds, note)
    return None


def sharing() -> int:
    """Return how many ranks share the GPUs: eight, or as many as the cores allow."""
    return min(RANKS, gpus.most(gpus.visible()))


def _refused(ranks: int) -> str | None:
    """Return why so many ranks cannot share GPUs here, or None."""
    return _refusal(lambda: gpus.need(ranks))


def _refusal(check: Callable[[], object]) -> str | None:
    try:
        check()
    except ValueError as error:
        return str(error)
    return None


@cache
def _no_hosts() -> str | None:
    return allowed()


def _ours() -> Row:
    """Return what the settings of all slow measurements have in common.

    Calls of half a second leave time for few.
    """
    return {"algorithms": OURS, "bytes": SIZES, "repetitions": 5, "warmups": 1}


def _checked(check: str, ranks: int, seconds: float, note: Note) -> None:
    """Have ranks perform one check (`gpu_cases.run`)."""
    settings, share = (
        {"check": check, "over": "nccl", "seconds": seconds},
        ranks > torch.cuda.device_count(),
    )
    launch(TASK, settings, ranks, timeout=seconds, on_event=note, share_gpus=share)


def _measured(wanted: Settings, seconds: float, note: Note, **known: object) -> None:
    """Note each row when it is measured, with what is ``known`` of it, and rank 0's environment in each launch."""

    def keep(event: Row) -> None:
        if "environment" in event:
            note({"environment": event["environment"][0]})
        for row in event.get("rows", []):
            note({"row": row} | known)
            time = f"{duration(row['median_us'] * 1e-6):>9}"
            print(
                f"    {row['backend']:<9}{row['algorithm']:<20}{format_bytes(row['bytes']):>8}  {time}",
                flush=True,
            )

    bench([wanted.model_copy(update={"timeout": seconds / len(group_by_launch([wanted]))})], keep)

"""NCCL's part of a rank: its GPU, the process group beside gloo's, and the version."""

import ctypes
import os
import re
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist

from collectives.nccl import gpus, topology_file

MAPS = Path("/proc/self/maps")  # the files that this process has mapped into its memory
BLOCKING_SYNC = 4  # cudaDeviceScheduleBlockingSync


def device() -> torch.device:
    """Return this rank's GPU, now the current one: the only visible one, else the one with its number on its machine.

    Raises RuntimeError if there is none. Where two ranks see one and the same GPU only, NCCL itself
    refuses it, unless the launcher has them share it.
    """
    local, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if count == 1:
        local = 0  # a scheduler may show each task a GPU of its own, which every task calls 0
    if local >= count:
        found = f"this is rank {local} of its machine, which has {count}"
        raise RuntimeError(
            f"NCCL needs a GPU for each rank: {found}; with --share-gpus ranks share them"
        )
    if gpus.VARIABLE in os.environ:
        _wait_without_spinning()
    torch.cuda.set_device(local)
    return torch.device("cuda", local)


def devices() -> str:
    """Return the GPUs of this machine, as text."""
    return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}"


def record() -> dict[str, Any]:
    """Return the GPU of this rank, its UUID, the driver's version, and NCCL's, for an environment record."""
    gpu = torch.cuda.get_device_properties(device())
    return {
        "gpu": gpu.name,
        "gpu_uuid": str(gpu.uuid),
        "driver": driver(),
        "nccl": version(),
    }


@cache
def _wait_without_spinning() -> None:
    """Have this process sleep while it waits for its GPU: CUDA has to know before it makes its context."""
    runtime = _loaded("libcudart")
    if runtime is None or runtime.cudaSetDeviceFlags(BLOCKING_SYNC):
        warnings.warn(
            "CUDA spins while it waits: cudaSetDeviceFlags failed", RuntimeWarning, stacklevel=2
        )


def _loaded(name: str) -> ctypes.CDLL | None:
    """Return a library that this process has loaded, whose file may have a hash in its name.

    None without it.
    """
    is_library = re.compile(rf"{name}(-[0-9a-f]+)?\.so[.\d]*").fullmatch
    lines = MAPS.read_text().splitlines() if MAPS.exists() else []
    paths = [line.split(maxsplit=5)[-1] for line in lines if "/" in line]
    return next((ctypes.CDLL(path) for path in paths if is_library(Path(path).name)), None)


@cache
def group() -> dist.ProcessGroup:
    """Return the process group of all ranks over NCCL; made once, by all of them.

    Raises RuntimeError without a GPU.
    """
    device()
    made = dist.new_group(backend="nccl")
    if not isinstance(made, dist.ProcessGroup):
        raise RuntimeError("this process is not a member of the group of all ranks")
    return made


def predict(act: Callable[[], None]) -> float | None:
    """Return the seconds that NCCL predicts for the collective of ``act`` in the group, by ncclGroupSimulateEnd.

    They are those of the link itself where a topology file describes it some times as fast. None
    where torch or NCCL has no prediction. Nothing is sent. The group must have made a call before,
    which makes its communicator, and every rank calls this alike, because NCCL may connect the
    ranks for its choice.
    """
    backend: Any = group()._get_backend(torch.device("cuda"))
    if not getattr(backend, "supports_time_estimate", False):
        return None
    backend._start_time_estimate()
    try:
        act()
    finally:  # else NCCL takes all later calls of this thread for more of this one
        microseconds = backend._end_time_estimate()
    return float(microseconds) * topology_file.times_as_fast() * 1e-6 if microseconds > 0 else None


def close() -> None:
    """Destroy the group, if it was made; every rank calls it."""
    if group.cache_info().currsize:
        dist.destroy_process_group(group())
        group.cache_clear()


def driver() -> str:
    """Return the version of NVIDIA's driver, such as 580.95.05, as its module says it.

    "unknown" without one.
    """
    said = Path("/proc/driver/nvidia/version")
    found = re.search(r"\d+\.\d+(\.\d+)?", said.read_text()) if said.exists() else None
    return found[0] if found else "unknown"


def version() -> str:
    """Return the version of the NCCL that this process has loaded, such as 2.27.3.

    Torch's own where none is a file.

    With LD_PRELOAD torch still reports the version that it was built with.
    """
    number, library = ctypes.c_int(), _loaded("libnccl")
    if library is None or library.ncclGetVersion(ctypes.byref(number)):
        return ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    major, rest = divmod(number.value, 10_000)
    return f"{major}.{rest // 100}.{rest % 100}"

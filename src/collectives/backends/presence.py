"""Which back ends are there: version and devices of each, or the reason why it is not, in one line."""

from __future__ import annotations

import os
from importlib import metadata
from typing import NamedTuple

from collectives.backends import BACKENDS
from collectives.launch import horovodrun, mpirun


class Presence(NamedTuple):
    """A back end as it is on this machine; ``absent`` is why it is not there, None where it is."""

    backend: str
    version: str = ""
    devices: str = ""
    absent: str | None = None


def presence(name: str) -> Presence:
    """What this machine has of a back end."""
    try:
        return Presence(name, *TRANSPORTS[BACKENDS[name].transport]())
    except ImportError as error:
        return Presence(name, absent=str(error))


def need(name: str) -> None:
    """Raise ImportError, with the reason, where a back end is absent."""
    absent = presence(name).absent
    if absent:
        raise ImportError(f"{name} is absent: {absent}")


def _torch() -> str:
    try:
        return f"torch {metadata.version('torch')}"
    except metadata.PackageNotFoundError:
        raise ImportError("torch is not installed; `pip install torch`") from None


def _gloo() -> tuple[str, str]:
    return _torch(), f"{os.cpu_count()} CPU cores"


def _nccl() -> tuple[str, str]:
    name = _torch()
    import torch

    from collectives.backends import nccl

    if not torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]
        raise ImportError(f"{name} is built without CUDA")
    if not torch.cuda.is_available():
        raise ImportError(f"{name} finds no GPU on this machine")
    return f"NCCL {nccl.version()}, {name}", f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}"


def _horovod() -> tuple[str, str]:
    horovodrun.need()
    return f"Horovod {metadata.version('horovod')}", f"{os.cpu_count()} CPU cores"


def _mpi() -> tuple[str, str]:
    mpirun.need()
    try:
        return f"mpi4py {metadata.version('mpi4py')}, {mpirun.version()}", f"{os.cpu_count()} CPU cores"
    except metadata.PackageNotFoundError:
        raise ImportError("mpi4py is not installed; `pip install mpi4py`") from None


TRANSPORTS = {"gloo": _gloo, "nccl": _nccl, "horovod": _horovod, "mpi": _mpi}

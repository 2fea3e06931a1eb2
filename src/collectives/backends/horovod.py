"""Horovod's collectives, on ranks that horovodrun started or that meet in torch's group.

It has five of the eight. Its tensors are on GPUs where Horovod is built with NCCL
(`make horovod-nccl`) and this machine has a GPU, else on CPUs.

Each call has a name, the same on every rank and from one call to the next: only then does Horovod
recognise a tensor that it has agreed on before, as it does in training. Where Horovod does not work
in place it returns a new tensor, and a copy into the caller's is part of the time.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import socket
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING, Any, ClassVar

from collectives.algorithms import OLIVE
from collectives.backends import Backend
from collectives.engine.call import Call, Performed
from collectives.launch.programs import need_horovodrun
from collectives.nccl import gpus

if TYPE_CHECKING:
    import torch
    from torch import distributed as dist
    from torch import nn
    from torch.optim import Optimizer


class Horovod(Backend):
    """Perform Horovod's collectives. Its background thread would disturb the timings of others."""

    launcher = "horovodrun"
    busy_polls = True
    packages = ("horovod",)
    fusion_variable = "HOROVOD_FUSION_THRESHOLD"
    collectives = ("broadcast", "all_gather", "reduce_scatter", "all_reduce", "all_to_all")
    dtypes = ("float16", "float32", "float64", "int32", "int64")
    ops = ("sum", "prod", "max", "min")
    ops_of: ClassVar[Mapping[str, tuple[str, ...]]] = {"reduce_scatter": ("sum",)}
    wraps_optimizers = True
    title = "Horovod"
    mark = OLIVE

    @property
    def on_gpus(self) -> bool:
        """True where Horovod is built with NCCL and this machine has a GPU."""
        return _on_gpus()

    def version(self) -> str:
        """Return Horovod's version and what it moves tensors by. Raises ImportError where it is not installed."""
        need_horovodrun()
        return f"Horovod {metadata.version('horovod')} with {' and '.join(operations())}"

    def devices(self) -> str:
        """Return the GPUs of this machine, or its cores, as text."""
        from collectives.backends import nccl

        return nccl.devices() if self.on_gpus else f"{os.cpu_count()} CPU cores"

    def device(self) -> torch.device:
        """Return the GPU of this rank where Horovod has NCCL, else the CPU."""
        from collectives.backends import nccl

        return nccl.device() if self.on_gpus else super().device()

    def group(self) -> dist.ProcessGroup | None:
        """Return torch's own group over NCCL, in which ranks on GPUs meet before a call; None on CPUs."""
        from collectives.backends import nccl

        return nccl.group() if self.on_gpus else None

    def record(self) -> dict[str, Any]:
        """Return what Horovod moves tensors by, and the GPU of this rank if it has one."""
        from collectives.backends import nccl

        return {"horovod_operations": ", ".join(operations())} | (
            nccl.record() if self.on_gpus else {}
        )

    def close(self) -> None:
        """Destroy torch's group over NCCL."""
        from collectives.backends import nccl

        nccl.close()

    def perform(self, call: Call) -> Performed:
        """Perform the collective by Horovod's function of that name.

        Raises ValueError for one that it does not have.
        """
        _perform(started(), call)
        return Performed(call.algorithm)

    def is_started(self) -> bool:
        """Return True if horovodrun has started this process."""
        return "HOROVOD_RANK" in os.environ

    def place(self) -> tuple[int, int]:
        """Return Horovod's number of this rank, and how many there are."""
        hvd = started()
        return hvd.rank(), hvd.size()

    def wrap_optimizer(self, optimizer: Optimizer, model: nn.Module) -> Optimizer:
        """Return Horovod's optimizer around torch's.

        The backward pass starts the sums of the gradients, and a step waits for them. By default it
        averages, which is right for equal shards only: so it sums.
        """
        hvd = started()
        wrapped: Optimizer = hvd.DistributedOptimizer(
            optimizer, named_parameters=model.named_parameters(), op=hvd.Sum
        )
        return wrapped


HOROVOD = Horovod("horovod")


@cache
def operations() -> tuple[str, ...]:
    """Return the libraries by which this build of Horovod moves tensors, as `horovodrun --check-build` names them.

    None of them where it is not installed.
    """
    if importlib.util.find_spec("horovod") is None:
        return ()
    import horovod.torch as hvd

    built = {"NCCL": hvd.nccl_built(), "MPI": hvd.mpi_built(), "Gloo": hvd.gloo_built()}
    return tuple(name for name, is_built in built.items() if is_built)


@cache
def _on_gpus() -> bool:
    """Return True if Horovod can take tensors on GPUs here; without a GPU it is not even imported."""
    return bool(gpus.visible()) and "NCCL" in operations()


def _perform(hvd: Any, call: Call) -> None:
    size = (
        call.any_tensor().numel() if call.splits is None else "splits"
    )  # with splits it is not the same on every rank
    name = f"{call.collective} {size} {call.any_tensor().dtype} {call.op} {call.root}"
    match call.collective:
        case "all_reduce":
            hvd.allreduce_(call.flat_output(), op=_op(hvd, call.op), name=name)
        case "broadcast":
            hvd.broadcast_(call.flat_output(), call.root, name=name)
        case "all_gather":
            call.flat_output().copy_(hvd.allgather(call.flat_input(), name=name))
        case "reduce_scatter":
            call.flat_output().copy_(
                hvd.reducescatter(call.flat_input(), op=_op(hvd, call.op), name=name)
            )
        case "all_to_all":
            call.flat_output().copy_(_all_to_all(hvd, call, name))
        case _:
            raise ValueError(f"horovod has no {call.collective!r}")


@cache
def started() -> Any:
    """Return the module ``horovod.torch``, initialised."""
    import horovod.torch as hvd

    if not HOROVOD.is_started():
        os.environ.update(_meet())
    hvd.init()
    return hvd


def _meet() -> dict[str, str]:
    """Return what horovodrun would set.

    Rank 0 keeps the meeting point, where torch's ranks become Horovod's.
    """
    from horovod.runner.common.util.hosts import HostInfo, get_host_assignments
    from horovod.runner.gloo_run import create_run_env_vars, create_slot_env_vars
    from horovod.runner.http.http_server import RendezvousServer
    from torch import distributed as dist

    from collectives.engine.handshake import all_gather_bytes

    names = [name.decode() for name in all_gather_bytes(socket.gethostname().encode())]
    plan = get_host_assignments(
        [HostInfo(host, names.count(host)) for host in dict.fromkeys(names)], len(names)
    )
    where = b""
    if dist.get_rank() == 0:
        server = RendezvousServer()
        where = f"{socket.gethostbyname(socket.gethostname())} {server.start()}".encode()
        server.init(plan)
        atexit.register(server.stop)
    host, port = all_gather_bytes(where)[0].decode().split()
    run = create_run_env_vars(host, [os.environ["GLOO_SOCKET_IFNAME"]], int(port))
    return {
        name: str(value)
        for name, value in (run | create_slot_env_vars(plan[dist.get_rank()])).items()
    }


def _op(hvd: Any, op: Any) -> Any:
    ops = {
        "SUM": hvd.Sum,
        "AVG": hvd.Average,
        "PRODUCT": hvd.Product,
        "MAX": hvd.Max,
        "MIN": hvd.Min,
    }
    if op is None or op.name not in ops:
        raise ValueError(f"op: got {op}, expected SUM, AVG, PRODUCT, MAX or MIN")
    return ops[op.name]


def _all_to_all(hvd: Any, call: Call, name: str) -> Any:
    if call.splits is None:
        return hvd.alltoall(call.flat_input(), name=name)
    import torch

    received, _ = hvd.alltoall(
        call.flat_input(), splits=torch.tensor(call.splits[0], dtype=torch.int32), name=name
    )
    return received

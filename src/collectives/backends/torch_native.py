"""The library's own collectives, through ``torch.distributed``: gloo on CPUs, NCCL on GPUs."""

from __future__ import annotations

import os
from importlib import metadata
from typing import TYPE_CHECKING, Any

from collectives.algorithms import GREEN, Mark
from collectives.backends import Backend
from collectives.engine.call import Call, Performed

if TYPE_CHECKING:
    import torch
    from torch import distributed as dist

# NCCL's, for NCCL_ALGO and NCCL_PROTO. Which of them a collective has depends on NCCL's version and
# the machine.
NCCL_ALGORITHMS = ("Ring", "Tree", "CollnetChain", "CollnetDirect", "NVLS", "NVLSTree", "PAT")
NCCL_PROTOCOLS = ("LL", "LL128", "Simple")


class OnCpus(Backend):
    """Keep tensors in main memory, and ranks in a gloo group."""

    packages: tuple[str, ...] = ("torch",)
    dtypes = ("float16", "bfloat16", "float32", "float64", "int32", "int64")

    def version(self) -> str:
        """Return torch's version. Raises ImportError if it or another package is not installed."""
        for name in self.packages:
            try:
                metadata.version(name)
            except metadata.PackageNotFoundError:
                raise ImportError(f"{name} is not installed; `pip install {name}`") from None
        return f"torch {metadata.version('torch')}"

    def devices(self) -> str:
        """Return the cores of this machine, as text."""
        return f"{os.cpu_count()} CPU cores"


class OnGpus(OnCpus):
    """Keep tensors on a GPU for each rank, and ranks in an NCCL group beside gloo's."""

    on_gpus = True

    def version(self) -> str:
        """Return NCCL's and torch's version.

        Raises ImportError without a GPU, or if torch is built without CUDA.
        """
        name = super().version()
        import torch

        from collectives.backends import nccl

        if not torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]
            raise ImportError(f"{name} is built without CUDA")
        if not torch.cuda.is_available():
            raise ImportError(f"{name} finds no GPU on this machine")
        return f"NCCL {nccl.version()}, {name}"

    def devices(self) -> str:
        """Return the GPUs of this machine, as text."""
        from collectives.backends import nccl

        return nccl.devices()

    def device(self) -> torch.device:
        """Return the GPU of this rank."""
        from collectives.backends import nccl

        return nccl.device()

    def group(self) -> dist.ProcessGroup:
        """Return the group of all ranks over NCCL."""
        from collectives.backends import nccl

        return nccl.group()

    def record(self) -> dict[str, Any]:
        """Return the GPU of this rank, its UUID, the driver's version, and NCCL's."""
        from collectives.backends import nccl

        return nccl.record()

    def close(self) -> None:
        """Destroy the NCCL group."""
        from collectives.backends import nccl

        nccl.close()


class Gloo(OnCpus):
    """Perform gloo's collectives."""

    collectives = (
        "broadcast",
        "scatter",
        "gather",
        "all_gather",
        "reduce",
        "reduce_scatter",
        "all_reduce",
        "all_to_all",
    )
    ops = ("sum", "prod", "max", "min")
    mark = Mark("#8c8c8c", "P")

    def perform(self, call: Call) -> Performed:
        """Perform the collective by torch's function of that name.

        The library picks the algorithm.
        """
        _perform(call)
        return Performed(call.algorithm)


class Nccl(OnGpus, Gloo):
    """Perform NCCL's collectives.

    NCCL reads its algorithm from variables when ranks start, so each needs a launch.
    """

    title = "NCCL"
    mark = GREEN

    def variables(self, algorithm: str, collective: str) -> dict[str, str]:
        """Return NCCL_ALGO and NCCL_PROTO.

        Raises ValueError for an algorithm that NCCL does not have.
        """
        del collective  # which algorithms one has depends on NCCL's version
        shape, _, protocol = algorithm.partition("/")
        if shape not in NCCL_ALGORITHMS or protocol not in ("", *NCCL_PROTOCOLS):
            raise ValueError(
                f"unknown algorithm '{self.name}:{algorithm}'; it is {'|'.join(NCCL_ALGORITHMS)}, "
                f"and /{'|/'.join(NCCL_PROTOCOLS)} may follow"
            )
        return {"NCCL_ALGO": shape} | ({"NCCL_PROTO": protocol} if protocol else {})

    def predict(self, call: Call) -> float | None:
        """Return the seconds of NCCL's cost model.

        None for what it makes of sends and receives, as an all-to-all.
        """
        from collectives.backends import nccl

        return nccl.predict(lambda: _perform(call))


GLOO, NCCL = Gloo("gloo"), Nccl("nccl")


def _perform(call: Call) -> None:
    from torch import distributed as dist

    group = call.group or dist.group.WORLD
    match call.collective:
        case "all_reduce":
            dist.all_reduce(call.any_tensor(), op=call.op, group=group)
        case "broadcast":
            dist.broadcast(call.any_tensor(), group=group, group_src=call.root)
        case "reduce":
            dist.reduce(call.any_tensor(), op=call.op, group=group, group_dst=call.root)
        case "scatter":
            dist.scatter(
                call.flat_output(), _parts(call.input, group), group=group, group_src=call.root
            )
        case "gather":
            dist.gather(
                call.flat_input(), _parts(call.output, group), group=group, group_dst=call.root
            )
        case "all_gather":
            dist.all_gather_into_tensor(call.output, call.input, group=group)
        case "reduce_scatter":
            dist.reduce_scatter_tensor(call.output, call.input, op=call.op, group=group)
        case "all_to_all":
            sent, received = call.splits or (None, None)
            dist.all_to_all_single(call.output, call.input, received, sent, group=group)
        case _:
            raise ValueError(f"torch_native does not perform {call.collective!r}")


def _parts(
    whole: torch.Tensor | None, group: dist.ProcessGroup | None
) -> list[torch.Tensor] | None:
    """Return the ranks' parts of a tensor, as views of it, which scatter and gather take as lists."""
    from torch import distributed as dist

    return (
        None
        if whole is None
        else list(whole.view(-1).view(dist.get_world_size(group), -1).unbind())
    )

"""Whoever can perform a collective on tensors: one function, ``perform(call)``, in a module each.

A back end is imported only when it is asked for. One that is not there says why, in one line.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch
    from torch import distributed as dist

# Name on the command line and in every row -> the module that performs it.
BACKENDS = {"p2p": "collectives.backends.p2p", "gloo": "collectives.backends.torch_native"}


@dataclass(frozen=True, slots=True)
class Call:
    """One collective on one rank's tensors, as ``torch.distributed`` would be asked for it.

    Where torch works in place (all_reduce, broadcast, reduce) ``input`` and ``output`` are the same tensor.
    ``root`` is a rank within the group. ``algorithm`` and ``segments`` matter to our own back end only.
    """

    collective: str
    output: torch.Tensor
    input: torch.Tensor
    op: dist.ReduceOp.RedOpType | None = None
    root: int | None = None
    group: dist.ProcessGroup | None = None
    algorithm: str = "auto"
    segments: int | None = None


class Backend(Protocol):
    """What a back end's module offers."""

    def perform(self, call: Call) -> None:
        """Perform the collective; every rank of the group calls it alike."""


def backend(name: str) -> Backend:
    """The back end's module; ValueError for an unknown name, ImportError with a reason for an absent one."""
    if name not in BACKENDS:
        raise ValueError(f"unknown backend {name!r}; known are {', '.join(BACKENDS)}")
    module: Backend = importlib.import_module(BACKENDS[name])
    return module

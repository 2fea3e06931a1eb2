"""Fit DistributedDataParallel to groups of ours, whose works and futures are Python's: its C++ code expects C++'s."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from torch import distributed as dist
from torch._C._distributed_c10d import Reducer
from torch.nn.parallel import DistributedDataParallel

from collectives.torch_backend.group import Group

FP16_COMPRESS = dist.BuiltinCommHookType.FP16_COMPRESS  # type: ignore[attr-defined]

_of_forward_pass: WeakKeyDictionary[Reducer, dist.Work] = WeakKeyDictionary()
_set_work = Reducer._set_forward_pass_work_handle
_register_builtin_comm_hook = DistributedDataParallel._register_builtin_comm_hook


def fit() -> None:
    """Have DistributedDataParallel keep works of ours, and take its built-in hooks in a form that reads our futures."""
    Reducer._set_forward_pass_work_handle = _keep_and_set_work  # type: ignore[assignment, method-assign]
    DistributedDataParallel._register_builtin_comm_hook = _register_readable_hook  # type: ignore[method-assign]


def _keep_and_set_work(reducer: Reducer, work: dist.Work, use_static_world_size: bool) -> None:
    """Keep the Python side of a `Work` in ``join``, as torch's groups do.

    The reducer keeps only the C++ side, whose ``wait`` never ends once the Python side has gone.
    All else in torch that is given a `Work` keeps both sides.
    """
    _of_forward_pass[reducer] = work
    _set_work(reducer, work, use_static_world_size)


def _register_readable_hook(ddp: DistributedDataParallel, comm_hook_type: Any) -> None:
    """Register a built-in hook.

    In a group of ours that of FP16_COMPRESS is the one that torch has in Python.

    Both compute the same. The one in C++ asserts that the future of an all-reduce holds a C++ list
    of tensors, whereas every future that Python completes holds a Python object
    (`FP16CompressCommHook::runHook` of torch 2.13). ALLREDUCE leaves the future to the reducer,
    which reads both.
    """
    if isinstance(ddp.process_group, Group) and comm_hook_type == FP16_COMPRESS:
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

        ddp.register_comm_hook(ddp.process_group, fp16_compress_hook)
        return
    _register_builtin_comm_hook(ddp, comm_hook_type)  # type: ignore[no-untyped-call]

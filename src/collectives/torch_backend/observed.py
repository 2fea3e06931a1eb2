"""Give torch's profiler an event for each call, its compiler no code of a group, and its reducer a whole `Work`."""

import inspect
import sys
from contextlib import AbstractContextManager, ExitStack
from functools import cache
from weakref import WeakKeyDictionary

import torch
from torch import distributed as dist
from torch._C._distributed_c10d import Reducer


def recording(name: str) -> AbstractContextManager[object]:
    """An event that begins now and ends with the ``with``, on whichever thread; nothing where no profiler runs."""
    until = ExitStack()
    if torch.autograd._profiler_enabled():  # type: ignore[attr-defined]
        event, end = torch.profiler.record_function(name), torch.futures.Future[None]()
        event.__enter__()  # type: ignore[no-untyped-call]
        event._call_end_callbacks_on_future(end)  # it ends the event for the profiler of this thread
        until.callback(end.set_result, None)
    return until


def need_no_tracing(group: type) -> None:
    """Have `torch.compile`, once it is loaded, run the methods that return a `Work`, and trace none of them.

    Torch's C++ code calls them in the middle of a compiled region. To load it takes seconds, so nothing here does.
    """
    if "torch._dynamo" in sys.modules:
        _need_no_tracing(group)


@cache
def _need_no_tracing(group: type) -> None:
    for name, each in list(vars(group).items()):
        if inspect.isfunction(each) and each.__annotations__.get("return") == "dist.Work":
            setattr(group, name, torch.compiler.disable(each))  # type: ignore[no-untyped-call]


_of_forward_pass: WeakKeyDictionary[Reducer, dist.Work] = WeakKeyDictionary()
_set_work = Reducer._set_forward_pass_work_handle


def _keep_and_set_work(reducer: Reducer, work: dist.Work, use_static_world_size: bool) -> None:
    _of_forward_pass[reducer] = work
    _set_work(reducer, work, use_static_world_size)


def keep_works() -> None:
    """Have DistributedDataParallel's reducer keep the Python side of a `Work` in ``join``, as torch's groups do.

    It keeps only the C++ side, whose ``wait`` never ends once the Python side has gone. All else in torch that is given
    a `Work` keeps both sides.
    """
    Reducer._set_forward_pass_work_handle = _keep_and_set_work  # type: ignore[assignment]

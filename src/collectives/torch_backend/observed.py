"""What torch's profiler and its compiler see of a group: an event for each call, and none of its code."""

import inspect
import sys
from contextlib import AbstractContextManager, ExitStack
from functools import cache

import torch


def recording(name: str) -> AbstractContextManager[object]:
    """An event that begins now and ends with the ``with``, on whichever thread; nothing where no profiler runs."""
    until = ExitStack()
    if torch.autograd._profiler_enabled():  # type: ignore[attr-defined]
        until.enter_context(torch.profiler.record_function(name))
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

"""The old place of `collectives.torch_backend.hook`; deprecated."""

import warnings
from typing import Any


def __getattr__(name: str) -> Any:
    if name != "hook":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from collectives.torch_backend import hook

    text = "collectives.training.hook has moved: expected collectives.torch_backend.hook"
    warnings.warn(text, DeprecationWarning, stacklevel=2)
    return hook

"""Seaborn, imported without scipy's statistics and clusters: no figure here needs them, and they take a second."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def _without(*names: str) -> Iterator[None]:
    """Let imports of these modules fail for a while, unless they are there already."""
    absent = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]  # importing None fails
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]


with _without("scipy.stats", "scipy.cluster"):
    import seaborn as sns
    import seaborn.objects as so

__all__ = ["sns", "so"]

"""Draw the times that formulas predict, by size or by ranks."""

from collections.abc import Mapping, Sequence

import pandas as pd

from collectives.algorithms import NEUTRAL, Mark
from collectives.figures.style import MARKS, Picture, mark
from collectives_book.figures import kit


def model_time(
    at: Sequence[float],
    curves: Mapping[str, Sequence[float]],
    bound: Sequence[float] | None = None,
    over: str = "buffer",
) -> Picture:
    """Return the picture of each algorithm's seconds ``at`` these bytes, or numbers of ranks (``over="ranks"``).

    Nothing goes below ``bound``, thin dashes. All axes are logarithmic.
    """
    rows = pd.DataFrame(
        {
            "at": x,
            "seconds": seconds,
            "algorithm": name,
            "bound": None if bound is None else bound[nth],
        }
        for name, column in curves.items()
        for nth, (x, seconds) in enumerate(zip(at, column, strict=True))
    )
    axes = (
        kit.RANKS if over == "ranks" else kit.BYTES,
        kit.SECONDS._replace(name="time by the model"),
    )
    about, dashes = (
        f"Time by {over}, by the model and not measured",
        "bound" if bound is not None else None,
    )
    return kit.curves(
        rows,
        "at",
        "seconds",
        "algorithm",
        axes,
        about,
        measured=False,
        bound=dashes,
        looks=_look,
        height=3.6,
    )


def _look(name: str) -> Mark:
    return mark(name) if name in MARKS else NEUTRAL


def written(nbytes: float) -> str:
    """Return bytes as GPU memory is sold: powers of 1000.

    >>> written(24e9), written(6.48e12)
    ('24 GB', '6.48 TB')
    """
    return f"{nbytes / 1e12:.3g} TB" if nbytes >= 1e12 else f"{nbytes / 1e9:.3g} GB"

"""What formulas say, as pictures: times by size or ranks, and the memory that training needs."""

from collections.abc import Mapping, Sequence

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from collectives.algorithms import NEUTRAL, Mark
from collectives.figures.style import MARKS, Picture, Theme, mark
from collectives_book.figures import kit
from collectives_book.needs import H100, MODELS, Transformer, activation_bytes, state_bytes

# GPUs that share a node, and so the fastest links: those of a DGX H100.
NODE = 8


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
        {"at": x, "seconds": seconds, "algorithm": name, "bound": None if bound is None else bound[nth]}
        for name, column in curves.items()
        for nth, (x, seconds) in enumerate(zip(at, column, strict=True))
    )
    axes = kit.RANKS if over == "ranks" else kit.BYTES, kit.SECONDS._replace(name="time by the model")
    about, dashes = f"Time by {over}, by the model and not measured", "bound" if bound is not None else None
    return kit.curves(
        rows, "at", "seconds", "algorithm", axes, about, measured=False, bound=dashes, looks=_look, height=3.6
    )


def _look(name: str) -> Mark:
    return mark(name) if name in MARKS else NEUTRAL


def memory() -> Picture:
    """Return the picture of models' state, and of it with one sequence's activations, beside a GPU and a node."""

    def paint(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        colour = mark("ring").colour
        for nth, model in enumerate(MODELS):
            state, total = needed(model)
            axes.plot([state, total], [-nth, -nth], color=colour, lw=7, alpha=0.45, solid_capstyle="butt")
            axes.plot(state, -nth, "o", color=colour)
            axes.annotate(written(state), (state, -nth), xytext=(0, 7), textcoords="offset points", ha="center", size=9)
        for gpus, name in ((1, "1 GPU"), (NODE, f"{NODE} GPUs")):
            axes.axvline(gpus * H100.memory, color=theme.ink, lw=0.9, ls=(0, kit.DASHES))
            axes.annotate(name, (gpus * H100.memory, 0.62), xytext=(3, 0), textcoords="offset points", size=9)
        axes.set_xscale("log")
        axes.set_xlim(left=needed(MODELS[0])[0] / 1.8)  # the first label clear of the axis
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: written(value)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_yticks([-nth for nth in range(len(MODELS))], [model.name for model in MODELS])
        axes.set_ylim(0.5 - len(MODELS), 1.0)
        axes.set_xlabel("memory that training needs")

    shown = [f"{model.name} {written(needed(model)[0])}" for model in MODELS]
    return kit.drawn(paint, "Memory of the training state, and with the activations of one sequence", 3.2, shown)


def needed(model: Transformer) -> tuple[float, float]:
    """Return the bytes of a model's state, and of that and the activations of one sequence."""
    state = state_bytes(model.parameters)
    return state, state + activation_bytes(model)


def written(nbytes: float) -> str:
    """Return bytes as GPU memory is sold: powers of 1000.

    >>> written(24e9), written(6.48e12)
    ('24 GB', '6.48 TB')
    """
    return f"{nbytes / 1e12:.3g} TB" if nbytes >= 1e12 else f"{nbytes / 1e9:.3g} GB"

"""Figures of what a training run needs: memory beside that of GPUs."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from collectives.figures.style import Picture, Theme, mark, picture
from collectives_book.figures import kit
from collectives_book.needs import H100, MODELS, Transformer, activation_bytes, state_bytes

# GPUs that share a node, and so the fastest links: those of a DGX H100.
NODE = 8


def written(nbytes: float) -> str:
    """Bytes as GPU memory is sold: powers of 1000.

    >>> written(24e9), written(6.48e12)
    ('24 GB', '6.48 TB')
    """
    return f"{nbytes / 1e12:.3g} TB" if nbytes >= 1e12 else f"{nbytes / 1e9:.3g} GB"


def memory() -> Picture:
    """The state of models of several sizes, and with the activations of one sequence, beside a GPU and a node."""

    def paint(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        colour = mark("ring").colour
        for nth, model in enumerate(MODELS):
            state, total = needed(model)
            axes.plot([state, total], [-nth, -nth], color=colour, lw=1.2)
            axes.plot([state], [-nth], "o", color=colour)
            axes.plot([total], [-nth], "|", color=colour, ms=11, mew=1.6)
            axes.annotate(written(state), (state, -nth), xytext=(0, 7), textcoords="offset points", ha="center", size=9)
        for gpus, name in ((1, "1 GPU"), (NODE, f"{NODE} GPUs")):
            axes.axvline(gpus * H100.memory, color=theme.ink, lw=0.9, ls=(0, (5, 3)))
            axes.annotate(name, (gpus * H100.memory, 0.62), xytext=(3, 0), textcoords="offset points", size=9)
        axes.set_xscale("log")
        axes.set_xlim(left=needed(MODELS[0])[0] / 1.8)  # the first label clear of the axis
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: written(value)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_yticks([-nth for nth in range(len(MODELS))], [model.name for model in MODELS])
        axes.set_ylim(0.5 - len(MODELS), 1.0)
        axes.set_xlabel("memory that training needs")

    return picture(paint, _alt(), kit.WIDTH, 3.2)


def needed(model: Transformer) -> tuple[float, float]:
    """Bytes of a model's state, and of that and the activations of one sequence."""
    state = state_bytes(model.parameters)
    return state, state + activation_bytes(model)


def _alt() -> str:
    each = [f"{model.name} {written(needed(model)[0])}, {written(needed(model)[1])}" for model in MODELS]
    return (
        f"Memory of the training state, then with the activations of one sequence: {'; '.join(each)}. "
        f"One {H100.name} has {written(H100.memory)}, {NODE} have {written(NODE * H100.memory)}."
    )

"""A drawing of the job that returns in the book: 64 GPUs, what each keeps, and what it exchanges in a step."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from collectives.figures.style import Picture, Theme
from collectives_book import needs, one_job
from collectives_book.figures import kit
from collectives_book.figures.shards import COLOURS, STATE

NODES, GPUS = 8, 8
# Edge of a GPU's square, and the distance of two nodes.
EDGE, APART = 0.42, 0.62
BAR = 5.0  # left edge of the bar of one GPU's memory
ABOUT = (
    "The job: eight nodes of eight GPUs, one sequence on each GPU. Of 80 GB a GPU keeps 16 GB of parameters, "
    "16 GB of gradients and a 64th of the optimizer, 1.5 GB"
)


def pod() -> Picture:
    """Return the 64 GPUs of the job, and the memory of one of them."""

    def paint(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        axes.set(xlim=(-1.15, 8.6), ylim=(NODES * APART + 0.3, -0.75))
        axes.axis("off")
        for node in range(NODES):
            axes.text(
                -1.1,
                node * APART + EDGE / 2,
                f"node {node}",
                va="center",
                fontsize=9,
            )
            for gpu in range(GPUS):
                corner = (gpu * EDGE * 1.15, node * APART)
                kit.fill(
                    axes,
                    theme.faint,
                    corner,
                    EDGE,
                    EDGE,
                )
                kit.outline(
                    axes,
                    theme,
                    corner,
                    EDGE,
                    EDGE,
                )
        axes.text(
            0,
            -0.4,
            "64 GPUs, a sequence on each",
            fontsize=9.5,
            fontweight="bold",
        )
        axes.text(
            BAR,
            -0.4,
            "the memory of one",
            fontsize=9.5,
            fontweight="bold",
        )
        _memory(axes, theme)

    return kit.drawn(
        paint,
        ABOUT,
        3.4,
    )


def kept() -> dict[str, float]:
    """Return the bytes that a GPU of the job keeps: all parameters and gradients, a 64th of the optimizer.

    >>> {name: f"{size / 1e9:.1f} GB" for name, size in kept().items()}
    {'parameters': '16.0 GB', 'gradients': '16.0 GB', 'optimizer': '1.5 GB'}
    """
    whole = needs.state_bytes(one_job.MODEL.parameters)
    rest = whole - 2 * one_job.GRADIENT
    return dict(
        zip(
            STATE,
            (one_job.GRADIENT, one_job.GRADIENT, rest / one_job.GPUS),
            strict=True,
        )
    )


def _memory(axes: Axes, theme: Theme) -> None:
    """Draw a bar of a GPU's memory, with what it keeps from the bottom up."""
    bottom = NODES * APART - 0.2
    tall = bottom / needs.H100.memory
    y = bottom
    for name, size in kept().items():
        y -= size * tall
        kit.fill(
            axes,
            COLOURS[name],
            (BAR, y),
            0.9,
            size * tall,
        )
        label = f"{name}, {size / 1e9:.3g} GB"
        axes.text(
            BAR + 1.05,
            y + size * tall / 2,
            label,
            va="center",
            fontsize=9,
        )
    axes.text(
        BAR + 1.05,
        y / 2,
        "activations, and room",
        va="center",
        fontsize=9,
    )
    kit.outline(
        axes,
        theme,
        (BAR, 0),
        0.9,
        bottom,
    )
    axes.text(
        BAR + 0.45,
        bottom + 0.2,
        "80 GB",
        ha="center",
        va="center",
        fontsize=9,
    )

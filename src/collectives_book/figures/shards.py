"""A drawing of sharded training: which part of parameters, gradients and optimizer each GPU keeps."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from collectives.figures.style import Picture, Theme
from collectives_book import needs
from collectives_book.figures import kit

STATE = ("parameters", "gradients", "optimizer")
COLOURS = {"parameters": "#0072B2", "gradients": "#009E73", "optimizer": "#D55E00"}
# Two nodes of two GPUs.
GPUS, NODE = 4, 2
# Among how many GPUs each part of the state is divided.
SHARDS: Mapping[str, tuple[int, int, int]] = {
    "data parallel": (1, 1, 1),
    "ZeRO-1": (1, 1, GPUS),
    "ZeRO-2": (1, GPUS, GPUS),
    "ZeRO-3, FSDP": (GPUS, GPUS, GPUS),
    "HSDP": (NODE, NODE, NODE),
}
ALT = (
    "Parameters, gradients and optimizer on two nodes of two GPUs. Data parallel: all of them "
    "on each GPU. ZeRO-1: a quarter of the optimizer on each. ZeRO-2: and of the gradients. "
    "ZeRO-3: and of the parameters. HSDP: half of everything on each GPU, the same halves on "
    "both nodes"
)
# A GPU's box, and the distance of two in one row.
WIDE, TALL, NEXT, NEXT_NODE = 1.0, 0.62, 1.15, 0.25


def shards() -> Picture:
    """Return what each of four GPUs on two nodes keeps by five ways of data parallelism: what is filled.

    The widths of a box's columns are the bytes that parameters, gradients and optimizer take for
    each parameter.
    """

    def paint(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        axes.set(xlim=(-1.45, GPUS * NEXT + NEXT_NODE), ylim=(len(SHARDS) - 0.25, -0.4))
        axes.axis("off")
        for gpu in range(GPUS):
            axes.text(_left(gpu) + WIDE / 2, -0.15, f"GPU {gpu}", ha="center", fontsize=9)
        for row, (way, shares) in enumerate(SHARDS.items()):
            axes.text(-1.45, row + TALL / 2, way, va="center", fontsize=9)
            for gpu in range(GPUS):
                _gpu(axes, theme, (_left(gpu), row), gpu, shares)
        handles = [Patch(color=COLOURS[name], label=name) for name in STATE]
        figure.legend(handles=handles, loc="outside lower left", ncols=len(STATE), fontsize=9)

    return kit.drawn(paint, ALT, 3.6)


def _left(gpu: int) -> float:
    return gpu * NEXT + (gpu // NODE) * NEXT_NODE


def _gpu(
    axes: Axes,
    theme: Theme,
    corner: tuple[float, float],
    gpu: int,
    shares: tuple[int, int, int],
) -> None:
    """Draw a GPU's columns, of which it keeps its own share from the top down."""
    x, y = corner
    for name, share in zip(STATE, shares, strict=True):
        width = WIDE * _bytes(name) / sum(needs.STATE.values())
        height = TALL / share
        top = y + height * (gpu % share)
        kit.fill(axes, COLOURS[name], (x, top), width, height)
        kit.outline(axes, theme, (x, y), width, TALL)
        x += width


def _bytes(name: str) -> int:
    """Return the bytes for each parameter; all that is neither parameter nor gradient is the optimizer's."""
    if name in needs.STATE:
        return needs.STATE[name]
    return sum(needs.STATE.values()) - needs.STATE["parameters"] - needs.STATE["gradients"]

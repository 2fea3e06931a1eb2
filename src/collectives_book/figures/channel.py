"""A drawing of a channel of NCCL: a kernel on each GPU, and slots in memory between two of them."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

from collectives.figures.style import Picture, Theme
from collectives_book.figures import kit

SLOTS = 8  # NCCL_STEPS, in NCCL's src/include/device.h
FULL = (2, 3, 4)  # of the slots that are drawn
BLUE, GREEN = "#0072B2", "#009E73"
# Left edges of the two kernels and of the slots, and the size of a slot.
KERNELS, LEFT, SLOT = (0.0, 6.9), 2.75, 0.36
ABOUT = (
    "One channel between two GPUs: the kernel on GPU 0 writes segments into eight slots in the memory of "
    "GPU 1, of which three are full; the kernel on GPU 1 reads a slot, adds its own data, sends the sum on, "
    "and gives the slot back"
)


def channel() -> Picture:
    """Return one channel from one GPU to the next: a kernel fills slots, and the next kernel empties them."""

    def paint(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        axes.set(xlim=(-0.1, 8.9), ylim=(-1.35, 1.7))
        axes.axis("off")
        for gpu, (left, work) in enumerate(
            zip(
                KERNELS,
                ("sends segment 5", "adds segment 2,\nsends it on"),
                strict=True,
            )
        ):
            kit.outline(
                axes,
                theme,
                (left, -0.55),
                1.9,
                1.3,
            )
            _say(
                axes,
                (left + 0.95, 1.0),
                f"kernel on GPU {gpu}",
            )
            _say(
                axes,
                (left + 0.95, 0.1),
                work,
            )
        for slot in range(SLOTS):
            corner = (LEFT + SLOT * slot, -0.2)
            if slot in FULL:
                kit.fill(
                    axes,
                    BLUE,
                    corner,
                    SLOT,
                    0.6,
                )
                middle = (corner[0] + SLOT / 2, 0.1)
                _say(
                    axes,
                    middle,
                    str(slot),
                    color=kit.readable_on(BLUE),
                )
            kit.outline(
                axes,
                theme,
                corner,
                SLOT,
                0.6,
            )
        right = LEFT + SLOT * SLOTS
        _say(
            axes,
            ((LEFT + right) / 2, 1.0),
            "eight slots, 512 KiB each,\nin the memory of GPU 1",
        )
        _arrow(
            axes,
            BLUE,
            (1.9, 0.1),
            (LEFT, 0.1),
        )
        _arrow(
            axes,
            BLUE,
            (right, 0.1),
            (KERNELS[1], 0.1),
        )
        _arrow(
            axes,
            GREEN,
            (KERNELS[1] + 0.6, -0.55),
            (1.3, -0.55),
            "arc3,rad=-0.12",
        )
        _say(
            axes,
            ((LEFT + right) / 2, -1.25),
            "this slot is free again",
            color=theme.ink,
        )

    return kit.drawn(
        paint,
        ABOUT,
        2.3,
    )


def _say(axes: Axes, place: tuple[float, float], text: str, **look: Any) -> None:
    axes.text(
        *place,
        text,
        ha="center",
        va="center",
        fontsize=9,
        **look,
    )


def _arrow(
    axes: Axes,
    colour: str,
    begin: tuple[float, float],
    end: tuple[float, float],
    bow: str = "arc3",
) -> None:
    arrow = FancyArrowPatch(
        begin, end, connectionstyle=bow, arrowstyle="-|>", mutation_scale=11, color=colour, lw=1.4
    )
    axes.add_patch(arrow)

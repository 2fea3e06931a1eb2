"""Pictures of divided models: who holds what, which collectives join the parts, and who computes when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Patch, Rectangle

from collectives.figures.style import Picture, Theme
from collectives_book.figures import kit
from collectives_book.figures.lanes import lanes
from collectives_book.model_parallel.pipeline_schedules import (
    BACKWARD,
    FORWARD,
    WEIGHTS,
    Action,
    interleaved,
    one_forward_one_backward,
    timetable,
    zero_bubble,
)

RANK_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
# A forward pass is pale and a backward pass full, on either ground.
PASSES = {FORWARD: "#56B4E9", BACKWARD: "#0072B2"}

# Left edge, upper edge, width and height.
Box = tuple[float, float, float, float]
# A part of a matrix: from and to which share of its rows, from and to which of its columns.
Part = tuple[float, float, float, float]
ALL, TOP, BOTTOM = (0.0, 1.0, 0.0, 1.0), (0.0, 0.5, 0.0, 1.0), (0.5, 1.0, 0.0, 1.0)
LEFT, RIGHT = (0.0, 1.0, 0.0, 0.5), (0.0, 1.0, 0.5, 1.0)

COLOURS = {"x": "#009E73", "W₁": "#0072B2", "W₂": "#D55E00"}
# Left edge, width and height of each matrix in the field of a rank, which is 1 wide and 1 high.
PLACES = {
    "x": (0.02, 0.16, 0.46),
    "W₁": (0.26, 0.40, 0.30),
    "W₂": (0.76, 0.20, 0.62),
}

ALT = (
    "Three ways to divide two layers between two ranks. Data parallel: each has half of x, all of W₁ and W₂; gradients "
    "travel. Tensor parallel: each has all of x, half of W₁ by columns and half of W₂ by rows; sums travel. "
    "Pipeline: rank 0 has x and W₁, rank 1 has W₂; activations travel"
)

# What each of two ranks holds, and what travels between them.
WAYS: Mapping[str, tuple[Mapping[str, Part], Mapping[str, Part], str]] = {
    "data parallel": (
        {"x": TOP, "W₁": ALL, "W₂": ALL},
        {"x": BOTTOM, "W₁": ALL, "W₂": ALL},
        "gradients of\nall weights",
    ),
    "tensor parallel": (
        {"x": ALL, "W₁": LEFT, "W₂": TOP},
        {"x": ALL, "W₁": RIGHT, "W₂": BOTTOM},
        "sums of activations\nand of their gradients",
    ),
    "pipeline": (
        {"x": ALL, "W₁": ALL},
        {"W₂": ALL},
        "activations forward,\ntheir gradients back",
    ),
}


def holdings() -> Picture:
    """Return two ranks and three ways to divide x·W₁·W₂ between them: a rank holds what is filled."""

    def paint(figure: Figure, theme: Theme) -> None:
        for axes, (way, (*holds, travels)) in zip(
            figure.subplots(len(WAYS), 1), WAYS.items(), strict=True
        ):
            axes.set(xlim=(0, 2.9), ylim=(1, -0.12))
            axes.axis("off")
            axes.text(0, -0.06, way, fontweight="bold", va="center")
            for rank, held in enumerate(holds):
                _rank(axes, theme, rank, held)
            arrow = FancyArrowPatch(
                (1.04, 0.56),
                (1.86, 0.56),
                arrowstyle="<->",
                mutation_scale=12,
                color=theme.ink,
            )
            axes.add_patch(arrow)
            axes.text(1.45, 0.5, travels, ha="center", va="bottom", fontsize=9)

    return kit.drawn(paint, ALT, 4.2)


def _rank(axes: Axes, theme: Theme, rank: int, held: Mapping[str, Part]) -> None:
    begin = 1.9 * rank
    axes.text(begin + 0.5, 0.97, f"rank {rank}", ha="center", va="center", fontsize=9)
    for name, (left, width, height) in PLACES.items():
        x = begin + left
        y = 0.5 - height / 2
        if name in held:
            _matrix(axes, theme, (x, y, width, height), held[name], COLOURS[name])
        kit.outline(axes, theme, (x, y), width, height)
        axes.text(
            x + width / 2,
            y - 0.06,
            name,
            ha="center",
            va="center",
            fontsize=9,
        )


class Place(NamedTuple):
    """A place in a transformer layer: its name, what each of two ranks holds there, and the collective after it."""

    name: str
    holds: tuple[Part, Part]
    then: str = ""


ALL_TOKENS, BY_TOKEN, BY_HEAD = (ALL, ALL), (TOP, BOTTOM), (LEFT, RIGHT)
LAYER: Mapping[str, Sequence[Place]] = {
    "tensor parallel": (
        Place("norm", ALL_TOKENS),
        Place("attention", BY_HEAD, "all-reduce"),
        Place("norm", ALL_TOKENS),
        Place("feed-forward", BY_HEAD, "all-reduce"),
    ),
    "tensor and sequence parallel": (
        Place("norm", BY_TOKEN, "all-gather"),
        Place("attention", BY_HEAD, "reduce-scatter"),
        Place("norm", BY_TOKEN, "all-gather"),
        Place("feed-forward", BY_HEAD, "reduce-scatter"),
    ),
}
LAYER_ALT = (
    "The activations of a transformer layer on two ranks. Tensor parallel: each rank has all of them at both norms, "
    "half of the columns in attention and feed-forward, and an all-reduce follows each of these. With sequence "
    "parallelism each has half of the tokens at the norms, an all-gather before and a reduce-scatter after"
)
# Edges of a place's activations, and the width of its column with the collective after it.
TALL, WIDE, COLUMN = 0.5, 0.62, 1.2


def layer() -> Picture:
    """Return the activations of a transformer layer on two ranks, with tensor parallelism and with SP beside it.

    Rows are tokens, columns are features; a rank holds what is filled. A bar is a collective.
    """

    def paint(figure: Figure, theme: Theme) -> None:
        panels = figure.subplots(len(LAYER), 1)
        for axes, (way, places) in zip(panels, LAYER.items(), strict=True):
            axes.set(xlim=(-0.5, COLUMN * len(places)), ylim=(1.36, -0.35))
            axes.axis("off")
            axes.set_title(way, **kit.TITLE)
            for rank in range(2):
                axes.text(-0.48, 0.7 * rank + TALL / 2, f"rank {rank}", va="center", fontsize=9)
            for column, place in enumerate(places):
                _place(axes, theme, COLUMN * column, place)

    return kit.drawn(paint, LAYER_ALT, 4.6)


def _place(axes: Axes, theme: Theme, x: float, place: Place) -> None:
    middle = x + WIDE / 2
    axes.text(middle, -0.1, place.name, ha="center", va="center", fontsize=9)
    for rank, held in enumerate(place.holds):
        _matrix(axes, theme, (x, 0.7 * rank, WIDE, TALL), held, COLOURS["x"])
    if place.then:
        kit.fill(axes, theme.faint, (x + WIDE + 0.17, 0), 0.24, 0.7 + TALL)
        look: dict[str, Any] = {"rotation": 90, "ha": "center", "va": "center", "fontsize": 9}
        axes.text(x + WIDE + 0.29, (0.7 + TALL) / 2, place.then, color=theme.ink, **look)


def _matrix(
    axes: Axes,
    theme: Theme,
    box: Box,
    held: Part,
    colour: str,
) -> None:
    """Draw a matrix of which a part is held."""
    x, y, width, height = box
    top, bottom, first, last = held
    corner = (x + first * width, y + top * height)
    kit.fill(axes, colour, corner, (last - first) * width, (bottom - top) * height)
    kit.outline(axes, theme, (x, y), width, height)


# Seconds of a stage's forward pass; a backward pass takes two, which are cut in halves.
TIMES: Mapping[str, Mapping[str, float]] = {
    "1F1B": {FORWARD: 1.0, BACKWARD: 2.0},
    "interleaved": {FORWARD: 0.5, BACKWARD: 1.0},
    "zero bubble": {FORWARD: 1.0, BACKWARD: 1.0, WEIGHTS: 1.0},
}
PIPELINES = {
    "1F1B": one_forward_one_backward,
    "interleaved": interleaved,
    "zero bubble": zero_bubble,
}


def pipelines(stages: int, micro_batches: int) -> Picture:
    """Return when each stage computes which micro-batch by three pipeline schedules, if messages cost nothing.

    A forward pass takes a unit of time and a backward pass two. Second chunks are dark.
    """
    spans: list[dict[str, Any]] = []
    for name, schedule in PIPELINES.items():
        orders = [schedule(stage, stages, micro_batches) for stage in range(stages)]
        table = timetable(orders, TIMES[name])
        end = max(timed[-1].end for timed in table)
        busy = 3 * micro_batches
        panel = f"{name}: {1 - busy / end:.0%} idle"
        for stage, timed in enumerate(table):
            for action, begin, until in timed:
                is_wide = until - begin >= 1
                span: dict[str, Any] = {
                    "panel": panel,
                    "lane": f"stage {stage}",
                    "begin": begin,
                    "end": until,
                    "what": _what(action),
                    "text": str(action.micro_batch) if is_wide else "",
                }
                spans.append(span)
    colours = PASSES | {
        "forward, second chunk": "#CC79A7",
        "backward, second chunk": "#882255",
        "gradients of weights": "#999933",
    }
    about = f"When each of {stages} stages computes which of {micro_batches} micro-batches"
    units = kit.Axis("forward passes of a stage", "{:.0f}".format)
    return lanes(pd.DataFrame(spans), units, about, colours, facet="panel")


def _what(action: Action) -> str:
    if action.kind == WEIGHTS:
        return "gradients of weights"
    return f"{action.kind}, second chunk" if action.chunk else action.kind


def ring_attention(ranks: int) -> Picture:
    """Return which rank computes which block of causal attention in which step of the ring.

    Rows are blocks of queries, columns of keys. On the left a rank has consecutive tokens, on the
    right one block from the front and one from the back. A number is the step in which the keys
    pass the rank; blocks without one lie in the future of their queries.
    """
    owners = {
        "consecutive tokens": list(range(ranks)),
        "a block from either end": [*range(ranks), *reversed(range(ranks))],
    }

    def paint(figure: Figure, theme: Theme) -> None:
        for axes, (name, owner) in zip(figure.subplots(1, 2), owners.items(), strict=True):
            blocks = len(owner)
            axes.set(
                xlim=(0, blocks),
                ylim=(blocks, 0),
                aspect="equal",
                xticks=[],
                yticks=[],
                xlabel="keys and values",
                ylabel="queries",
            )
            axes.set_title(name, **kit.TITLE)
            for query in range(blocks):
                for key in range(query + 1):
                    _block(axes, theme, query, key, owner, ranks)
        handles = [Patch(color=RANK_COLOURS[rank], label=f"rank {rank}") for rank in range(ranks)]
        figure.legend(handles=handles, loc="outside lower left", ncols=ranks, fontsize=9)

    about = f"Which of {ranks} ranks computes which block of causal attention in which step"
    return kit.drawn(paint, about, 3.4, owners)


def _block(
    axes: Axes,
    theme: Theme,
    query: int,
    key: int,
    owner: Sequence[int],
    ranks: int,
) -> None:
    """Draw a block of attention: the rank that has the queries, and when the keys come by."""
    rank = owner[query]
    step = (rank - owner[key]) % ranks
    colour = RANK_COLOURS[rank]
    block = Rectangle(
        (key, query),
        1,
        1,
        color=colour,
        ec=theme.ground,
        lw=0.8,
    )
    axes.add_patch(block)
    axes.text(
        key + 0.5,
        query + 0.5,
        str(step),
        color=kit.readable_on(colour),
        ha="center",
        va="center",
        fontsize=9,
    )

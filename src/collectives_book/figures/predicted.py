"""What formulas and the simulator say, as pictures: times, messages, memory, and which algorithm is the fastest."""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from math import ceil, isclose
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from collectives.figures.style import MARKS, Picture, Theme, mark, on_page
from collectives.units import format_bytes
from collectives_book.figures import by_hand as kit
from collectives_book.figures import statements
from collectives_book.needs import H100, MODELS, Transformer, activation_bytes, state_bytes

Curves = Mapping[str, Sequence[float]]
Form = Callable[[float], str]

# Inches: a row of fields, what a panel needs besides, and what its fields have in width.
ROW, AROUND, ACROSS = 0.18, 0.64, 4.5
SIZE, LETTER = 8.5, 0.078  # points of a name in a field, and inches of one letter

# GPUs that share a node, and so the fastest links: those of a DGX H100.
NODE = 8


def model_time(at: Sequence[float], curves: Curves, bounds: Curves | None = None, over: str = "buffer") -> Picture:
    """Seconds of each algorithm ``at`` these sizes in bytes, or numbers of ranks (``over="ranks"``).

    Lines for ``curves``, thin dashes for ``bounds`` that nothing goes below; both axes are logarithmic. Above is which
    curve is the lowest in the end; of a single one, which of its bounds is the greatest.
    """
    plain = "{:,.0f} ranks".format if over == "ranks" else format_bytes
    message, since = _lowest(at, curves, bounds or {}, plain)

    def paint(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        for algorithm, seconds in curves.items():
            colour = mark(algorithm).colour if algorithm in MARKS else theme.ink
            axes.plot(at, seconds, color=colour, lw=1.8, label=algorithm)
        for number, (name, seconds) in enumerate((bounds or {}).items()):
            kit.lower_bound(axes, theme, at, seconds, name, dash=5 - 3 * number)
        ticks = at[:: 1 + (len(at) - 1) // 6]  # few enough to name all of them
        kit.binary_axis(axes, ticks, over, "{:,.0f}".format if over == "ranks" else format_bytes)
        kit.time_axis(axes, unit=1)
        kit.message(figure, theme, message, since)
        kit.labels(figure, more=[kit.key(theme, "model, not measured", lw=1.8)])

    return kit.drawn(paint, f"Model, not measured, time by {over}", 3.6)


def _lowest(at: Sequence[float], curves: Curves, bounds: Curves, form: Form) -> tuple[str, float | None]:
    if len(curves) > 1:
        return statements.takeover(_in_front(at, curves, min), form, "lowest")
    return statements.takeover(_in_front(at, bounds, max), form, "the larger part") if len(bounds) > 1 else ("", None)


def _in_front(
    at: Sequence[float], curves: Curves, best: Callable[[Sequence[float]], float]
) -> list[tuple[float, list[str]]]:
    """At each place the names of the best curves: several where they are equal."""
    columns = [(x, {name: seconds[i] for name, seconds in curves.items()}) for i, x in enumerate(at)]
    return [
        (x, [name for name, value in values.items() if isclose(value, best(list(values.values())))])
        for x, values in columns
    ]


class Fastest(NamedTuple):
    """One machine: for each size (from small to large) the name of the fastest algorithm on each number of ranks."""

    title: str
    ranks: Sequence[int]
    names: Mapping[int, Sequence[str]]


def fastest(panels: Sequence[Fastest], message: str, bucket: int | None = None, how: str = "Simulated") -> Picture:
    """A panel for each machine: a coloured field for each size and number of ranks, each area with its name in it.

    ``message`` is above the figure. The row of ``bucket`` bytes has a dotted frame. ``how`` begins the alternative
    text. An empty name is a field without a winner; it has the colour of the ground. An area that is too narrow for the
    name has its initials, which the legend explains.
    """
    names = dict.fromkeys(name for panel in panels for row in panel.names.values() for name in row if name)

    def paint(figure: Figure, theme: Theme) -> None:
        rows = figure.subplots(len(panels), 1, squeeze=False)
        for axes, panel in zip(rows[:, 0], panels, strict=True):
            _fields(axes, panel, theme)
            look: dict[str, Any] = {"fill": False, "ec": theme.ink, "lw": 1.4, "ls": (0, (1, 1.5))}
            for y in (y for y, nbytes in enumerate(panel.names) if nbytes == bucket):
                axes.add_patch(mpl.patches.Rectangle((-0.5, y - 0.5), len(panel.ranks), 1, **look))
        handles = [
            mpl.patches.Patch(fc=on_page(mark(name).colour, theme), label=f"{_initials(name)} {_words(name)}")
            for name in names
        ]
        tight: dict[str, Any] = {"fontsize": 8.5, "handlelength": 1.0, "handletextpad": 0.5, "columnspacing": 1.0}
        figure.legend(handles=handles, loc="outside lower center", ncols=3, **tight)
        kit.message(figure, theme, message)

    height = sum(AROUND + ROW * len(panel.names) for panel in panels) + 0.6 + ROW * ceil(len(names) / 3)
    return kit.drawn(paint, f"{how}, the fastest all-reduce: a field for each number of ranks and size", height)


def _words(name: str) -> str:
    return name.replace("_", " ")


def _initials(name: str) -> str:
    """The label of an algorithm in a narrow field.

    >>> _initials("recursive_doubling"), _initials("ring")
    ('RD', 'R')
    """
    return "".join(word[0].upper() for word in name.split("_"))


def _fields(axes: Axes, panel: Fastest, theme: Theme) -> None:
    rows = list(panel.names.values())
    for y, names in enumerate(rows):
        for name in filter(None, dict.fromkeys(names)):
            look: dict[str, Any] = {"fc": on_page(mark(name).colour, theme), "ec": theme.ground, "lw": 1}
            for run in _runs([x for x, each in enumerate(names) if each == name]):
                axes.add_patch(mpl.patches.Rectangle((run[0] - 0.5, y - 0.5), len(run), 1, **look))
    for area in _areas(rows):
        _name_area(axes, area, rows[area[0][1]][area[0][0]], ACROSS / len(panel.ranks), theme)
    axes.set(xlim=(-0.5, len(panel.ranks) - 0.5), ylim=(-0.5, len(panel.names) - 0.5))
    axes.set_xticks(range(len(panel.ranks)), [f"{ranks:,}" for ranks in panel.ranks])
    axes.set_yticks(range(len(panel.names)), [format_bytes(nbytes) for nbytes in panel.names])
    axes.tick_params(length=0, labelsize=9)
    axes.grid(visible=False)
    axes.set_xlabel("ranks", labelpad=1)
    kit.headline(axes, panel.title)


Field = tuple[int, int]  # column and row


def _areas(rows: Sequence[Sequence[str]]) -> list[list[Field]]:
    """Fields of one name that touch, area by area.

    >>> _areas([["a", "b"], ["b", "b"], ["", "a"]])
    [[(0, 0)], [(0, 1), (1, 0), (1, 1)], [(1, 2)]]
    """
    found, seen = [], set[Field]()
    for start in ((x, y) for x in range(len(rows[0])) for y in range(len(rows))):
        area, todo = set[Field](), [start]
        while todo:
            x, y = field = todo.pop()
            if field in area | seen or not (0 <= x < len(rows[0]) and 0 <= y < len(rows)):
                continue
            if rows[y][x] and rows[y][x] == rows[start[1]][start[0]]:
                area.add(field)
                todo += [(x - 1, y), (x + 1, y), (x, y - 1), (x, y + 1)]
        seen |= area
        found += [sorted(area)] if area else []
    return found


def _name_area(axes: Axes, area: Sequence[Field], name: str, width: float, theme: Theme) -> None:
    """The name in the longest row of an area, the middle one of several; its initials where a field is too narrow."""
    levels = sorted({y for _, y in area})
    runs = [(len(run), run[0], y) for y in levels for run in _runs([x for x, row in area if row == y])]
    longest = [run for run in runs if run[0] == max(runs)[0]]
    length, x, y = longest[(len(longest) - 1) // 2]
    words = _words(name) if len(name) * LETTER <= length * width else _initials(name)
    axes.text(
        x + (length - 1) / 2, y, words, ha="center", va="center",
        fontsize=SIZE, color=kit.readable_on(on_page(mark(name).colour, theme)),
    )  # fmt: skip


def _runs(columns: Sequence[int]) -> list[list[int]]:
    """Consecutive numbers, run by run.

    >>> _runs([0, 1, 4])
    [[0, 1], [4]]
    """
    runs = groupby(enumerate(columns), lambda at: at[1] - at[0])
    return [[column for _, column in run] for _, run in runs]


def memory() -> Picture:
    """The state of models of several sizes, and with the activations of one sequence, beside a GPU and a node."""

    def paint(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        colour = mark("ring").colour
        for nth, model in enumerate(MODELS):
            state, total = needed(model)
            axes.plot([state, total], [-nth, -nth], color=colour, lw=7, alpha=0.45, solid_capstyle="butt")
            axes.annotate(written(state), (state, -nth), xytext=(0, 7), textcoords="offset points", ha="center", size=9)
        states = [needed(model)[0] for model in MODELS]
        axes.plot(states, [-nth for nth in range(len(states))], "o", color=colour, label="state")
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

    return kit.drawn(paint, "Memory of the training state, and with the activations of one sequence", 3.2)


def needed(model: Transformer) -> tuple[float, float]:
    """Bytes of a model's state, and of that and the activations of one sequence."""
    state = state_bytes(model.parameters)
    return state, state + activation_bytes(model)


def written(nbytes: float) -> str:
    """Bytes as GPU memory is sold: powers of 1000.

    >>> written(24e9), written(6.48e12)
    ('24 GB', '6.48 TB')
    """
    return f"{nbytes / 1e12:.3g} TB" if nbytes >= 1e12 else f"{nbytes / 1e9:.3g} GB"

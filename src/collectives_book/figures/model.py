"""What a formula says, as lines: time against the size of a buffer, or against the number of ranks."""

from collections.abc import Callable, Mapping, Sequence
from math import isclose

from matplotlib.figure import Figure

from collectives.figures.style import MARKS, Picture, Theme, mark, picture
from collectives.units import duration, format_bytes
from collectives_book.figures import kit, statements

Form = Callable[[float], str]


def model_time(
    at: Sequence[float],
    curves: Mapping[str, Sequence[float]],
    bounds: Mapping[str, Sequence[float]] | None = None,
    over: str = "buffer",
) -> Picture:
    """Seconds of each algorithm ``at`` these sizes in bytes, or numbers of ranks (``over="ranks"``).

    Lines for ``curves``, thin dashes for ``bounds`` that nothing goes below; both axes are logarithmic. Above is which
    curve is the lowest in the end; of a single one, which of its bounds is the greatest.
    """
    plain = "{:,.0f} ranks".format if over == "ranks" else format_bytes
    said, since = _message(at, curves, bounds or {}, plain)

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
        kit.message(figure, theme, said, since)
        kit.labels(figure, more=[kit.key(theme, "model, not measured", lw=1.8)])

    ends = [
        kit.from_to(name, at, seconds, lambda x: f"at {plain(x)}", duration)
        for name, seconds in {**curves, **(bounds or {})}.items()
    ]
    return picture(paint, f"Model, not measured, time against {over}: {'; '.join(ends)}.", kit.WIDTH, 3.6)


def _message(
    at: Sequence[float], curves: Mapping[str, Sequence[float]], bounds: Mapping[str, Sequence[float]], form: Form
) -> tuple[str, float | None]:
    if len(curves) > 1:
        return statements.takeover(_in_front(at, curves, min), form, "lowest")
    return statements.takeover(_in_front(at, bounds, max), form, "the larger part") if len(bounds) > 1 else ("", None)


def _in_front(
    at: Sequence[float], curves: Mapping[str, Sequence[float]], best: Callable[[Sequence[float]], float]
) -> list[tuple[float, list[str]]]:
    """At each place the names of the best curves: several where they are equal."""
    columns = [(x, {name: seconds[i] for name, seconds in curves.items()}) for i, x in enumerate(at)]
    return [
        (x, [name for name, value in values.items() if isclose(value, best(list(values.values())))])
        for x, values in columns
    ]

"""What a formula says, as lines: time against the size of a buffer, or against the number of ranks."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from collectives.figures import kit
from collectives.figures.style import MARKS, Picture, Theme, mark, picture
from collectives.units import duration, format_bytes


def model_time(
    at: Sequence[float],
    curves: Mapping[str, Sequence[float]],
    bounds: Mapping[str, Sequence[float]] | None = None,
    over: str = "buffer",
) -> Picture:
    """Seconds of each algorithm ``at`` these sizes in bytes, or numbers of ranks (``over="ranks"``).

    Lines for ``curves``, thin dashes for ``bounds`` that nothing goes below; both axes are logarithmic.
    """
    plain = "{:,.0f}".format if over == "ranks" else format_bytes

    def paint(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        for algorithm, seconds in curves.items():
            colour = mark(algorithm).colour if algorithm in MARKS else theme.ink
            axes.plot(at, seconds, color=colour, lw=1.8, label=algorithm)
        for number, (name, seconds) in enumerate((bounds or {}).items()):
            kit.lower_bound(axes, theme, at, seconds, name, dash=5 - 3 * number)
        kit.binary_axis(axes, at[:: 1 + len(at) // 10], over, plain)
        kit.time_axis(axes, unit=1)
        kit.labels(figure, more=[kit.key(theme, "model", lw=1.8)])

    where = "at {:,.0f} ranks".format if over == "ranks" else lambda nbytes: f"at {format_bytes(nbytes)}"
    ends = [kit.from_to(name, at, seconds, where, duration) for name, seconds in {**curves, **(bounds or {})}.items()]
    return picture(paint, f"Model, not measured, time against {over}: {'; '.join(ends)}.", kit.WIDTH, 3.6)

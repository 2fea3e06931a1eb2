"""Charts of tables on seaborn.objects: curves over an axis, and dots on named lines, to which a page adds mark by mark.

A measured value is a filled marker with its interval, a simulated one a line, a published one a
hollow marker, and a lower bound a line of thin dashes. Each method adds one of them, with its entry
in the legend; `Chart.add` takes any other mark of seaborn.objects. `Chart.picture` draws the chart
for both themes, with an alternative text from its rows.

    chart = Curves(rows, "bytes", "median_us", "algorithm", (kit.BYTES, kit.US))
    chart.simulated("simulated_us").points(("low_us", "high_us")).picture("All-reduce by size")
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

import matplotlib as mpl
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from collectives.algorithms import Mark
from collectives.figures.style import Picture, Theme, mark, on_page
from collectives_book.figures import kit
from collectives_book.figures.kit import Axis, Rows
from collectives_book.figures.seaborn_only import so

DASHES: Any = (5.0, 3.0)
UNTITLED: Any = {"title": lambda _: ""}  # seaborn's own title of a panel
# The first colour of the cycle, which `Chart.picture` sets to the theme's ink.
INK = "C0"

LINE = so.Line(linewidth=1.2)
POINT = so.Dot(pointsize=6)
BAR = so.Range(linewidth=1.2)
HOLLOW = so.Dot(pointsize=7, fill=False, stroke=1.5)
DASHED = so.Line(color=INK, linewidth=0.9, linestyle=DASHES)
STROKE = so.Dot(marker="|", color=INK, pointsize=14, stroke=1.4)

Interval = tuple[str, str]
Then = Callable[[Sequence[Axes], Theme], None]


class Panels(NamedTuple):
    """The panels of a chart: one for each value of the column ``by``, headed by ``title``, ``columns`` side by side."""

    by: str
    title: Callable[[Any], str] = str
    columns: int = 1
    is_x_shared: bool = True


class Chart(ABC):
    """A table and how a figure reads it: the columns on both axes, and a series for each value of ``by``.

    ``looks`` gives the colour and marker of a series. ``plot`` is the plot of seaborn.objects to
    which the methods add.
    """

    def __init__(
        self,
        rows: Rows,
        x: str,
        y: str,
        by: str,
        looks: Callable[[str], Mark] = mark,
        panels: Panels | None = None,
    ) -> None:
        self.rows = rows.astype({by: str})
        self.x, self.y, self.by, self.looks, self.panels = x, y, by, looks, panels
        self.names = [*dict.fromkeys(self.rows[by])]
        self.headings = [*dict.fromkeys(rows[panels.by])] if panels else [""]
        self.kinds: dict[str, dict[str, Any]] = {}  # further entries of the legend
        self.series_line: dict[str, Any] = {"ls": "-"}  # how the legend shows a series
        self.has_bars = False
        self.plot = so.Plot(self.rows, x=x, y=y, color=by, marker=by)
        if panels:
            self.plot = self._facet(self.plot, panels)

    @abstractmethod
    def _facet(self, plot: so.Plot, panels: Panels) -> so.Plot: ...

    @abstractmethod
    def _scale(self, panel: Axes) -> None:
        """Scale and name the axes of a panel."""

    @abstractmethod
    def _told(self) -> Iterator[str]:
        """Yield the values for the alternative text."""

    def scales(self) -> dict[str, Any]:
        """Return scales of seaborn beside those of colours and markers."""
        return {}

    def legend_series(self) -> Mapping[str, Mark]:
        """Return the series that the legend shows."""
        return {name: self.looks(name) for name in self.names}

    def add(self, shape: Any, *moves: Any, **variables: Any) -> Self:
        """Add a mark, as ``seaborn.objects.Plot.add`` does; the legend is ours."""
        self.plot = self.plot.add(shape, *moves, legend=False, **variables)
        return self

    def picture(self, about: str, height: float = 3.8, then: Then | None = None) -> Picture:
        """Return the figure for both themes, ``height`` inches high; ``then`` may add to its panels."""
        if self.rows.empty:
            return kit.nothing()

        def paint(figure: Figure, theme: Theme) -> None:
            self._draw(figure, theme)
            for panel, heading in zip(figure.axes, self.headings, strict=True):
                text = self.panels.title(heading) if self.panels else ""
                panel.set_title(text, **kit.TITLE)
                self._scale(panel)
            rows = self.rows if self.has_bars else ()
            series = self.legend_series()
            kit.legend(figure, theme, series, self.kinds, rows, **self.series_line)
            if then:
                then(figure.axes, theme)

        return kit.drawn(paint, about, height, self._told())

    def _draw(self, figure: Figure, theme: Theme) -> None:
        looks = {name: self.looks(name) for name in self.names}
        colours: Any = {name: on_page(look.colour, theme) for name, look in looks.items()}
        markers: Any = {name: look.marker for name, look in looks.items()}
        settings = dict(mpl.rcParams.items()) | {"axes.prop_cycle": cycler(color=[theme.ink])}
        plot = self.plot.scale(color=colours, marker=markers, **self.scales())
        plot.theme(settings).on(figure).plot()


class Curves(Chart):
    """Curves over an x axis; ``axes`` name and scale both axes."""

    def __init__(
        self,
        rows: Rows,
        x: str,
        y: str,
        by: str,
        axes: tuple[Axis, Axis],
        looks: Callable[[str], Mark] = mark,
        panels: Panels | None = None,
    ) -> None:
        super().__init__(rows, x, y, by, looks, panels)
        self.axes = axes
        self.is_simulated = rows[y].isna()  # rows that a line passes, so that no other joins them

    def simulated(self, column: str, called: str = "simulated") -> Self:
        """Add a column as a line of each series, which the legend calls so; rows without a value have none."""
        self.is_simulated = self.rows[column].notna()
        self.series_line = {"ls": ""}
        if not self.is_simulated.any():
            return self
        self.kinds[called] = {"ls": "-"}
        return self.add(LINE, data=self.rows[self.is_simulated], y=column, marker=None)

    def points(self, interval: Interval | None = None, *, joined: bool = True) -> Self:
        """Add filled markers, bars between two columns, and a line through those that no simulated line passes.

        That line is dotted where other markers have a simulated one.
        """
        rest = self.rows[~self.is_simulated]
        beside_simulated = self.series_line["ls"] == ""
        if joined and len(rest):
            style = ":" if beside_simulated else "-"
            line = so.Line(linewidth=1.2, linestyle=style, pointsize=0)
            self.add(line, data=rest, y=self.y, marker=None)
        if not joined:
            self.series_line = {"ls": ""}
        self.add(POINT)
        if interval is None:
            return self
        self.has_bars = True
        return self.add(BAR, ymin=interval[0], ymax=interval[1], marker=None)

    def lines(self, group: str | None = None) -> Self:
        """Add a line without markers for each series, or a thinner one for each value of ``group``."""
        self.series_line = {"ls": "-", "marker": None}
        return self.add(so.Line(linewidth=1.0 if group else 1.8), marker=None, group=group)

    def published(self, points: Rows, called: str) -> Self:
        """Add hollow markers for a table of the same columns, which the legend calls so."""
        if points.empty:
            return self
        points = points.astype({self.by: str})
        self.names = [*dict.fromkeys([*self.names, *points[self.by]])]
        self.kinds[called] = {"ls": "", "marker": "o", "mfc": "none"}
        return self.add(HOLLOW, data=points)

    def bound(self, column: str, called: str = "lower bound") -> Self:
        """Add a column as thin dashes, one line for all series, which the legend calls so."""
        self.kinds[called] = {"ls": (0, DASHES), "lw": 0.9}
        return self.add(DASHED, y=column, color=None, marker=None)

    def _facet(self, plot: so.Plot, panels: Panels) -> so.Plot:
        plot = plot.facet(col=panels.by, order=self.headings, wrap=panels.columns)
        plot = plot.label(**UNTITLED)
        return plot.share(x=panels.is_x_shared, y=panels.columns > 1)

    def _scale(self, panel: Axes) -> None:
        columns = self.panels.columns if self.panels else 1
        kit.scale(panel, "x", self.axes[0], [*self.rows[self.x]], columns)
        kit.scale(panel, "y", self.axes[1], [])

    def _told(self) -> Iterator[str]:
        """Yield the first and the last point of each series, in each panel."""
        if self.panels is None:
            yield from self._ends(self.rows)
            return
        for heading, rows in self.rows.groupby(self.panels.by, sort=False):
            for text in self._ends(rows):
                yield f"{self.panels.title(heading)}: {text}"

    def _ends(self, rows: Rows) -> Iterator[str]:
        for name, series in rows.groupby(self.by, sort=False):
            ends = series.sort_values(self.x, kind="stable").iloc[[0, -1]]
            pairs = zip(ends[self.x], ends[self.y], strict=True)
            points = [f"{self.axes[1].form(y)} at {self.axes[0].form(x)}" for x, y in pairs]
            start = "from " if len(series) > 1 else ""
            yield f"{name} {start}{' to '.join(dict.fromkeys(points))}"


class Dots(Chart):
    """Values as dots: the column ``x`` on a line of the figure for each name in the column ``y``.

    ``by`` gives the dots of a line their look; without it each line has its own. Panels stand side
    by side.
    """

    def __init__(
        self,
        rows: Rows,
        x: str,
        y: str,
        axis: Axis,
        by: str | None = None,
        looks: Callable[[str], Mark] = mark,
        panels: Panels | None = None,
    ) -> None:
        self.lines = [*dict.fromkeys(rows[y])]
        super().__init__(rows, x, y, by or y, looks, panels)
        self.axis, self.series_line = axis, {"ls": ""}
        one_line = [y, *([panels.by] if panels else [])]
        self.has_several = self.by != y and rows.groupby(one_line).size().max() > 1

    def points(self, interval: Interval | None = None) -> Self:
        """Add filled markers, and bars between two columns."""
        self._beside(POINT)
        if interval is None:
            return self
        self.has_bars = True
        return self._beside(BAR, xmin=interval[0], xmax=interval[1], marker=None)

    def predicted(self, column: str) -> Self:
        """Add a column as short strokes."""
        self.kinds["predicted"] = {"ls": "", "marker": "|", "ms": 9}
        return self._beside(STROKE, x=column, marker=None)

    def _beside(self, shape: Any, **variables: Any) -> Self:
        """Add a mark, of which those of one line stand beside each other."""
        moves = [so.Dodge(by=["color"], gap=0.2)] if self.has_several else []
        return self.add(shape, *moves, orient="y", **variables)

    def picture(self, about: str, height: float | None = None, then: Then | None = None) -> Picture:
        """Return the figure for both themes, as high as its lines need or as ``height`` says."""
        dots_of_a_line = len(self.names) if self.has_several else 1
        needed = 1.2 + (0.2 + 0.2 * dots_of_a_line) * len(self.lines)
        return super().picture(about, height or needed, then)

    def scales(self) -> dict[str, Any]:
        """Return the order of the lines."""
        return {"y": so.Nominal(order=self.lines)}

    def legend_series(self) -> Mapping[str, Mark]:
        """Return the series; lines that are named on their axis need no legend."""
        return super().legend_series() if self.by != self.y else {}

    def _facet(self, plot: so.Plot, panels: Panels) -> so.Plot:
        plot = plot.facet(col=panels.by, order=self.headings).share(x=panels.is_x_shared)
        return plot.label(**UNTITLED)

    def _scale(self, panel: Axes) -> None:
        kit.scale(panel, "x", self.axis, [])
        panel.set_ylabel("")
        panel.grid(visible=False, axis="y")

    def _told(self) -> Iterator[str]:
        """Yield the name and value of each dot."""
        columns = [self.panels.by] if self.panels else []
        columns.append(self.y)
        if self.by != self.y:
            columns.append(self.by)
        names = self.rows[columns].astype(str).agg(", ".join, axis="columns")
        for name, value in zip(names, self.rows[self.x], strict=True):
            yield f"{name} {self.axis.form(value)}"

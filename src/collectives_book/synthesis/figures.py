"""What the chapter on topologies shows of synthesis: SCCL's verdicts for DGX-1, and seconds against ranks."""

import pandas as pd
from matplotlib.figure import Figure

from collectives.algorithms import GREEN, Mark
from collectives.figures.style import Picture, Theme, mark
from collectives.synthesis.few_steps import synthesize
from collectives_book.figures import by_hand as kit
from collectives_book.figures.statements import Rows
from collectives_book.synthesis.scaling import LIMIT, TABLE, links_of

# Steps, rounds and chunks of all-gathers that SCCL asks for on DGX-1: the ones that there are none of.
ABSENT = ((1, 1, 1), (2, 4, 3), (2, 5, 4), (2, 6, 5), (2, 7, 6))

LOOKS: dict[str, Mark] = {"ring": mark("ring"), "torus": mark("two_tree"), "hypercube": GREEN}


def recorded() -> Rows:
    """The rows of the committed table."""
    return pd.read_csv(TABLE, keep_default_na=False)


def absent() -> str:
    """The questions without a schedule, asked now, with the reason: a table in Markdown. None takes a second."""
    links, lines = links_of("dgx1"), ["| chunks | steps | rounds | why not |", "|--:|--:|--:|---|"]
    for steps, rounds, chunks in ABSENT:
        answer = synthesize(links, "all_gather", steps, rounds, chunks)
        lines.append(f"| {chunks} | {steps} | {rounds} | {answer.why} |")
    return "\n".join(lines)


def found() -> Rows:
    """The questions for DGX-1 with a schedule, as recorded: time of a large all-gather, and seconds of the solver."""
    rows = recorded()
    rows = rows[(rows.topology == "dgx1") & (rows.verdict == "satisfiable")]
    return rows[["chunks", "steps", "rounds", "seconds"]].reset_index(drop=True)


def seconds(chunks: int) -> Picture:
    """Seconds of the solver against ranks, for so many chunks a rank; hollow where the limit ended it."""
    rows = recorded()
    rows = rows[(rows.chunks == chunks) & rows.topology.isin(list(LOOKS))]

    def paint(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        for name, part in rows.groupby("topology", sort=False):
            look, ended = LOOKS[str(name)], part[part.verdict == "limit"]
            axes.plot(part.ranks, part.seconds, color=look.colour, marker=look.marker, lw=1.2, label=str(name))
            axes.plot(
                ended.ranks, ended.seconds, color=look.colour, marker=look.marker, ls="", mfc=theme.ground, zorder=3
            )
            at = part.iloc[-1]
            axes.annotate(str(name), (at.ranks, at.seconds), (6, -12), textcoords="offset points", color=look.colour)
        kit.lower_bound(axes, theme, [rows.ranks.min(), 1.2 * rows.ranks.max()], [LIMIT, LIMIT])
        axes.set(xlabel="ranks", yscale="log", xlim=(None, 1.2 * rows.ranks.max()))
        kit.time_axis(axes, 1.0, "time of the solver")
        kit.message(
            figure, theme, f"A limit of {LIMIT:g} s ends {(rows.verdict == 'limit').sum()} of {len(rows)} searches"
        )

    return kit.drawn(paint, "Time of the solver by ranks", 2.8)

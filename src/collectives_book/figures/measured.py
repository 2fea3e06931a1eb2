"""Measured rows: names, looks, figures and tables of them, their record in a line, and libraries beside auto."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pandas as pd

from collectives.algorithms import Mark
from collectives.backends import backend as back_end
from collectives.bench import OURS
from collectives.figures.style import Picture, mark
from collectives.launch.where import parse_where
from collectives.units import format_bytes, parse_bytes
from collectives_book import computed
from collectives_book.figures import kit, statements
from collectives_book.figures.charts import Curves, Panels
from collectives_book.figures.statements import Rows

# Columns of whole numbers, which pandas reads as floats where another part of a table has none.
COUNTS = (
    "ranks",
    "batch",
    "steps",
    "parameters",
    "bytes",
    "killed_at",
    "resumed_after",
    "seed",
    "blocks",
    "width",
    "calls",
    "stages",
    "stage",
    "micro_batches",
    "micro_batch",
    "kept",
)

# More series than these cannot be told apart in a figure.
MOST_SERIES = 10

AXES = {"bytes": kit.BYTES, "ranks": kit.RANKS}
NONE = pd.Series(dtype=float)  # in place of a column that rows do not have


def label(backend: str, algorithm: str) -> str:
    """Return the name of a series: our algorithms by their own name, a library's own choice by the library's.

    >>> label("p2p", "two_tree"), label("gloo", "default"), label("mpi", "ring")
    ('two_tree', 'gloo', 'mpi (ring)')
    """
    if backend in OURS:
        return f"{algorithm}{back_end(backend).suffix}"
    return backend if algorithm == "default" else f"{backend} ({algorithm})"


def look(backend: str, algorithm: str) -> Mark:
    """Return the look of a series: its algorithm's, or its back end's where that chose the algorithm."""
    if algorithm == "auto":
        return back_end(backend).auto_mark
    return back_end(backend).mark if algorithm == "default" else mark(algorithm)


def asked(rows: Rows) -> list[str]:
    """Return each row's algorithm as it was asked for: "auto" is a series of its own, whatever it chose."""
    chosen = rows.auto if "auto" in rows else [False] * len(rows)
    return ["auto" if auto else name for name, auto in zip(rows.algorithm, chosen, strict=True)]


def names(rows: Rows) -> list[str]:
    """Return the name of each row's series."""
    return [label(*pair) for pair in zip(rows.backend, asked(rows), strict=True)]


def times(
    rows: Rows,
    along: str = "bytes",
    panels: Panels | None = None,
    height: float = 3.8,
) -> Picture:
    """Return the figure of each series' median time, by the size of the buffer or by the number of ranks.

    Simulated times and bounds are drawn where rows have them.
    """
    if rows.empty:
        return kit.nothing()
    values = rows.assign(y=rows.median_us, low=rows.low_us, high=rows.high_us)
    for name in ("simulated", "bound"):
        if f"{name}_us" in rows:
            values[name] = rows[f"{name}_us"].astype(float)
    chart, caption = _chart(values, (along, kit.US), panels)
    about = _about(rows, "time", along)
    return replace(_with_others(chart, "lower bound").picture(about, height), caption=caption)


def bandwidths(
    rows: Rows, unit: str = "GB/s", looks: Callable[[str], Mark] | None = None
) -> Picture:
    """Return the figure of each series' bus bandwidth by the size of the buffer, in GB/s or MB/s, as `times` has it.

    ``looks`` is the look of a series where it is not `look`.
    """
    if rows.empty:
        return kit.nothing()
    moved = rows.busbw * rows.median_us * {"GB/s": 1, "MB/s": 1e3}[unit]
    columns = {
        "y": "median_us",
        "low": "high_us",
        "high": "low_us",
        "simulated": "simulated_us",
        "bound": "bound_us",
    }
    values = rows.copy()
    for name, column in columns.items():
        if column in rows:
            values[name] = moved / rows[column].astype(float)
    axis = kit.Axis("bus bandwidth", f"{{:.3g}} {unit}".format)
    chart, caption = _chart(values, ("bytes", axis), looks=looks)
    about = _about(rows, unit, "bytes")
    return replace(_with_others(chart, "bound").picture(about), caption=caption)


def collectives(rows: Rows) -> Picture:
    """Return `times` of several collectives, a small panel for each, all to one scale."""
    lines = -(-rows.collective.nunique() // 2)
    panels = Panels("collective", _plain, columns=2)
    return times(rows, panels=panels, height=1.2 + 1.8 * lines)


def _chart(
    rows: Rows,
    axes: tuple[str, kit.Axis],
    panels: Panels | None = None,
    looks: Callable[[str], Mark] | None = None,
) -> tuple[Curves, str]:
    """Return a chart of the series that are fastest anywhere, and a caption that names the others."""
    rows = rows.reset_index(drop=True).assign(series=names(rows), asked=asked(rows))
    ranks_at_points = rows.groupby(["collective", "ranks", "bytes"]).median_us.rank()
    best = ranks_at_points.groupby(rows.series, sort=False).min()
    left = [*best.sort_values(kind="stable").index[MOST_SERIES:]]
    own = {row.series: look(row.backend, row.asked) for row in rows.itertuples()}
    along, axis = axes
    both = AXES[along], axis
    shown = rows[~rows.series.isin(left)]
    chart = Curves(shown, along, "y", "series", both, looks or own.__getitem__, panels)
    return (
        chart,
        f"Not drawn, because others are faster: {', '.join(left)}." if left else "",
    )


def _with_others(chart: Curves, bound: str) -> Curves:
    """Add what was measured, and beside it simulated values and bounds where rows have them."""
    known = [name for name in ("simulated", "bound") if chart.rows.get(name, NONE).notna().any()]
    if "simulated" in known:
        chart.simulated("simulated")
    chart.points(("low", "high"))
    return chart.bound("bound", bound) if "bound" in known else chart


def _about(rows: Rows, what: str, along: str) -> str:
    collectives = ", ".join(map(_plain, dict.fromkeys(rows.collective)))
    ranks = statements.span(rows.ranks, "{:.0f}".format)
    return f"{collectives} on {ranks} ranks, {what} by {AXES[along].name}"


def table(rows: Rows, lines: str = "bytes") -> Rows:
    """Return median times in microseconds: a column for each series, a line for each size or "collective"."""
    if rows.empty:
        return rows[[]]
    rows = rows.sort_values("bytes", kind="stable")
    head = format_bytes if lines == "bytes" else _plain
    named = rows.assign(series=names(rows), line=rows[lines].map(head))
    wide = named.pivot(index="line", columns="series", values="median_us")
    wide = wide.map("{:,.0f}".format, na_action="ignore").fillna("none")
    wide = wide.rename_axis(index=None, columns=None)
    return wide.loc[named.line.unique(), named.series.unique()]


def failed(rows: Rows) -> Rows | None:
    """Return sizes that failed or have wrong elements, and why, as a table.

    None if there is none.
    """
    wrong = rows.wrong.fillna(0) if "wrong" in rows else pd.Series(0, rows.index)
    why = rows.error.str.partition("\n")[0].fillna(wrong.map("{:.0f} wrong elements".format))
    is_lost = rows.error.notna() | (wrong > 0)
    if not is_lost.any():
        return None
    lost = rows.assign(size=rows.bytes.map(format_bytes), why=why)[is_lost]
    return lost.drop_duplicates("bytes").set_index("size")[["why"]]


def part(rows: Rows, name: str) -> Rows:
    """Return the rows of one part, with the columns that it has; counts are whole numbers again."""
    found = rows[rows.part == name].dropna(axis="columns", how="all").reset_index(drop=True)
    whole = [column for column in COUNTS if column in found and found[column].notna().all()]
    return found.astype(dict.fromkeys(whole, int))


def _plain(collective: str) -> str:
    return collective.replace("_", "-")


# Where ranks were, as a sentence goes on; whatever starts them on a cluster, these are its own
# words.
WHERE = {
    "loopback": "processes on one machine",
    "horovodrun": "started by horovodrun",
    "mpirun": "started by mpirun",
    "torchrun": "started by torchrun",
    "slurm": "started by srun on the nodes of a Slurm job",
    "cluster": "emulated hosts on one machine, joined by slow links",
}


def sourced(drawn: Picture, record: dict[str, Any], stem: str | Path) -> Picture:
    """Return the figure with `provenance` in its caption."""
    return replace(drawn, caption=f"{drawn.caption} {provenance(record, stem)}".strip())


def provenance(record: dict[str, Any], stem: str | Path) -> str:
    """Return a line about the rows at ``stem``: where, when, on what, how surely and by which command measured."""
    where = record["settings"][0].get("where", "loopback")
    counts = [settings["ranks"] for settings in record["settings"]]
    ranks = statements.span(counts, "{:.0f}".format)
    parts = [
        f"Measured on {ranks} ranks, {WHERE[parse_where(where).launcher]}",
        record.get("date", ""),
        computer(record),
        versions(record),
        sureness(record),
        command(record, stem),
    ]
    known = " · ".join(part for part in parts if part)
    return f"{known}."


def computer(record: dict[str, Any]) -> str:
    """Return the machine: processor, cores, memory and system."""
    first = record["environment"][0]
    cores = first["usable_cores"]
    memory = first["memory_gib"]
    return f"{first['processor']}, {cores} cores, {memory:g} GiB, {first['system']}"


def versions(record: dict[str, Any]) -> str:
    """Return Python, torch and the commit of the code that measured."""
    first = record["environment"][0]
    known = {
        "Python": first["python"],
        "torch": first.get("torch"),
        "commit": first["commit"],
    }
    return ", ".join(f"{name} {version}" for name, version in known.items() if version)


def sureness(record: dict[str, Any]) -> str:
    """Return how often each point was measured, and its interval's true confidence.

    Empty where no record says it.
    """
    known = [settings.get("repetitions") for settings in record.get("settings", [])]
    counts = [count for count in known if count]
    if not counts:
        return ""
    noun = "repetition" if max(counts) == 1 else "repetitions"
    span = statements.span(counts, "{:.0f}".format)
    return f"{span} {noun}, {statements.intervals(counts)}"


def command(record: dict[str, Any], stem: str | Path) -> str:
    """Return what makes the rows again: a notebook with its preset, or `collectives bench` without a notebook."""
    if "computed" in record["settings"][0]:
        return computed.command(Path(stem).name)
    name = Path(stem).name
    folder = Path(stem).parent.name
    for home in Path(stem).resolve().parents:
        if home.name == "experiments" and (home / f"{name}.ipynb").exists():
            known = (home / "presets" / f"{folder}.yaml").exists()
            preset = f"--preset {folder}" if known else " # with the settings of its record"
            return f"collectives run experiments/{name}.ipynb {preset}"
    variables = record.get("variables", {})
    alike = groupby(record["settings"], lambda settings: settings | {"ranks": None})
    return " && ".join(_bench(list(settings), variables) for _, settings in alike)


def _bench(wanted: list[dict[str, Any]], variables: dict[str, str]) -> str:
    """Return a command for settings that differ in their number of ranks only."""
    first = wanted[0]
    ranks = " ".join(str(settings["ranks"]) for settings in wanted)
    words = [f"{name}={value}" for name, value in variables.items()]
    words += ["collectives bench", first["collective"], *first["algorithms"], f"-p {ranks}"]
    words += [f"--{name} {first[name]}" for name in ("where", "repetitions", "warmups")]
    if first["dtype"] != "float32":
        words.append(f"--dtype {first['dtype']}")
    words.append(f"--backend {' '.join(first['backends'])}")
    words.append(f"--bytes {' '.join(map(_typed, first['bytes']))}")
    if first.get("back_to_back"):
        words.append("--back-to-back")
    if first.get("persistent"):
        words.append("--persistent")
    return " ".join(words)


def _typed(nbytes: int) -> str:
    """Return a size as one types it.

    >>> _typed(65536), _typed(4), _typed(1000)
    ('64K', '4', '1000')
    """
    short = format_bytes(nbytes).replace(" ", "").removesuffix("B").removesuffix("i")
    return short if parse_bytes(short) == nbytes else str(nbytes)


def over_auto(rows: Rows, named: bool = False) -> Rows:
    """Return libraries' rows with their time over auto's, ``low``, ``ratio`` and ``high`` as intervals allow.

    ``chosen`` is what auto took. Of a library its own choice counts; with ``named`` so does what
    was asked for by name. Sizes that failed are left out.
    """
    rows = rows[rows.error.isna()].sort_values(["ranks", "bytes"], kind="stable")
    own = rows.backend.isin(OURS)
    others = rows[~own & (named | (rows.algorithm == "default"))]
    auto = rows[own & rows.auto].set_index(["ranks", "bytes"])
    points = list(zip(others.ranks, others.bytes, strict=True))
    auto = auto.loc[points].set_index(others.index)
    low, ratio, high = statements.ratio(others, auto)
    titles = [back_end(name).title for name in others.backend]
    return others.assign(
        library=titles,
        chosen=auto.algorithm,
        low=low,
        ratio=ratio,
        high=high,
    )


def quickest_library(beside: Rows) -> Rows:
    """Return of `over_auto` the quickest library at each point."""
    return beside.loc[beside.groupby(["ranks", "bytes"]).ratio.idxmin()]


def ratio_table(beside: Mapping[str, Rows]) -> Rows:
    """Return the ratios of several `over_auto` by their name, number of ranks and library.

    A column for each size.
    """
    rows = pd.concat(
        [
            each.assign(over=name, ranks=each.ranks.map("{} ranks".format))
            for name, each in beside.items()
        ]
    )
    wide = rows.pivot_table(
        index=["over", "ranks", "library"],
        columns="bytes",
        values="ratio",
        sort=False,
    )
    return (
        wide.map("{:.2f}".format)
        .rename(columns=format_bytes)
        .rename_axis(index=[None] * 3, columns=None)
    )

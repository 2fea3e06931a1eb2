"""What measured rows are called and look like, where they come from by their record, and libraries beside auto."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from collectives.algorithms import Mark
from collectives.figures.style import Picture, mark
from collectives.units import format_bytes, many, parse_bytes
from collectives_book.figures import by_hand as kit
from collectives_book.figures import statements
from collectives_book.figures.statements import Rows

# Our own back ends, and what they add to an algorithm's name.
OURS = {"p2p": "", "p2p_nccl": " over NCCL"}

# Columns of whole numbers, which pandas reads as floats where another part of a table has none.
COUNTS = (
    *("ranks", "batch", "steps", "parameters", "bytes", "killed_at", "resumed_after", "seed", "blocks", "width"),
    *("calls", "stages", "stage", "micro_batches", "micro_batch", "kept"),
)

# What a table calls a library.
LIBRARIES = {"gloo": "gloo", "mpi": "Open MPI", "horovod": "Horovod"}


def label(backend: str, algorithm: str) -> str:
    """The name of a series: our algorithms by their own name, a library by the library's.

    >>> label("p2p", "two_tree"), label("gloo", "default"), label("mpi", "ring")
    ('two_tree', 'gloo (its own choice)', 'mpi (ring)')
    """
    if backend in OURS:
        return f"{algorithm}{OURS[backend]}"
    return f"{backend} (its own choice)" if algorithm == "default" else f"{backend} ({algorithm})"


def look(backend: str, algorithm: str) -> Mark:
    """The look of a series: its algorithm's; its back end's where a library or ``auto`` chose the algorithm."""
    return mark(backend if algorithm in ("default", "auto") else algorithm)


def asked(rows: Rows) -> list[str]:
    """Each row's algorithm as it was asked for: "auto" is a series of its own, whatever it chose."""
    chosen = rows.auto if "auto" in rows else [False] * len(rows)
    return ["auto" if auto else name for name, auto in zip(rows.algorithm, chosen, strict=True)]


def names(rows: Rows) -> list[str]:
    """The name of each row's series."""
    return [label(*pair) for pair in zip(rows.backend, asked(rows), strict=True)]


def prominent(rows: Rows, names: Sequence[str]) -> list[str]:
    """Of the names in the column ``series`` those that a figure can tell apart: libraries, and the rows in front.

    All, if they are few enough; otherwise a library's own choice, what is ahead at the largest size or has the highest
    bandwidth, because a figure's message names it, and then whatever has the lowest median at the most places.
    """
    rows = rows.reset_index(drop=True)
    lowest = rows.groupby("bytes").median_us.idxmin()
    ahead, libraries = Counter(rows.series[lowest]), set(rows.series[rows.algorithm == "default"])
    in_message = {rows.series[lowest.iloc[-1]], rows.series[rows.busbw.idxmax()]}
    ordered = sorted(names, key=lambda name: (name not in libraries, name not in in_message, -ahead[name]))
    return ordered[: kit.MOST_SERIES]


def part(rows: Rows, name: str) -> Rows:
    """The rows of one part, with the columns that it has; counts are whole numbers again."""
    found = rows[rows.part == name].dropna(axis="columns", how="all").reset_index(drop=True)
    return found.astype({column: int for column in COUNTS if column in found and found[column].notna().all()})


def plain(rows: Rows) -> str:
    """The rows' collective as a sentence has it: ``all-reduce``."""
    return str(rows.collective.iloc[0]).replace("_", "-")


# Where ranks were, as a sentence goes on; whatever starts them on a cluster, these are its own words.
WHERE = {
    "loopback": "processes on one machine",
    "horovodrun": "started by horovodrun",
    "mpirun": "started by mpirun",
    "torchrun": "started by torchrun",
    "slurm": "started by srun on the nodes of a Slurm job",
    "cluster": "emulated hosts on one machine, joined by slow links",
}


def machine(record: dict[str, Any]) -> str:
    """One sentence about where the rows come from, out of their record."""
    settings, first = record["settings"][0], record["environment"][0]
    ranks = statements.listed([str(ranks) for ranks in dict.fromkeys(each["ranks"] for each in record["settings"])])
    confidence = statements.intervals(each["repetitions"] for each in record["settings"])
    return (
        f"Measured on {ranks} ranks ({WHERE[settings['where'].partition(':')[0]]}; {first['processor']}, "
        f"{first['usable_cores']} cores, {first['memory_gib']:g} GiB, {first['system']}), with torch {first['torch']}, "
        f"{settings['dtype']}: medians of {settings['repetitions']} calls after "
        f"{many(settings['warmups'], 'warm-up')}, {_interleaved(record['environment'])}, each sample "
        f"the slowest rank's time, with {confidence}."
    )


def sourced(drawn: Picture, record: dict[str, Any], stem: str | Path) -> Picture:
    """The figure with a caption: where, when, on what, how surely and by which command its rows were measured."""
    return replace(drawn, caption=provenance(record, stem))


def provenance(record: dict[str, Any], stem: str | Path) -> str:
    """One line about where the rows at ``stem`` come from, out of their record."""
    settings = record["settings"][0]
    ranks = statements.span([each["ranks"] for each in record["settings"]], "{:.0f}".format)
    place = WHERE[settings.get("where", "loopback").partition(":")[0]]
    said = [
        f"Measured on {ranks} ranks, {place}",
        record.get("date", ""),
        computer(record),
        versions(record),
        sureness(record),
        command(record, stem),
    ]
    return f"{' · '.join(part for part in said if part)}."


def source(record: dict[str, Any], stem: str | Path) -> str:
    """Sentences of a page about rows without a figure: the machine, how surely, and their command as code."""
    return f"Measured on {computer(record)}: {sureness(record)}. `{command(record, stem)}` measures it again."


def computer(record: dict[str, Any]) -> str:
    """The machine: processor, cores, memory and system."""
    first = record["environment"][0]
    return f"{first['processor']}, {first['usable_cores']} cores, {first['memory_gib']:g} GiB, {first['system']}"


def versions(record: dict[str, Any]) -> str:
    """Python, torch and the commit of the code that measured."""
    first = record["environment"][0]
    known = {"Python": first["python"], "torch": first.get("torch"), "commit": first["commit"]}
    return ", ".join(f"{name} {version}" for name, version in known.items() if version)


def sureness(record: dict[str, Any]) -> str:
    """How often each point was measured, and the true confidence of its interval; empty if the record says neither."""
    counts = [each["repetitions"] for each in record.get("settings", []) if each.get("repetitions")]
    if not counts:
        return ""
    noun = "repetition" if max(counts) == 1 else "repetitions"
    return f"{statements.span(counts, '{:.0f}'.format)} {noun}, {statements.intervals(counts)}"


def command(record: dict[str, Any], stem: str | Path) -> str:
    """What measures the rows again: a notebook with its preset, or `collectives bench` for rows without a notebook."""
    name, folder = Path(stem).name, Path(stem).parent.name
    if not (home := _notebooks(stem, name)):
        return _bench(record["settings"], record.get("variables", {}))
    if (home / "presets" / f"{folder}.yaml").exists():
        return f"collectives run experiments/{name}.ipynb --preset {folder}"
    return f"collectives run experiments/{name}.ipynb  # with the settings of its record"


def _notebooks(stem: str | Path, name: str) -> Path | None:
    """The folder of the notebook that wrote rows to ``stem``; None if there is none."""
    above = [folder for folder in Path(stem).resolve().parents if folder.name == "experiments"]
    return next((folder for folder in above if (folder / f"{name}.ipynb").exists()), None)


def _bench(wanted: list[dict[str, Any]], variables: dict[str, str]) -> str:
    """A command for all settings that differ in their number of ranks only, and another for each other dtype."""
    dtypes = dict.fromkeys(each["dtype"] for each in wanted)
    return " && ".join(_bench_once([each for each in wanted if each["dtype"] == dtype], variables) for dtype in dtypes)


def _bench_once(wanted: list[dict[str, Any]], variables: dict[str, str]) -> str:
    several = {"algorithm": "algorithms", "backend": "backends", "bytes": "bytes"}
    ranks = " ".join(str(each["ranks"]) for each in wanted)
    settings = wanted[0] | {"ranks": ranks, "bytes": [_typed(nbytes) for nbytes in wanted[0]["bytes"]]}
    lists = [f"--{option} {' '.join(settings[name])}" for option, name in several.items()]
    single = ("collective", "ranks", "where", "repetitions", "warmups")
    begin = [f"{name}={value}" for name, value in variables.items()]
    dtype = [] if settings["dtype"] == "float32" else [f"--dtype {settings['dtype']}"]
    return " ".join([*begin, "collectives bench", *(f"--{each} {settings[each]}" for each in single), *dtype, *lists])


def _typed(nbytes: int) -> str:
    """A size as one types it.

    >>> _typed(65536), _typed(4), _typed(1000)
    ('64K', '4', '1000')
    """
    short = format_bytes(nbytes).replace(" ", "").removesuffix("B").removesuffix("i")
    return short if parse_bytes(short) == nbytes else str(nbytes)


def _interleaved(ranks: list[dict[str, Any]]) -> str:
    """Which series were measured in turn: those of one launch."""
    launches = dict.fromkeys((rank.get("where", ""), ", ".join(rank.get("backends", []))) for rank in ranks)
    if len(launches) == 1:
        return "all series interleaved"
    each = "; ".join(f"{backends} by {where}" for where, backends in launches)
    return f"series of one launch interleaved, but not the launches ({each})"


def outcome(rows: Rows) -> str:
    """Sentences about what came out: how many elements were wrong, and which sizes failed, each with its reason."""
    failed = rows[rows.error.notna()].drop_duplicates("bytes")
    reasons = [f"{format_bytes(row.bytes)} failed ({row.error.splitlines()[0]})." for row in failed.itertuples()]
    wrong = int(rows.wrong.sum()) if "wrong" in rows else 0
    return " ".join([f"Wrong elements: {wrong}.", *reasons])


def over_auto(rows: Rows) -> Rows:
    """For each number of ranks, size and library: its time over auto's, ``low`` and ``high`` as intervals allow.

    ``chosen`` is what auto took. Of a library only its own choice counts; sizes that failed are left out.
    """
    found = []
    for (ranks, nbytes), group in rows[rows.error.isna()].groupby(["ranks", "bytes"]):
        (auto,) = group[group.backend.isin(OURS) & group.auto].itertuples()
        for library in group[~group.backend.isin(OURS) & (group.algorithm == "default")].itertuples():
            low, middle, high = statements.ratio(library, auto)
            point = {"ranks": ranks, "bytes": nbytes, "library": LIBRARIES[library.backend], "chosen": auto.algorithm}
            found.append(point | {"low": low, "ratio": middle, "high": high})
    return pd.DataFrame(found)


def quickest_library(beside: Rows) -> Rows:
    """Of `over_auto` the quickest one at each point."""
    return beside.loc[beside.groupby(["ranks", "bytes"]).ratio.idxmin()]


def ratio_table(beside: Mapping[str, Rows]) -> Rows:
    """The ratios of several `over_auto` by their name, number of ranks and library; a column for each size."""
    rows = pd.concat([each.assign(over=name, ranks=each.ranks.map("{} ranks".format)) for name, each in beside.items()])
    wide = rows.pivot_table(index=["over", "ranks", "library"], columns="bytes", values="ratio", sort=False)
    return wide.map("{:.2f}".format).rename(columns=format_bytes).rename_axis(index=[None] * 3, columns=None)

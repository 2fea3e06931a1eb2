"""What a measured row is called and looks like, and sentences about where rows come from, out of their record."""

from typing import Any

from collectives.algorithms import Mark
from collectives.figures import statements
from collectives.figures.statements import Rows
from collectives.figures.style import mark
from collectives.units import format_bytes

# Our own back ends, and what they add to an algorithm's name.
OURS = {"p2p": "", "p2p_nccl": " over NCCL", "in_process": " in one process"}


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


def plain(rows: Rows) -> str:
    """The rows' collective as a sentence has it: ``all-reduce``."""
    return str(rows.collective.iloc[0]).replace("_", "-")


# Where ranks were, as a sentence goes on; whatever starts them on a cluster, these are its own words.
WHERE = {
    "loopback": "processes on one machine, joined over loopback",
    "horovodrun": "started by horovodrun",
    "mpirun": "started by mpirun",
    "torchrun": "started by torchrun",
    "slurm": "started by srun on the nodes of a Slurm job",
    "cluster": "emulated hosts on one machine, joined by slow links",
}


def machine(record: dict[str, Any]) -> str:
    """One sentence about where the rows come from, out of their record."""
    settings, first = record["settings"][0], record["environment"][0]
    ranks = ", ".join(str(ranks) for ranks in dict.fromkeys(each["ranks"] for each in record["settings"]))
    confidence = statements.intervals(each["repetitions"] for each in record["settings"])
    return (
        f"Measured on {ranks} ranks ({WHERE[settings['where'].partition(':')[0]]}; {first['processor']}, "
        f"{first['usable_cores']} cores, {first['memory_gib']:g} GiB, {first['system']}), with torch {first['torch']}, "
        f"{settings['dtype']}: medians of {settings['repetitions']} calls after {settings['warmups']} warm-ups, "
        f"{_interleaved(record['environment'])}, each sample the slowest rank's time, with {confidence}."
    )


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

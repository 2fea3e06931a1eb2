"""What the simulator predicts for the measured collectives, written down before the held-out ones were read.

``python -m collectives_book.measured_machines.predictions MACHINE`` prints the table of one
machine. The machine's file and the committed ``MACHINE-predicted.csv`` are older in the history
than the rows that they are compared with; only sizes were added to Leonardo's table later.
"""

from __future__ import annotations

import csv
import sys
from itertools import product
from typing import Any, NamedTuple

from collectives.machine import Machine, machine, presets
from collectives.simulator.scaling import Case, row, rows
from collectives_book.measured_machines.samples import TABLE


class Series(NamedTuple):
    """A collective and an algorithm, as the tool names it by library and label, and as we do."""

    collective: str
    library: str
    algorithm: str
    simulated: str


class Held(NamedTuple):
    """The predictions for a machine: ranks that its file was fitted on, ranks held out, sizes, series."""

    fitted: tuple[int, ...]
    held_out: tuple[int, ...]
    bytes: tuple[int, ...]
    series: tuple[Series, ...]


PREDICTED = {
    "marenostrum5": Held(
        fitted=(16, 64),
        held_out=(32, 128, 256),
        bytes=(
            256,
            2 << 10,
            16 << 10,
            128 << 10,
            1 << 20,
            8 << 20,
            64 << 20,
            128 << 20,
            512 << 20,
        ),
        # NCCL's tree is a pair of trees between the nodes and a chain inside each.
        series=(
            Series("all_reduce", "nccl", "ring", "ring"),
            Series("all_reduce", "nccl", "tree", "hierarchical_tree"),
        ),
    ),
    "leonardo": Held(
        fitted=(128,),
        held_out=(200, 512, 1024, 2048),
        # The larger runs used other sizes than the one of 128 nodes; the machine file was not
        # changed for them.
        bytes=(
            32,
            256,
            *(2 << 10 << 3 * i for i in range(7)),
            *(8 << 10 << 3 * i for i in range(6)),
        ),
        series=(
            Series("all_reduce", "ompi", "ring", "ring"),
            Series("all_reduce", "ompi", "recursive_doubling", "recursive_doubling"),
        ),
    ),
    "lumi": Held(
        fitted=(100,),
        held_out=(1000,),
        bytes=(2 << 10, 16 << 10, 128 << 10, 1 << 20, 8 << 20, 64 << 20, 512 << 20),
        series=(
            Series("all_gather", "over", "ring", "ring"),
            Series("all_gather", "mpich", "brucks", "bruck"),
            Series("reduce_scatter", "over", "ring", "ring"),
        ),
    ),
}
# What NCCL runs on a node without a switch that adds: rings, and an all-to-all that sends all
# pieces at once.
ON_A_NODE = {
    "all_reduce": "ring",
    "all_gather": "ring",
    "reduce_scatter": "ring",
    "all_to_all": "direct",
}
COLUMNS = (
    "machine",
    "collective",
    "library",
    "algorithm",
    "ranks",
    "bytes",
    "simulated",
    "segments",
    "us",
)


def fitted(name: str) -> Machine:
    """The machine of that name: the preset, or the file beside the tables of one that is only predicted with.

    >>> fitted("marenostrum5").ranks_per_node, fitted("lumi").gamma
    (4, 1.8e-10)
    """
    return machine(name if name in presets() else str(TABLE / f"{name}.yaml"))


def predict(name: str) -> list[dict[str, object]]:
    """Rows of a machine by series, ranks and bytes, fitted and held-out ones: simulated microseconds."""
    held = PREDICTED[name]
    on = fitted(name)
    cells = list(product(held.series, sorted(held.fitted + held.held_out), held.bytes))
    cases = [
        Case(series.collective, series.simulated, ranks, nbytes, on)
        for series, ranks, nbytes in cells
    ]
    return [
        {
            "machine": name,
            **series._asdict(),
            "ranks": ranks,
            "bytes": nbytes,
            "segments": row["segments"],
        }
        | {"us": round(row["seconds"] * 1e6, 3)}
        for (series, ranks, nbytes), row in zip(cells, rows(cases), strict=True)
    ]


def node(on: Machine) -> list[dict[str, Any]]:
    """Return the measured rows of a node of H100, with microseconds predicted on a machine and the error as a share.

    The preset is older in the history than the rows that are held out. Before the fit we had read
    16 of those without using them: 2 and 6 GPUs of its own source, and NVIDIA's. The 96 of XLA's
    table we had not. ``nvls`` marks an all-reduce above the 370.8 GB/s that NCCL has for a ring: a
    switch must have added.
    """
    with (TABLE / "dgx-h100-nccl-tests.csv").open(encoding="utf8") as file:
        given = list(csv.DictReader(file))
    for cell in given:
        case = Case(
            cell["collective"],
            ON_A_NODE[cell["collective"]],
            int(cell["gpus"]),
            int(cell["bytes"]),
            on,
        )
        predicted = row(case)["seconds"] * 1e6
        cell |= {"predicted": predicted, "error": predicted / float(cell["us"]) - 1}
    return given


if __name__ == "__main__":
    if sys.argv[1:] not in [[name] for name in PREDICTED]:
        raise SystemExit(f"usage: python -m {__spec__.name} {'|'.join(PREDICTED)}")
    table = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    table.writeheader()
    table.writerows(predict(sys.argv[1]))

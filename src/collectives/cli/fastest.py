"""``export --to nccl-tuner``: times of ring and tree, simulated on a machine or read from measured rows."""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from collectives.cli.options import UsageError, wrong_input
from collectives.formats.nccl_tuner import ANY, COLLECTIVES, Time, known, text

# What NCCL has, the faster one for few bytes first. Sizes are four times as large each.
ALGORITHMS = ("hierarchical_tree", "ring")
SIZES = [4**i for i in range(4, 16)]
NODES = [2, 4, 8, 16]


def tuner(arguments: argparse.Namespace) -> str:
    """The file for NCCL's example tuner."""
    with wrong_input():
        if arguments.rows is not None:
            return text(_measured(Path(arguments.rows), arguments.collective), f"measured: {Path(arguments.rows).name}")
        times = _simulated(arguments)
        return text(times, f"simulated by `collectives` on {arguments.machine or 'textbook'}")


def _simulated(arguments: argparse.Namespace) -> list[Time]:
    from collectives.machine import machine
    from collectives.simulator.scaling import regimes

    if arguments.collective != "all_reduce":
        raise UsageError(f"--to nccl-tuner: got {arguments.collective}, expected all_reduce, or --rows of another")
    on = machine(arguments.machine or "textbook")
    rows = regimes([on], arguments.nodes or NODES, arguments.bytes or SIZES, ALGORITHMS)
    return [_time(row, on) for row in rows]


def _time(row: dict[str, Any], on: Any) -> Time:
    names = known(row["algorithm"], _protocol(row, on))
    if names is None:
        raise RuntimeError(f"NCCL has no {row['algorithm']}")
    return Time(
        row["collective"], *names, row["ranks"] // on.ranks_per_node, row["ranks"], row["bytes"], row["seconds"]
    )


def _protocol(row: dict[str, Any], on: Any) -> str:
    """The protocol of the machine that the largest message has, which is one chunk for ring and tree."""
    from collectives.simulator.scaling import Case, schedule

    made = schedule(Case(row["collective"], row["algorithm"], row["ranks"], row["bytes"], on, row["segments"]))
    largest = int(np.diff(made.cut(row["bytes"])).max())
    fits = (each for each in on.protocols_for(row["algorithm"]) if each.up_to is None or largest <= each.up_to)
    return str(next(fits).name)


def _measured(path: Path, collective: str) -> list[Time]:
    """The rows of one back end by algorithms that NCCL has: NCCL's own, if they are there."""
    import pandas as pd

    if collective not in COLLECTIVES:
        raise UsageError(f"--to nccl-tuner: got {collective}, expected one of {', '.join(COLLECTIVES)}")
    try:
        rows = pd.read_parquet(path).to_dict("records")
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {path}: {' '.join(str(error).split())[:200]}") from None
    found = [
        (
            str(row.get("backend")),
            Time(collective, *names, ANY, int(row["ranks"]), int(row["bytes"]), row["median_us"] / 1e6),
        )
        for row in rows
        if row.get("collective") == collective and row.get("median_us", 0) > 0
        for names in [known(str(row.get("algorithm")))]
        if names is not None
    ]
    backends = sorted({backend for backend, _ in found})
    if len(backends) > 1 and "nccl" not in backends:
        raise UsageError(f"back ends of {path}: got {', '.join(backends)}, expected nccl or one alone")
    return [time for backend, time in found if backend == ("nccl" if "nccl" in backends else backends[0])]

"""The verb ``bound``: the least time of a collective on a machine's links, or on its ports."""

import argparse
from pathlib import Path
from typing import Any

from collectives import units
from collectives.cli.options import add_json, whole, wrong_input
from collectives.cli.schedules import RANKS
from collectives.cli.signals import out_row


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be typed."""
    parser.add_argument("collective", help="all_gather, reduce_scatter, all_reduce, broadcast, reduce or all_to_all")
    machines = "a preset, mesh:5x5, torus:4x4x4, or your own NAME.yaml; without links its ports count"
    parser.add_argument("--machine", required=True, help=machines)
    parser.add_argument(
        "-p",
        "--ranks",
        type=whole(units.MOST_RANKS),
        help=f"ranks (default: those of one node, or {RANKS} nodes of one)",
    )
    parser.add_argument("--root", type=int, default=0, help="of a broadcast or reduce (default 0)")
    parser.add_argument("--svg", metavar="NAME", help="draw the links and the cut: NAME-light.svg, NAME-dark.svg")
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """One row."""
    from collectives.machine import machine
    from collectives.topology.bound import bound
    from collectives.topology.graph import graph, graph_of_ports

    with wrong_input():
        on = machine(arguments.machine)
        p = arguments.ranks or (on.ranks_per_node if on.ranks_per_node > 1 else RANKS)
        found = bound(arguments.collective, graph(on, p) if on.links else graph_of_ports(on, p), arguments.root)
        if arguments.svg:
            from collectives.cli.show import save
            from collectives.figures.links import cut

            save(cut(on, found), Path(arguments.svg))
    row = {
        "collective": found.collective,
        "machine": found.graph.name,
        "ranks": found.graph.p,
        "per_shard": str(found.per_shard),
        "unit_gbs": float(found.graph.unit / 10**9),
        "algbw": round(float(found.algbw / 10**9), 6),
        "algbw_exact": str(found.algbw / 10**9),
        "cut": list(found.cut),
        "cut_links": found.links,
        "cut_shards": found.shards,
    }
    out_row(row, _line(row), arguments.json)


def _line(row: dict[str, Any]) -> str:
    """A row as the terminal shows it."""
    exact = "" if "/" not in row["algbw_exact"] else f" ({row['algbw_exact']})"
    p = row["ranks"]
    first = (
        f"{row['collective']} on {p} ranks of {row['machine']}: algbw at most {row['algbw']:.2f} GB/s{exact}; "
        f"{row['per_shard']} times what 1/{p} of the buffer takes at {row['unit_gbs']:g} GB/s"
    )
    if not row["cut"]:
        return first
    ranks, switches = [v for v in row["cut"] if v < p], [v for v in row["cut"] if v >= p]
    inside = f"ranks {units.runs(ranks)}" + (f" and switches {units.runs(switches)}" if switches else "")
    verb = "enter" if row["collective"].startswith("reduce") else "leave"
    rate = row["cut_links"] * row["unit_gbs"]
    return f"{first}\nthe cut: {row['cut_shards']} shards {verb} {inside} through links of {rate:g} GB/s in all"

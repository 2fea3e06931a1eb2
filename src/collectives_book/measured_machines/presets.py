"""The presets of machines that one rents, fitted from data sheets and published rows.

``python -m collectives_book.measured_machines.presets NAME`` fits one and prints its fields; the
files in ``collectives/machines`` have them with a source for each. A data sheet gives the rates,
NCCL's own table (tuning.cc of 2.30.7) the delays of each protocol. Rows that are held out
(`public`) take no part.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from collectives.bench.fitting import SWITCHES, TREES, Fitted, Measured, changed, fit
from collectives.machine import Machine, machine, text
from collectives_book.figures.statements import Rows
from collectives_book.measured_machines.public import public_rows

LL, LL128, SIMPLE = "LL", "LL128", "Simple"


class Sheet(NamedTuple):
    """The facts of a data sheet: rates of a GPU in bytes a second, and what NCCL knows of its generation.

    ``ll`` is the share of the rate that LL attains at most in a node, ``switch`` that of switches
    which add, None for a node without them.
    """

    inside: float
    network: float
    ll: float
    switch: float | None = None
    ranks_per_node: int = 8
    ports_per_node: int | None = None


class Recipe(NamedTuple):
    """The fit of one preset: its sheet, the preset whose fit it begins from, if any, the rows, and the constants."""

    sheet: Sheet
    rows: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()
    start: str = ""


INSIDE = ("call", "inside.rate", "inside.latency")
# A call costs what it costs on one node, so that the rows of two tell the network's delays. The rate
# of a port stays the sheet's, because two nodes send so little through it that NVLink decides.
OUTSIDE = ("network.added", "network.each")

# NVLink's rates are those of NCCL's topo.h, 20 GB/s a link of an A100, 20.6 of an H100 and 40.1 of
# a B200, and a port of 400 Gbit/s has 48 GB/s there. LL's rates and the share of a switch are in
# tuning.cc. AMD counts three quarters of an xGMI link's rate as usable.
A100 = Sheet(12 * 20e9, 24e9, 87.7 / 240)
H100 = Sheet(18 * 20.6e9, 48e9, 141 / 370.8, 0.85)
B200 = Sheet(18 * 40.1e9, 48e9, 282 / 721.8, 0.74)
MI350X = Sheet(7 * 0.75 * 76.8e9, 48e9, 0.5)

RECIPES = {
    "dgx-a100": Recipe(A100, ("dgx-a100",), INSIDE),
    "h100": Recipe(H100, ("h200",), ("inside.rate", "switch.share")),
    "h200": Recipe(H100, start="h100"),
    "b200": Recipe(B200, ("b200",), ("inside.rate", "switch.share")),
    "b300": Recipe(B200._replace(network=96e9), start="b200"),
    "gb200-nvl72": Recipe(
        B200._replace(ranks_per_node=72), ("gb200-nvl72",), (*INSIDE, "switch.share")
    ),
    "mi350x": Recipe(MI350X, ("mi350x",), INSIDE),
    "mi300x": Recipe(
        MI350X._replace(inside=7 * 0.75 * 64e9), ("mi300x",), ("inside.rate",), "mi350x"
    ),
    "p5": Recipe(H100, ("p5",), OUTSIDE, "h100"),
    "p4d": Recipe(A100._replace(network=12e9, ports_per_node=4), ("p4d",), OUTSIDE, "dgx-a100"),
}

# The cost of a call that no row of a preset tells, as A100s on one node have it.
CALL = 5e-6


def sheet_machine(name: str, sheet: Sheet) -> Machine:
    """Return the machine of a data sheet, with NCCL's delays: rings, trees, and switches where there are any."""

    def protocol(kind: str, startup: float, hop: float, far: float, **more: Any) -> dict[str, Any]:
        """Return a protocol; posting a message to the network takes 1 us, by Simple 3, of its ``far`` us."""
        posting = 3 if kind in (SIMPLE, "NVLS") else 1
        network = {"latency": (far - posting) * 1e-6, "overhead": posting * 1e-6}
        inside = {"latency": hop * 1e-6}
        return {
            "name": kind,
            "startup": startup * 1e-6,
            "inside": inside,
            "network": network,
        } | more

    trees = {"algorithms": (TREES,)}
    protocols = [
        protocol(LL, 6.6, 0.6, 2.7, share=sheet.ll, network_share=0.5),
        protocol(LL128, 14, 1.9, 4, share=0.92),
        protocol(SIMPLE, 8.4, 3.4, 14),
        protocol(LL, 6.8, 0.6, 5, share=0.92 / 3.8, **trees),
        protocol(LL128, 14, 1.25, 8.5, share=0.92 * 120 / 128, **trees),
        # NCCL has 0.92, which counts more than the rate; MareNostrum's trees attain 0.96.
        protocol(SIMPLE, 8.4, 4, 14, share=0.96, **trees),
    ]
    if sheet.switch:
        # NCCL counts 25 us for NVLS, which passes its switch four times, and 20.9 us a level. The
        # switch's share is none of the network's ports.
        adds = {"algorithms": (SWITCHES,), "share": sheet.switch, "network_share": 1.0}
        protocols.append(protocol("NVLS", 0, 25 / 4, 20.9, **adds))
    fields = {
        "name": name,
        "ranks_per_node": sheet.ranks_per_node,
        "ports_per_node": sheet.ports_per_node,
        "inside": {"latency": 3.4e-6, "rate": sheet.inside},
        "network": {"latency": 11e-6, "overhead": 3e-6, "rate": sheet.network},
        "call": CALL,
        "fastest_protocol": True,
        "protocols": protocols,
    }
    return Machine.model_validate(fields)


def measured(rows: Rows) -> list[Measured]:
    """Return published rows as the fit takes them."""
    return [
        Measured(row.nodes, row.gpus_per_node, row.bytes, row.us / 1e6, row.algorithm)
        for row in rows.itertuples()
    ]


def rows_to_fit(machines: Sequence[str]) -> Rows:
    """Return the rows of these machines that a fit may see.

    Left out are rows of nodes with fewer network ports than the machine's, and of two GPUs whose
    mesh has one link between them.
    """
    rows = public_rows()
    return rows[rows.machine.isin(machines) & (rows.use != "held out") & (rows.differs == "")]


def fitted(name: str) -> Fitted:
    """Fit a preset by its recipe. Cost: a minute of processor time.

    One that begins from another has that one's file, scaled from its sheet to the preset's own.
    """
    recipe = RECIPES[name]
    start = sheet_machine(name, recipe.sheet)
    if recipe.start:
        other = RECIPES[recipe.start].sheet
        start = machine(recipe.start).model_copy(
            update={"name": name, "ports_per_node": recipe.sheet.ports_per_node}
        )
        ratios = {
            "inside.rate": recipe.sheet.inside / other.inside,
            "network.rate": recipe.sheet.network / other.network,
        }
        start = changed(start, ratios)
    if not recipe.constants:
        return Fitted(start, {})
    return fit(start, measured(rows_to_fit(recipe.rows)), recipe.constants)


if __name__ == "__main__":
    if sys.argv[1:] not in [[name] for name in RECIPES]:
        raise SystemExit(f"usage: python -m {__spec__.name} {'|'.join(RECIPES)}")
    found = fitted(sys.argv[1])
    print(text(found.machine), end="")
    print(f"{sys.argv[1]}: changes of the start: {found.changes}", file=sys.stderr)

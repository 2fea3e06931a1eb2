"""The experiment ``massive-scale``: all-reduces simulated on many numbers of ranks, and which algorithm is fastest."""

import sys
from typing import Annotated, Self

from pydantic import Field, model_validator

from collectives.algorithms import ALGORITHMS, candidates, names
from collectives.bench.environment import record
from collectives.bench.results import write
from collectives.errors import unknown
from collectives.machine import Machine, machine
from collectives.simulator.scaling import Case, Row, line, regimes, rows
from collectives_book import parameters as base
from collectives_book.nccl_formulas import segments
from collectives_book.parameters import Distinct, Name, Ranks, Size, Some

# Ranks between which something is sent.
Several = Annotated[Ranks, Field(ge=2)]


class Parameters(base.Parameters):
    """The parameters of ``massive-scale``: two sizes on many numbers of ranks, and a map of the fastest algorithm."""

    machine: str
    ranks: Some[Several]
    algorithms: Some[Name]
    small: Size
    large: Size
    map_machines: Distinct[Name]
    map_nodes: Distinct[Several]
    map_sizes: Distinct[Size]

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        self.settings()
        return self

    def settings(self) -> list[Case]:
        """What the figures simulate; raises ValueError where the parameters do not fit together."""
        for name in self.algorithms:
            if ("all_reduce", name) not in ALGORITHMS:
                raise ValueError(unknown("algorithm", name, names("all_reduce")))
        self.map_settings()
        on = machine(self.machine)
        return [
            Case("all_reduce", name, ranks, size, on, _cut(name, ranks, size, on))
            for ranks in self.ranks
            for name in self.algorithms
            for size in (self.small, self.large)
        ]

    def map_settings(self) -> tuple[list[Machine], list[int], list[int], list[str]]:
        """Return what the map compares: machines, nodes, sizes, and every all-reduce that ranks can run."""
        machines = [machine(name) for name in self.map_machines]
        return machines, self.map_nodes, self.map_sizes, candidates("all_reduce")


def _cut(algorithm: str, ranks: int, size: int, on: Machine) -> int | None:
    """Segments by NCCL's rule for the hierarchical tree, else None: the fastest. ValueError for nodes not full."""
    if ranks % on.ranks_per_node:
        raise ValueError(
            f"ranks: got {ranks}, expected a multiple of {on.ranks_per_node}, the ranks of a node of {on.name}"
        )
    nodes = ranks // on.ranks_per_node
    return segments(size, on.ranks_per_node, nodes) if algorithm == "hierarchical_tree" else None


def run(parameters: Parameters) -> list[Row]:
    """Simulate what the figures and the map show, and write rows and record."""
    cases, mapped = parameters.settings(), parameters.map_settings()
    print(f"{len(cases)} simulations for the figures", file=sys.stderr, flush=True)
    found = [row | {"part": "figures"} for row in rows(cases, _say)]
    print("and for the map", file=sys.stderr, flush=True)
    found += [row | {"part": "map"} for row in regimes(*mapped, on_row=_say)]
    machines = {name: machine(name).model_dump() for name in (parameters.machine, *parameters.map_machines)}
    write(
        parameters.output,
        found,
        {"parameters": parameters.model_dump(), "machines": machines, "environment": [record()]},
    )
    return found


def _say(row: Row) -> None:
    """A large simulation takes seconds; say so when it is done."""
    if row["messages"] > 100_000_000:
        print(line(row), file=sys.stderr, flush=True)

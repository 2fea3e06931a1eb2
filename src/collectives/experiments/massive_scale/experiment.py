"""Experiments that simulate: the parameters of their notebooks, and the rows that they write."""

from __future__ import annotations

import sys
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from collectives.algorithms import ALGORITHMS, names
from collectives.bench.environment import record
from collectives.bench.parameters import Names, Parameters, Ranks, Size, Sizes, SomeNames, distinct
from collectives.bench.results import write
from collectives.errors import unknown
from collectives.experiments.massive_scale.nccl import segments
from collectives.machine import Machine, machine
from collectives.simulator.regimes import regimes
from collectives.simulator.scaling import Case, Row, line, rows
from collectives.simulator.speed import benchmark, lines
from collectives.units import parse_bytes


class Scale(Parameters):
    """The parameters of ``massive-scale``: two sizes on many numbers of ranks, and a map of which algorithm wins."""

    machine: str
    ranks: Annotated[list[Annotated[Ranks, Field(ge=2)]], Field(min_length=1), AfterValidator(distinct)]
    algorithms: SomeNames
    small: Size
    large: Size
    map_machines: Names
    map_nodes: Annotated[list[Annotated[Ranks, Field(ge=2)]], AfterValidator(distinct)]
    map_sizes: Sizes
    map_algorithms: Names
    output: str

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        self.settings()
        return self

    def settings(self) -> list[Case]:
        """What the figures simulate; raises ValueError where the parameters do not fit together."""
        for name in (*self.algorithms, *self.map_algorithms):
            if ("all_reduce", name) not in ALGORITHMS:
                raise ValueError(unknown("algorithm", name, names("all_reduce")))
        self.map_settings()
        on, sizes = machine(self.machine), (parse_bytes(self.small), parse_bytes(self.large))
        return [
            Case("all_reduce", name, ranks, size, on, _cut(name, ranks, size, on))
            for ranks in self.ranks
            for name in self.algorithms
            for size in sizes
        ]

    def map_settings(self) -> tuple[list[Machine], list[int], list[int], list[str]]:
        """What the map takes: machines, nodes, sizes and algorithms."""
        sizes = [parse_bytes(size) for size in self.map_sizes]
        return [machine(name) for name in self.map_machines], self.map_nodes, sizes, self.map_algorithms


class Speed(Parameters):
    """The parameters of ``bench-simulator``: it has none but where its rows go."""

    output: str


def _cut(algorithm: str, ranks: int, size: int, on: Machine) -> int | None:
    """Trees in chains as NCCL cuts them, others so that they are fastest; ValueError for nodes that are not full."""
    if ranks % on.ranks_per_node:
        raise ValueError(f"{ranks} ranks do not fill the nodes of {on.name}, which have {on.ranks_per_node} each")
    nodes = ranks // on.ranks_per_node
    return segments(size, on.ranks_per_node, nodes) if algorithm == "hierarchical_tree" else None


def simulate(scale: Scale) -> list[Row]:
    """Simulate what the figures and the map show, and write rows and record under ``scale.output``."""
    cases, mapped = scale.settings(), scale.map_settings()
    print(f"{len(cases)} simulations for the figures", file=sys.stderr, flush=True)
    found = [row | {"part": "figures"} for row in rows(cases, _say)]
    print("and for the map", file=sys.stderr, flush=True)
    found += [row | {"part": "map"} for row in regimes(*mapped, on_row=_say)]
    machines = {name: machine(name).model_dump() for name in (scale.machine, *scale.map_machines)}
    write(scale.output, found, {"parameters": scale.model_dump(), "machines": machines, "environment": [record()]})
    return found


def time_simulator(speed: Speed) -> list[Row]:
    """Measure how fast the simulator is on this machine, and write rows and record under ``speed.output``."""
    found = benchmark(lambda row: print(lines(row), file=sys.stderr, flush=True))
    write(speed.output, found, {"environment": [record()]})
    return found


def _say(row: Row) -> None:
    """A large simulation takes seconds; say so when it is done."""
    if row["messages"] > 100_000_000:
        print(line(row), file=sys.stderr, flush=True)

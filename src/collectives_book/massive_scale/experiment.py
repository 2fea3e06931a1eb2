"""The experiment ``massive-scale``: all-reduces simulated on many numbers of ranks, and which algorithm is fastest."""

import sys
import time
from collections.abc import Sequence
from concurrent.futures import wait
from itertools import product
from operator import itemgetter
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from collectives.algorithms import ALGORITHMS, candidates, names
from collectives.bench.sweep import Keep
from collectives.errors import unknown
from collectives.machine import machine
from collectives.processes import workers
from collectives.simulator.scaling import Case, Row, column, line, row
from collectives_book.experiment import (
    Algorithm,
    Distinct,
    Experiment,
    Name,
    Ranks,
    Size,
    Some,
)
from collectives_book.nccl_formulas import segments

# Ranks between which something is sent.
Several = Annotated[Ranks, Field(ge=2)]

SILENT_SECONDS = 15.0  # after which a line says how far the simulation is


class MassiveScale(Experiment):
    """Two sizes on many numbers of ranks, and a map of the fastest algorithm."""

    machine: str
    ranks: Some[Several]
    algorithms: Some[Algorithm]
    small: Size
    large: Size
    map_machines: Distinct[Name]
    map_nodes: Distinct[Several]
    map_sizes: Distinct[Size]

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        for name in self.algorithms:
            if ("all_reduce", name) not in ALGORITHMS:
                raise ValueError(unknown("algorithm", name, names("all_reduce")))
        for case in self.wanted():
            if case[0] == "figures":
                self._case(*case[1:])
        return self

    def machines(self) -> Row:
        """Return the machines by the names that they were asked for."""
        return {name: machine(name).model_dump() for name in (self.machine, *self.map_machines)}

    def settings(self) -> list[Row]:
        """Return the parameters, and what the machines are."""
        return [self.model_dump() | {"machines": self.machines()}]

    def depends_on(self) -> Any:
        """Return what rows depend on, the machines, too: a file may change."""
        return [*super().depends_on(), self.machines()]

    def wanted(self) -> list[tuple[Any, ...]]:
        """Return each simulation of the figures, and each column of the maps, most ranks first."""
        figures = product(
            ["figures"],
            self.ranks,
            self.algorithms,
            dict.fromkeys((self.small, self.large)),
        )
        nodes = product(self.map_machines, self.map_nodes)
        columns = [("map", name, count * machine(name).ranks_per_node) for name, count in nodes]
        return [*figures, *sorted(columns, key=itemgetter(2), reverse=True)]

    def measure(self, left: Sequence[Any], keep: Keep) -> None:
        """Simulate on all cores, and say after every `SILENT_SECONDS` how far it is."""
        told = began = time.monotonic()
        with workers() as pool:
            jobs = [pool.submit(self.simulated, case) for case in left]
            for done, job in enumerate(jobs):
                while wait(
                    [job],
                    timeout=max(0.0, told + SILENT_SECONDS - time.monotonic()),
                ).not_done:
                    told = time.monotonic()
                    said = f"massive-scale: {done} of {len(jobs)} cases after {told - began:.0f} s"
                    print(said, file=sys.stderr, flush=True)
                keep({"rows": job.result()})

    def simulated(self, case: Sequence[Any]) -> list[Row]:
        """Return the rows of a case.

        A column has every all-reduce that ranks can run, where it may be the fastest.
        """
        part, *what = case
        if part == "figures":
            found = [row(self._case(*what))]
        else:
            found = column(
                sorted(self.map_sizes),
                candidates("all_reduce"),
                (machine(what[0]), what[1]),
            )
        return [each | {"part": part} for each in found]

    def _case(self, ranks: int, algorithm: str, size: int) -> Case:
        """Return the simulation.

        The hierarchical tree is cut by NCCL's rule, all others into the fastest segments.
        """
        on = machine(self.machine)
        if ranks % on.ranks_per_node:
            raise ValueError(
                f"ranks: got {ranks}, expected a multiple of {on.ranks_per_node}, the ranks of a node of {on.name}"
            )
        is_cut = algorithm == "hierarchical_tree"
        cut = segments(size, on.ranks_per_node, ranks // on.ranks_per_node) if is_cut else None
        return Case("all_reduce", algorithm, ranks, size, on, cut)

    def line(self, row: Row) -> str:
        """Return the row as the command prints it, where the simulation took seconds."""
        return line(row) if row["messages"] > 100_000_000 else ""

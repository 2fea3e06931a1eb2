"""Run experiments: notebooks with parameters, executed by papermill, each checked before anything is launched.

A preset is a YAML file beside the notebooks, ``presets/NAME.yaml``, with the parameters of each notebook under its
name. An executed notebook goes to ``results/NAME/`` with the rows it wrote. One that is up to date is not run
again.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from collectives.algorithms import ALGORITHMS, names
from collectives.bench import Measurement, Positive, Settings, bench
from collectives.bench.table import progress
from collectives.environment import record
from collectives.errors import explain, unknown
from collectives.machine import Machine, machine
from collectives.nccl import segments
from collectives.regimes import regimes
from collectives.results import write
from collectives.scaling import Case, Row, line, rows
from collectives.simulator_benchmark import benchmark, lines
from collectives.units import parse_bytes

Parameters = TypeVar("Parameters", bound=BaseModel)

# Names that IPython itself puts beside a notebook's parameters.
IPYTHON = {"In", "Out", "get_ipython", "exit", "quit", "open"}

# What a parameter may be; whatever else stands in a notebook (functions, classes, modules) is none.
SIMPLE = (str, int, float, bool, list, dict, type(None))


class ExperimentError(ValueError):
    """An experiment that cannot be run as asked, or that failed."""


class Sweep(BaseModel):
    """The parameters of ``all-reduce-sweep``."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    ranks: Positive
    sizes: Annotated[list[str | int], Field(min_length=1)]
    algorithms: list[str]
    backends: Annotated[list[str], Field(min_length=1)]
    repetitions: Positive
    where: Literal["loopback"]
    output: str

    def settings(self) -> Settings:
        """What to measure; raises ValueError where the parameters do not fit together."""
        return Settings(
            collective="all_reduce",
            ranks=self.ranks,
            bytes=[parse_bytes(size) for size in self.sizes],
            algorithms=self.algorithms,
            backends=self.backends,
            repetitions=self.repetitions,
            timeout=1800,
        )


class Scale(BaseModel):
    """The parameters of ``massive-scale``: two sizes on many numbers of ranks, and a map of which algorithm wins."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    machine: str
    ranks: Annotated[list[Positive], Field(min_length=1)]
    algorithms: Annotated[list[str], Field(min_length=1)]
    small: str | int
    large: str | int
    map_machines: list[str]
    map_nodes: list[Annotated[int, Field(ge=2)]]
    map_sizes: list[str | int]
    map_algorithms: list[str]
    output: str

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


class Speed(BaseModel):
    """The parameters of ``bench-simulator``: it has none but where its rows go."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    output: str


def _cut(algorithm: str, ranks: int, size: int, on: Machine) -> int | None:
    """Trees in chains as NCCL cuts them, others so that they are fastest; ValueError for nodes that are not full."""
    if ranks % on.ranks_per_node:
        raise ValueError(f"{ranks} ranks do not fill the nodes of {on.name}, which have {on.ranks_per_node} each")
    nodes = ranks // on.ranks_per_node
    return segments(size, on.ranks_per_node, nodes) if algorithm == "hierarchical_tree" else None


def checked(model: type[Parameters], namespace: Mapping[str, Any]) -> Parameters:
    """The notebook's parameters (``globals()`` of a notebook that has nothing else yet), checked by name and type.

    papermill adds a misspelt parameter as one more variable and only warns; here it is an error.
    """
    given = {
        name: value
        for name, value in namespace.items()
        if not name.startswith("_") and name not in IPYTHON and isinstance(value, SIMPLE)
    }
    for name in given:
        if name not in model.model_fields:
            raise ExperimentError(unknown("parameter", name, model.model_fields))
    try:
        parameters = model(**given)
        if isinstance(parameters, Sweep | Scale):
            parameters.settings()
    except ValidationError as error:
        raise ExperimentError(explain(error)) from None
    except ValueError as error:
        raise ExperimentError(str(error)) from None
    return parameters


def measure(sweep: Sweep) -> Measurement:
    """Measure on real ranks, write rows and record under ``sweep.output``, and return both."""
    settings = sweep.settings()
    with progress(settings) as on_event:
        measured = bench(settings, on_event)
    write(sweep.output, measured.rows, {"settings": settings.model_dump(), "environment": measured.environment})
    return measured


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


def run(notebooks: list[Path], preset: str) -> None:
    """Execute the notebooks with a preset, one by one; raises ExperimentError before any is started in vain."""
    presets = {path: _parameters(path, preset) for path in notebooks}
    for nth, (notebook, parameters) in enumerate(presets.items(), start=1):
        name = f"[{nth}/{len(presets)}] {notebook.stem} ({preset})"
        inputs = _inputs(notebook, parameters)
        executed = notebook.parent / "results" / preset / notebook.name
        if _is_current(executed, inputs):
            print(f"{name}: up to date", file=sys.stderr)
        else:
            print(f"{name}: running", file=sys.stderr, flush=True)
            _execute(notebook, executed, parameters, inputs)


def _parameters(notebook: Path, preset: str) -> dict[str, Any]:
    """What the preset says for this notebook, every name of it known to the notebook."""
    import papermill
    import yaml

    if not notebook.is_file():
        raise ExperimentError(f"there is no notebook {notebook}")
    folder = notebook.parent / "presets"
    if not (folder / f"{preset}.yaml").is_file():
        raise ExperimentError(unknown("preset", preset, sorted(path.stem for path in folder.glob("*.yaml"))))
    given = (yaml.safe_load((folder / f"{preset}.yaml").read_text()) or {}).get(notebook.stem, {})
    known = papermill.inspect_notebook(str(notebook))
    for name in given:
        if name not in known:
            raise ExperimentError(f"preset {preset}: {unknown('parameter', name, known)}")
    return {**given, "output": f"results/{preset}/{notebook.stem}"}


def _inputs(notebook: Path, parameters: dict[str, Any]) -> str:
    """A fingerprint of everything the outcome depends on: notebook, parameters, code and versions."""
    digest = hashlib.sha256(json.dumps(parameters, sort_keys=True).encode())
    for path in [notebook, *sorted(Path(__file__).parent.rglob("*.py"))]:
        digest.update(path.read_bytes())
    digest.update(json.dumps({k: v for k, v in record().items() if k != "commit"}, sort_keys=True).encode())
    return digest.hexdigest()


def _is_current(executed: Path, inputs: str) -> bool:
    if not executed.exists() or not executed.with_suffix(".parquet").exists():
        return False
    return bool(json.loads(executed.read_text())["metadata"].get("collectives", {}).get("inputs") == inputs)


def _execute(notebook: Path, executed: Path, parameters: dict[str, Any], inputs: str) -> None:
    """Execute into a file beside the final one, and move it there only if every cell ended well."""
    import papermill

    executed.parent.mkdir(parents=True, exist_ok=True)
    partial = executed.with_name(f".{executed.name}")
    try:
        done = papermill.execute_notebook(
            str(notebook),
            str(partial),
            parameters,
            cwd=str(notebook.parent),
            kernel_name="python3",
            progress_bar=False,  # nearly all the time passes in one cell, which says itself how far it is
            stderr_file=sys.stderr,
            extra_arguments=["--IPKernelApp.log_level=ERROR"],
        )
    except papermill.PapermillExecutionError as error:
        failed = executed.with_suffix(".failed.ipynb")
        partial.replace(failed)
        raise ExperimentError(f"{notebook} failed: {error.ename}: {error.evalue}; see {failed}") from None
    except BaseException:
        partial.unlink(missing_ok=True)  # interrupted: half a notebook is of no use to anyone
        raise
    done.metadata["collectives"] = {"inputs": inputs}
    papermill.iorw.write_ipynb(done, str(partial))
    partial.replace(executed)
    executed.with_suffix(".failed.ipynb").unlink(missing_ok=True)

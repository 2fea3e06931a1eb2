"""The experiments' parameters: a model for each notebook, and the check that every value has to pass.

A notebook checks what it was given, however it was started (`checked`); `collectives run` checks a preset before
anything is started (`collectives.experiments.execute`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self, TypeVar

from pydantic import ValidationError, model_validator

from collectives.backends import BACKENDS, backend
from collectives.backends.presence import Presence, presence
from collectives.backends.tuning import named
from collectives.bench import Settings, needed_here
from collectives.bench.calibration import Calibration
from collectives.bench.parameters import Name, Names, Parameters, Ranks, Repetitions, SomeNames, SomeSizes, need_place
from collectives.bench.sweep import sweep
from collectives.errors import explain, unknown
from collectives.experiments.massive_scale.experiment import Scale, Speed
from collectives.experiments.scaling.experiment import Scaling
from collectives.experiments.straggler.experiment import Straggler
from collectives.units import parse_bytes

Model = TypeVar("Model", bound=Parameters)

# Names that IPython itself puts beside a notebook's parameters.
IPYTHON = {"In", "Out", "get_ipython", "exit", "quit", "open"}

# What sweeps measure with, where nothing else is said: op and dtype.
PLAIN = ("sum", "float32")

# What a parameter may be; whatever else stands in a notebook (functions, classes, modules) is none.
SIMPLE = (str, int, float, bool, list, dict, type(None))


class ExperimentError(ValueError):
    """An experiment that cannot be run as asked, or that failed."""


class Measured(Parameters):
    """What every measurement is told."""

    ranks: Ranks
    sizes: SomeSizes
    backends: SomeNames
    repetitions: Repetitions
    where: Name
    output: str

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        need_place(self.where, self.ranks)
        try:
            wanted = self.settings()
        except ValidationError as error:
            raise ValueError(explain(error)) from None
        for one in wanted:
            _need_sizes(one)
            if not one.configurations():
                raise ValueError(f"nothing to measure: {', '.join(one.backends)} needs algorithms")
        return self

    def settings(self) -> list[Settings]:
        """What to measure, one for each collective; raises ValueError where the parameters do not fit together."""
        raise NotImplementedError

    def _of(self, collective: str, algorithms: list[str], backends: list[str]) -> Settings:
        return Settings(
            collective=collective,
            ranks=self.ranks,
            where=self.where,
            bytes=[parse_bytes(size) for size in self.sizes],
            algorithms=algorithms,
            backends=backends,
            repetitions=self.repetitions,
            timeout=1800,
        )


def _need_sizes(one: Settings) -> None:
    """Raise ValueError where a size is nothing to each rank, or two sizes are rounded to the same."""
    elements = [one.elements(nbytes) for nbytes in one.bytes]
    for nbytes, n in zip(one.bytes, elements, strict=True):
        if not n:
            raise ValueError(f"{nbytes} bytes are no element for each of the {one.ranks} ranks of a {one.collective}")
        if elements.count(n) > 1:
            raise ValueError(
                f"{nbytes} and another size are both {n} elements of a {one.collective} on {one.ranks} ranks"
            )


class Sweep(Measured):
    """The parameters of ``all-reduce-sweep``."""

    algorithms: Names

    def settings(self) -> list[Settings]:
        """One all-reduce, by all algorithms and back ends."""
        return [self._of("all_reduce", self.algorithms, self.backends)]


class CollectivesSweep(Measured):
    """The parameters of ``collectives-sweep``."""

    collectives: SomeNames

    def settings(self) -> list[Settings]:
        """Each collective, by the back ends that have it."""
        return [self._of(collective, ["auto"], self._having(collective)) for collective in self.collectives]

    def present(self) -> CollectivesSweep:
        """The same without the back ends that are absent here; raises ImportError where none is left."""
        found = dict(zip(self.backends, self.presence(), strict=True))
        left = [name for name in self.backends if not found[name].absent]
        if not left:
            raise ImportError("; ".join(f"{name} is absent: {found[name].absent}" for name in self.backends))
        return self.model_copy(update={"backends": left})

    def presence(self) -> list[Presence]:
        """What this machine has of each back end; of those whose ranks are elsewhere only their names are known."""
        names = [named(backend)[0] for backend in self.backends]
        return [
            presence(name) if needed_here(self.where, name) else Presence(name, devices=f"started by {self.where}")
            for name in names
        ]

    def _having(self, collective: str) -> list[str]:
        """The back ends that have it; all of them, so that Settings says why not, where none has."""
        return [each for each in self.backends if _has(named(each)[0], collective)] or self.backends


def _has(name: str, collective: str) -> bool:
    return name not in BACKENDS or not backend(name).unsupported(collective, *PLAIN)


# Name of a notebook -> the model of its parameters. An experiment of your own is one more line.
EXPERIMENTS: dict[str, type[Parameters]] = {
    "all-reduce-sweep": Sweep,
    "collectives-sweep": CollectivesSweep,
    "massive-scale": Scale,
    "bench-simulator": Speed,
    "calibration": Calibration,
    "scaling": Scaling,
    "straggler": Straggler,
}


def checked(model: type[Model], namespace: Mapping[str, Any]) -> Model:
    """The notebook's parameters (``globals()`` of a notebook that has nothing else yet), checked by name and type.

    papermill adds a misspelt parameter as one more variable and only warns; here it is an error.
    """
    return validated(model, {name: value for name, value in namespace.items() if _is_parameter(name, value)})


def _is_parameter(name: str, value: Any) -> bool:
    return not name.startswith("_") and name not in IPYTHON and isinstance(value, SIMPLE)


def validated(model: type[Model], given: Mapping[str, Any]) -> Model:
    """The parameters of a model: these and no others. Raises ExperimentError, in one line, for anything else."""
    for name in given:
        if name not in model.model_fields:
            raise ExperimentError(unknown("parameter", str(name), model.model_fields))
    try:
        return model(**given)
    except ValidationError as error:
        raise ExperimentError(explain(error)) from None


def measure(parameters: Measured) -> None:
    """Measure on real ranks; rows and their record go to ``parameters.output`` (`collectives.bench.sweep.sweep`)."""
    sweep(parameters.settings(), parameters.output)

"""The experiments' parameters: a model for each notebook, and the check that every value has to pass.

A notebook checks what it was given, however it was started (`checked`); `collectives run` checks a preset before
anything is started (`collectives.execute`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from collectives.bench import Positive, Settings
from collectives.errors import explain, unknown
from collectives.sweep import sweep
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
    where: str
    output: str

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        try:
            self.settings()
        except ValidationError as error:
            raise ValueError(explain(error)) from None
        return self

    def settings(self) -> Settings:
        """What to measure; raises ValueError where the parameters do not fit together."""
        return Settings(
            collective="all_reduce",
            ranks=self.ranks,
            where=self.where,
            bytes=[parse_bytes(size) for size in self.sizes],
            algorithms=self.algorithms,
            backends=self.backends,
            repetitions=self.repetitions,
            timeout=1800,
        )


# Name of a notebook -> the model of its parameters. An experiment of your own is one more line.
EXPERIMENTS: dict[str, type[BaseModel]] = {"all-reduce-sweep": Sweep}


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
        return model(**given)
    except ValidationError as error:
        raise ExperimentError(explain(error)) from None


def measure(parameters: Sweep) -> None:
    """Measure on real ranks; rows and their record go to ``parameters.output`` (`collectives.sweep.sweep`)."""
    sweep([parameters.settings()], parameters.output)

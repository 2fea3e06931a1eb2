"""The experiment ``calibration``: messages between two ranks, and the machine whose link fits them."""

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from collectives.bench.calibration import deviations, machine_of, measured, save
from collectives.bench.environment import record
from collectives.bench.results import write
from collectives_book import parameters as base
from collectives_book.parameters import Name, Ranks, Repetitions, Size, Some, need_place

TIMEOUT = 600.0


class Parameters(base.Parameters):
    """The parameters of ``calibration``: whose link, and which messages."""

    where: Name
    ranks: Annotated[Ranks, Field(ge=2)]
    sizes: Annotated[Some[Size], Field(min_length=2)]
    repetitions: Repetitions

    @model_validator(mode="after")
    def _known(self) -> Self:
        need_place(self.where, self.ranks)
        return self


def run(parameters: Parameters) -> None:
    """Measure the messages, and write rows, record and the fitted machine (`file`)."""
    rows = measured(parameters.where, parameters.ranks, parameters.sizes, parameters.repetitions, TIMEOUT)
    fitted = machine_of(rows, "calibrated", parameters.where)
    save(fitted, file(parameters.output))
    how = {"settings": [parameters.model_dump()], "environment": [record()]}
    write(parameters.output, deviations(rows, fitted.network), how)


def file(output: str) -> Path:
    """The path of the machine file."""
    return Path(f"{output}.yaml")

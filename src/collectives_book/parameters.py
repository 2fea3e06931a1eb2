"""What the parameters of an experiment are made of: one strict model, and typed fields without duplicates."""

from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, ConfigDict, Field

from collectives.config import Bytes, Seconds, StrictModel
from collectives.machine import machine
from collectives.units import MOST_BYTES, MOST_RANKS, MOST_REPETITIONS

T = TypeVar("T")


class Parameters(StrictModel):
    """The parameters of a notebook. Each is given by its name and of its type; none has a default.

    ``output`` is a path without a suffix: rows are written to ``output.parquet``, their record to ``output.json``.
    """

    model_config = ConfigDict(strict=True)

    output: str


def distinct(values: Sequence[Any]) -> Any:
    """The values; raises ValueError for a duplicate, because its rows could not be told apart.

    >>> distinct([4, 8])
    [4, 8]
    """
    for nth, value in enumerate(values):
        if value in values[:nth]:
            raise ValueError(f"{value!r} is given twice")
    return values


def need_place(where: str, ranks: int) -> None:
    """Raise ValueError for an unknown place, one without room for the ranks, or links that cannot be."""
    from collectives.launch import links, need_where

    need_where(where, ranks)
    if network := links(where, ranks):
        machine(network)


Distinct = Annotated[list[T], AfterValidator(distinct)]
Some = Annotated[list[T], Field(min_length=1), AfterValidator(distinct)]
Size = Annotated[Bytes, Field(ge=1, le=MOST_BYTES)]
Name = Annotated[str, Field(max_length=300)]
Latency = Annotated[Seconds, Field(gt=0)]
Ranks = Annotated[int, Field(ge=1, le=MOST_RANKS)]
Repetitions = Annotated[int, Field(ge=1, le=MOST_REPETITIONS)]

"""What experiments share: strict parameters of typed fields, those of a sweep over sizes, and resuming."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import AfterValidator, ConfigDict, Field, ValidationError, model_validator

from collectives.bench import Row, Settings, need_all
from collectives.bench.environment import code
from collectives.bench.sweep import Keep, Measure, measure_missing
from collectives.config import Bytes, Seconds, StrictModel
from collectives.errors import explain
from collectives.machine import machine
from collectives.units import MOST_BYTES, MOST_RANKS, MOST_REPETITIONS, MOST_SECONDS

T = TypeVar("T")


class Parameters(StrictModel):
    """The parameters of a notebook. Each is given by its name and of its type; none has a default.

    ``output`` is a path without a suffix: rows are written to ``output.parquet``, their record to ``output.json``.
    """

    model_config = ConfigDict(strict=True)

    output: str

    def need_here(self) -> None:
        """Raise ImportError, with the reason, where a back end is absent that this machine has to have.

        By default nothing is needed: an experiment may say itself why it can measure nothing.
        """


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


def resume(
    parameters: Parameters,
    settings: Row,
    cases: Sequence[T],
    measure: Measure[T],
    complete: Callable[[Row], Row],
    line: Callable[[Row], str],
) -> None:
    """Measure an experiment's cases that have no rows yet, each row completed (`measure_missing`)."""
    given = parameters.model_dump(mode="json", exclude={"output"})
    depends_on = [type(parameters).__module__, given, code(Path(__file__).parent)]

    def measure_completed(left: Sequence[T], keep: Keep) -> None:
        def completed(event: Row) -> None:
            keep({"rows": list(map(complete, event["rows"]))} if "rows" in event else event)

        measure(left, completed)

    measure_missing(parameters.output, [settings], cases, measure_completed, line, depends_on=depends_on)


class Sweep(Parameters):
    """What is measured on which ranks; a subclass says of which collectives, in `settings`."""

    ranks: Ranks
    sizes: Some[Size]
    backends: Some[Name]
    dtype: Name
    in_place: bool | None
    repetitions: Repetitions
    where: Name
    timeout: Annotated[Seconds, Field(gt=0, le=MOST_SECONDS)]

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
                raise ValueError(f"algorithms: got none, expected one or more for {', '.join(one.backends)}")
        return self

    def need_here(self) -> None:
        """Raise ImportError where a back end is absent, and ValueError where memory is."""
        need_all(self.settings())

    @abstractmethod
    def settings(self) -> list[Settings]:
        """What to measure, one for each collective; raises ValueError where the parameters do not fit together."""

    def _of(self, collective: str, algorithms: list[str], backends: list[str]) -> Settings:
        return Settings(
            collective=collective,
            ranks=self.ranks,
            where=self.where,
            bytes=self.sizes,
            dtype=self.dtype,
            in_place=self.in_place,
            algorithms=algorithms,
            backends=backends,
            repetitions=self.repetitions,
            timeout=self.timeout,
        )


def _need_sizes(one: Settings) -> None:
    """Raise ValueError for a size without an element for each rank, or two sizes that are rounded to the same."""
    elements = [one.elements(nbytes) for nbytes in one.bytes]
    what = f"sizes for {one.collective} on {one.ranks} ranks"
    for nbytes, n in zip(one.bytes, elements, strict=True):
        if not n:
            raise ValueError(f"{what}: got {nbytes} bytes, expected an element or more for each rank")
        if elements.count(n) > 1:
            raise ValueError(f"{what}: got {nbytes} bytes and another size of {n} elements, expected distinct ones")

"""What the sweeps over sizes share: their parameters, and the measurement on real ranks."""

from abc import abstractmethod
from typing import Self

from pydantic import ValidationError, model_validator

from collectives.bench import Settings
from collectives.bench.sweep import sweep
from collectives.errors import explain
from collectives_book.parameters import Name, Parameters, Ranks, Repetitions, Size, Some, need_place

TIMEOUT = 1800.0


class Sweep(Parameters):
    """What is measured on which ranks; a subclass says of which collectives, in `settings`."""

    ranks: Ranks
    sizes: Some[Size]
    backends: Some[Name]
    repetitions: Repetitions
    where: Name

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

    @abstractmethod
    def settings(self) -> list[Settings]:
        """What to measure, one for each collective; raises ValueError where the parameters do not fit together."""

    def _of(self, collective: str, algorithms: list[str], backends: list[str]) -> Settings:
        return Settings(
            collective=collective,
            ranks=self.ranks,
            where=self.where,
            bytes=self.sizes,
            algorithms=algorithms,
            backends=backends,
            repetitions=self.repetitions,
            timeout=TIMEOUT,
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


def run(parameters: Sweep) -> None:
    """Measure on real ranks, and write rows and record (`collectives.bench.sweep.sweep`)."""
    sweep(parameters.settings(), parameters.output)

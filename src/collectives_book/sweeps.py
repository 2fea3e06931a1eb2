"""Experiments whose measurement is the library's own: two sweeps and a calibration."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, model_validator

from collectives.backends import BACKENDS, Presence, named, presence
from collectives.bench import Settings, runs_here
from collectives.bench.calibration import deviations, machine_of, measured, save
from collectives.bench.settings import lacking
from collectives.bench.sweep import Keep
from collectives.config import Seconds
from collectives.units import MAX_SECONDS
from collectives_book.experiment import (
    Algorithm,
    Distinct,
    Experiment,
    Name,
    Ranks,
    Repetitions,
    Size,
    Some,
    SweepExperiment,
    placed,
)

OP = Settings.model_construct().op  # of the collectives that reduce


class Sweep(SweepExperiment):
    """Parameters of a sweep over sizes; a subclass names the collectives in `measurements`."""

    ranks: Ranks
    sizes: Some[Size]
    backends: Some[Name]
    dtype: Name
    in_place: bool | None
    repetitions: Repetitions
    where: Name
    share_gpus: bool
    timeout: Annotated[Seconds, Field(gt=0, le=MAX_SECONDS)]

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        for one in self.measurements():
            what = f"sizes for {one.collective} on {one.ranks} ranks"
            elements = list(map(one.elements, one.bytes))
            for nbytes, n in zip(one.bytes, elements, strict=True):
                if not n:
                    raise ValueError(
                        f"{what}: got {nbytes} bytes, expected an element or more for each rank"
                    )
                if elements.count(n) > 1:
                    raise ValueError(
                        f"{what}: got {nbytes} bytes and another of {n} elements, expected distinct sizes"
                    )
            if not one.configurations():
                raise ValueError(
                    f"algorithms: got none, expected one or more for {', '.join(one.backends)}"
                )
        return self

    def _of(self, collective: str, algorithms: list[str], backends: list[str]) -> Settings:
        same = self.model_dump(
            include={
                "ranks",
                "where",
                "share_gpus",
                "dtype",
                "in_place",
                "repetitions",
                "timeout",
            }
        )
        return Settings(
            collective=collective,
            algorithms=algorithms,
            backends=backends,
            bytes=self.sizes,
            **same,
        )


class AllReduceSweep(Sweep):
    """One all-reduce by our algorithms and by the libraries, over sizes."""

    algorithms: Distinct[Algorithm]

    def measurements(self) -> list[Settings]:
        """Return one all-reduce, by all algorithms and back ends."""
        return [self._of("all_reduce", self.algorithms, self.backends)]


class CollectivesSweep(Sweep):
    """Each collective by the back ends that have it, over sizes.

    Those that are absent are left out.
    """

    collectives: Some[Name]

    def measurements(self) -> list[Settings]:
        """Return each collective, by the back ends that have it."""
        return [
            self._of(collective, ["auto"], self._having(collective))
            for collective in self.collectives
        ]

    def presence(self) -> list[Presence]:
        """Return what this machine has of each back end.

        Of ranks that are started elsewhere only the name is known.
        """
        names = [named(typed)[0] for typed in self.backends]
        return [
            presence(name)
            if runs_here(self.where, name)
            else Presence(name, devices=f"started by {self.where}")
            for name in names
        ]

    def here(self) -> list[Settings]:
        """Return the settings without the back ends that are absent here.

        Raises ImportError if none is left.
        """
        found = list(zip(self.backends, self.presence(), strict=True))
        left = [typed for typed, each in found if not each.absent]
        if not left:
            raise ImportError(
                "; ".join(f"{typed} is absent: {each.absent}" for typed, each in found)
            )
        return self.model_copy(update={"backends": left}).measurements()

    def _having(self, collective: str) -> list[str]:
        """Return the back ends that have it.

        If none has, all of them, so that Settings says why not.
        """
        return [
            each for each in self.backends if self._has(named(each)[0], collective)
        ] or self.backends

    def _has(self, name: str, collective: str) -> bool:
        return name not in BACKENDS or not lacking(name, collective, OP, self.dtype, self.in_place)


class Calibration(Experiment):
    """Messages of several sizes between two ranks, and the machine whose link fits them."""

    TIMEOUT: ClassVar[float] = 600.0

    where: Name
    ranks: Annotated[Ranks, Field(ge=2)]
    sizes: Annotated[Some[Size], Field(min_length=2)]
    repetitions: Repetitions

    def measurements(self) -> list[Settings]:
        """Return what its ranks need, a place."""
        return [placed(self.where, self.ranks, [])]

    def wanted(self) -> list[list[int]]:
        """Return one case, all messages."""
        return [self.sizes]

    def measure(self, _: Sequence[Any], keep: Keep) -> None:
        """Measure the messages.

        Write the fitted machine (`file`), and keep how far each message is from it.
        """
        rows = measured(self.where, self.ranks, self.sizes, self.repetitions, self.TIMEOUT)
        fitted = machine_of(rows, "calibrated", self.where)
        save(fitted, self.file())
        keep({"rows": deviations(rows, fitted.network)})

    def file(self) -> Path:
        """Return the path of the machine file."""
        return Path(f"{self.output}.yaml")

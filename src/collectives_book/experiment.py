"""The base of experiments: parameters with types, rows that are measured once, and what a machine lacks for them.

A subclass has its notebook's parameters as fields, and says which cases they are, what ranks are
told, and what a row has beside its measurement. Rows are written as soon as they exist, so that a
run that was cut off goes on.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from collectives.autotune import VARIABLE
from collectives.backends import named, variables_for
from collectives.bench import Row, Settings, check_here
from collectives.bench.results import Record, read
from collectives.bench.settings import launcher_for, shares_gpus
from collectives.bench.sweep import (
    Keep,
    is_measured,
    measure_missing,
    other_rows,
    sweep,
)
from collectives.config import FILE, AlgorithmName, Bytes, Seconds, StrictModel
from collectives.digests import code
from collectives.emulator import Cluster, ClusterError, allowed, cluster
from collectives.errors import explain
from collectives.launch import launch, links, need_where
from collectives.launch.cluster import launch_on
from collectives.launch.programs import need_launcher
from collectives.launch.where import parse_where
from collectives.machine import machine
from collectives.units import MAX_BYTES, MAX_RANKS, MAX_REPETITIONS, duration

T = TypeVar("T")

# Names that IPython itself puts beside a notebook's parameters, and the types that a parameter may
# have.
IPYTHON = {"In", "Out", "get_ipython", "exit", "quit", "open"}
SIMPLE = (str, int, float, bool, list, dict, type(None))


class ExperimentError(ValueError):
    """An experiment that cannot be run as asked, or that failed."""


def distinct(values: Sequence[Any]) -> Any:
    """Return the values.

    Raises ValueError for a duplicate, because its rows could not be told apart.

    >>> distinct([4, 8])
    [4, 8]
    """
    for nth, value in enumerate(values):
        if value in values[:nth]:
            raise ValueError(f"{value!r} is given twice")
    return values


Distinct = Annotated[list[T], AfterValidator(distinct)]
Some = Annotated[list[T], Field(min_length=1), AfterValidator(distinct)]
Size = Annotated[Bytes, Field(ge=1, le=MAX_BYTES)]
Name = Annotated[str, Field(max_length=300)]
Algorithm = Annotated[AlgorithmName, Field(max_length=300)]
Latency = Annotated[Seconds, Field(gt=0)]
Ranks = Annotated[int, Field(ge=1, le=MAX_RANKS)]
Repetitions = Annotated[int, Field(ge=1, le=MAX_REPETITIONS)]


class Experiment(StrictModel):
    """The parameters of a notebook, each given by its name and of its type, and how they are measured.

    ``output`` is a path without a suffix: rows are written to ``output.parquet``, their record to
    ``output.json``.
    """

    model_config = ConfigDict(strict=True)

    TASK: ClassVar[str] = ""  # the module whose `run` every rank calls
    TIMEOUT: ClassVar[float] = 1800.0  # seconds of one launch
    SHOWN: ClassVar[tuple[str, ...]] = ()  # the columns that tell rows apart

    output: str

    @classmethod
    def of(cls, namespace: Mapping[str, Any]) -> Self:
        """Return the experiment that a notebook's first cells describe.

        ``namespace`` is their ``globals()``.

        papermill adds a misspelt parameter as one more variable and only warns; here it is an
        ExperimentError.
        """
        return cls.given(
            {
                name: value
                for name, value in namespace.items()
                if not name.startswith("_") and name not in IPYTHON and isinstance(value, SIMPLE)
            }
        )

    @classmethod
    def given(cls, parameters: Mapping[str, Any]) -> Self:
        """Return the experiment with these parameters.

        Raises ExperimentError, in one line, for wrong ones.
        """
        try:
            return cls.model_validate(dict(parameters), context=FILE)
        except ValidationError as error:
            raise ExperimentError(explain(error)) from None

    @model_validator(mode="after")
    def _has_room(self) -> Self:
        for one in self.measurements():
            network = links(one.where, one.ranks)
            if network:
                machine(network)
        return self

    def measurements(self) -> list[Settings]:
        """Return what ranks measure; raises ValueError where the parameters do not fit together."""
        return []

    def here(self) -> list[Settings]:
        """Return what of its measurements this machine makes: by default all."""
        return self.measurements()

    def wanted(self) -> Sequence[Any]:
        """Return the cases to measure, each a JSON value."""
        raise NotImplementedError

    def measure(self, left: Sequence[Any], keep: Keep) -> None:
        """Measure the first of these cases or more, and pass every event of the ranks to ``keep``."""
        raise NotImplementedError

    def row(self, row: Row) -> Row:
        """Return a measured row with what is known beside it."""
        return row

    def line(self, row: Row) -> str:
        """Return what is printed of a row: the columns `SHOWN` and how long it took.

        Nothing without a time.
        """
        shown = ", ".join(f"{name} {row[name]}" for name in self.SHOWN if row.get(name) is not None)
        seconds = row["median_us"] * 1e-6 if "median_us" in row else row.get("seconds")
        return "" if seconds is None else f"{shown}: {duration(seconds)}"

    def settings(self) -> list[Row]:
        """Return what the record says was measured."""
        return [self.model_dump()]

    def depends_on(self) -> Any:
        """Return what rows depend on beside the library's code, as a JSON value."""
        return [
            type(self).__name__,
            self.model_dump(exclude={"output"}),
            code(Path(__file__).parent),
        ]

    def check_here(self, *, queued: bool = False) -> None:
        """Raise ImportError, ClusterError or ValueError, with the reason, where this machine cannot measure it.

        A command that is only to be ``queued`` needs no job yet.
        """
        here = self.here()
        for where in {one.where for one in here}:
            need_launcher(where, queued=queued)
            reason = no_hosts() if parse_where(where).is_emulated else None
            if reason:
                raise ClusterError(reason)
        check_here(here)

    def lacking(self) -> str | None:
        """Return why this machine cannot measure it, in one line; None where it can."""
        try:
            self.check_here()
        except (ImportError, ClusterError, ValueError) as error:
            return str(error)
        return None

    def others(self, stem: str | Path | None = None) -> str | None:
        """Return in one line which rows are in the way of its own.

        None where there are none, or its own.
        """
        return other_rows(stem or self.output, self.depends_on())

    def is_measured(self, stem: str | Path | None = None) -> bool:
        """Return True if all its rows are there, and none has failed."""
        return is_measured(stem or self.output, self.depends_on())

    def run(self) -> tuple[Any, Record]:
        """Measure the cases that have no rows yet; returns all rows and their record.

        Raises FileExistsError for `others`, what `check_here` does, and RankError where a rank
        fails: what was measured until then is kept, and the next call goes on there.
        """
        others = self.others()
        if others:
            raise FileExistsError(f"{others}; name another output")
        if not self.is_measured():
            self.check_here()
            self.measure_rest()
        return read(self.output)

    def measure_rest(self) -> None:
        """Measure the cases that have no rows yet, and write all rows and their record."""

        def measure(left: Sequence[Any], keep: Keep) -> None:
            def completed(event: Row) -> None:
                keep({"rows": list(map(self.row, event["rows"]))} if "rows" in event else event)

            self.measure(left, completed)

        depends_on = self.depends_on()
        measure_missing(
            self.output,
            self.settings(),
            self.wanted(),
            measure,
            self.line,
            depends_on=depends_on,
        )

    def launch_on_hosts(self, job: Row, keep: Keep, hosts: Mapping[str, Any]) -> None:
        """Launch a rank on each emulated host (`cluster`).

        Their links change when a rank reports who is "slow".
        """
        with cluster(**hosts) as made:

            def heard(event: Row) -> None:
                if "slow" in event:
                    self.slow_down(made, event["slow"])
                keep(event)

            launch_on(made, self.TASK, job, timeout=self.TIMEOUT, on_event=heard)

    def slow_down(self, hosts: Cluster, slow: Any) -> None:
        """Set the links for what comes next."""
        raise NotImplementedError


class RankExperiment(Experiment):
    """An experiment that launches ranks of one back end, and tells them the `job`."""

    ranks: Ranks
    where: Name
    backend: Name

    def libraries(self) -> list[str]:
        """Return the back ends that it measures."""
        return [self.backend]

    def measurements(self) -> list[Settings]:
        """Return what ranks need: a place, back ends and memory."""
        return [placed(self.where, self.ranks, self.libraries())]

    @abstractmethod
    def job(self, left: Sequence[Any]) -> Row:
        """Return what the ranks are told, to measure these cases."""

    def measure(self, left: Sequence[Any], keep: Keep) -> None:
        """Launch the ranks once, for all cases that are left."""
        self.launch_ranks(self.job(left), self.ranks, keep)

    def variables(self) -> dict[str, str]:
        """Return what is set for the ranks: the links that "auto" goes by, and the library's algorithm."""
        network = links(self.where, self.ranks)
        return variables_for(self.backend, "all_reduce") | ({VARIABLE: network} if network else {})

    def launch_ranks(self, job: Row, ranks: int, keep: Keep) -> None:
        """Launch so many ranks, whose events go to ``keep``."""
        where = launcher_for(named(self.backend)[0], self.where)
        share_gpus = shares_gpus(named(self.backend)[0], placed(where, ranks, []))
        launch(
            self.TASK,
            job,
            ranks,
            where=where,
            timeout=self.TIMEOUT,
            environment=self.variables(),
            on_event=keep,
            share_gpus=share_gpus,
        )


class SweepExperiment(Experiment):
    """An experiment of collectives over sizes, by `collectives.bench.sweep`.

    What fails is a row with its error.
    """

    def depends_on(self) -> Any:
        """Return the settings of the sweep, which its rows depend on."""
        return [one.model_dump() for one in self.here()]

    def measure_rest(self) -> None:
        """Measure the sizes that have no rows yet, and write all rows and their record."""
        sweep(self.here(), self.output)


@cache
def no_hosts() -> str | None:
    """Return why this machine can have no emulated hosts; None where it can.

    It is tried once, by making some.
    """
    return allowed()


def placed(where: str, ranks: int, libraries: list[str]) -> Settings:
    """Return a measurement of which only place and back ends are known.

    Raises ValueError for no such place.
    """
    need_where(where, ranks)
    return Settings.model_construct(where=where, ranks=ranks, backends=libraries)

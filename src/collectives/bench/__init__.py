"""Measure collectives on real ranks: `Settings` say what, and `bench` launches the ranks and returns their rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple, Self

import psutil  # type: ignore[import-untyped]
from pydantic import BaseModel, ConfigDict, Field, model_validator

from collectives import limits
from collectives.algorithms import ALGORITHMS, build
from collectives.autotune import VARIABLE
from collectives.backends import BACKENDS, lacking, tuning
from collectives.backends.presence import need
from collectives.backends.tuning import named
from collectives.launch import launch, links, need_where
from collectives.machine import machine
from collectives.schedule import parts
from collectives.units import format_bytes
from collectives.verify import verify

Row = dict[str, Any]
Whole = Annotated[int, Field(ge=0, strict=True)]
Positive = Annotated[int, Field(ge=1, strict=True)]
Repetitions = Annotated[int, Field(ge=1, le=limits.MOST_REPETITIONS, strict=True)]

# Bytes of an element, and up to which whole number a dtype counts without rounding.
DTYPES = {
    "float16": (2, 1 << 11),
    "bfloat16": (2, 1 << 8),
    "float32": (4, 1 << 24),
    "float64": (8, 1 << 53),
    "int32": (4, (1 << 31) - 1),
    "int64": (8, (1 << 62) - 1),
}
OPS = ("sum", "avg", "prod", "max", "min")
OURS = tuple(name for name, entry in BACKENDS.items() if entry.module.endswith(".p2p"))
MEASURED = tuple(dict.fromkeys(collective for collective, _ in ALGORITHMS))


class Settings(BaseModel):
    """One measurement on so many ranks; what is wrong in it is said before anything is started.

    A back end may carry an algorithm of its library, as "mpi:ring" or "nccl:Tree/Simple". ``where`` is what starts the
    ranks of those that meet in a torch process group; Horovod's and MPI's are started by their own, but on emulated
    hosts the cluster starts all, MPI's together with the others. ``machine`` is what "auto" goes by, and what the rows'
    lower bound is one for: a preset, a file or LATENCY,RATE; emulated hosts are as they were asked for.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    collective: str = "all_reduce"
    algorithms: list[str] = ["auto"]
    backends: list[str] = ["p2p"]
    ranks: Annotated[Positive, Field(le=limits.MOST_RANKS_STARTED)] = 4
    where: str = "loopback"
    bytes: list[Annotated[Whole, Field(le=limits.MOST_BYTES)]] = [4, 64 << 10, 1 << 20]
    dtype: str = "float32"
    op: str = "sum"
    root: Whole = 0
    segments: Annotated[Positive, Field(le=limits.MOST_SEGMENTS_STARTED)] | None = None
    machine: str | None = None
    repetitions: Repetitions = 20
    warmups: Annotated[Whole, Field(le=limits.MOST_REPETITIONS)] = 3
    timeout: Annotated[float, Field(gt=0, le=limits.MOST_SECONDS, allow_inf_nan=False)] = 600.0

    @model_validator(mode="after")
    def _known(self) -> Self:
        for what, values, known in (
            ("collective", [self.collective], MEASURED),
            ("dtype", [self.dtype], tuple(DTYPES)),
            ("op", [self.op], OPS),
        ):
            for value in values:
                if value not in known:
                    raise ValueError(f"unknown {what} {value!r}; known are {', '.join(known)}")
        need_where(self.where, self.ranks)
        if self.machine is not None:
            machine(self.machine)
        for backend in self.backends:
            tuning.environment(backend, self.collective)
        for algorithm in self.algorithms:
            if algorithm != "auto":
                schedule = build(self.collective, algorithm, self.ranks, root=self.root, segments=self.segments)
                limits.need_cells(schedule.p, schedule.k)
                verify(schedule)
        return self

    @model_validator(mode="after")
    def _possible(self) -> Self:
        size, exact = DTYPES[self.dtype]
        if self.root >= self.ranks:
            raise ValueError(f"root {self.root} is not one of the ranks 0 to {self.ranks - 1}")
        for name in dict(map(named, self.backends)):
            if missing := lacking(name, self.collective, self.op, self.dtype):
                raise ValueError(missing)
        if self.ranks > exact:
            raise ValueError(f"{self.dtype} counts exactly to {exact} only, too few to check {self.ranks} ranks")
        for nbytes in self.bytes:
            if nbytes % size:
                raise ValueError(f"{nbytes} bytes are no whole number of {self.dtype} ({size} bytes each)")
        return self

    def configurations(self) -> list[tuple[str, str]]:
        """(backend, algorithm) in the rows' order: ours with each algorithm; a library's own choice is "default"."""
        ours = [(name, algorithm) for name in self.backends if name in OURS for algorithm in self.algorithms]
        return ours + [named(backend) for backend in self.backends if backend not in OURS]

    def launches(self) -> list[Self]:
        """What is measured together: one of these for each way to start ranks and each set of variables."""
        together: dict[tuple[str, bool, frozenset[tuple[str, str]]], list[str]] = {}
        for backend in dict.fromkeys(self.backends):
            name = named(backend)[0]
            variables = frozenset(tuning.environment(backend, self.collective).items())
            together.setdefault((starter(name, self.where), _is_restless(name), variables), []).append(backend)
        return [
            self.model_copy(update={"where": where, "backends": backends})
            for (where, _, _), backends in together.items()
        ]

    def variables(self) -> dict[str, str]:
        """What has to be set before the ranks of one launch start; emulated hosts are a machine that is known."""
        name = self.machine or links(self.where, self.ranks)
        return tuning.environment(self.backends[0], self.collective) | ({VARIABLE: name} if name else {})

    def elements(self, nbytes: int) -> int:
        """Elements of the whole buffer: rounded down, where it consists of parts, to a multiple of the ranks."""
        n = nbytes // DTYPES[self.dtype][0]
        return n - n % self.ranks if parts(self.collective, self.ranks) > 1 else n


def launches(wanted: Sequence[Settings]) -> list[list[Settings]]:
    """What is measured by the same ranks: the parts of all these settings whose ranks are started alike."""
    together: dict[tuple[Any, ...], list[Settings]] = {}
    for one in (one for settings in wanted for one in settings.launches()):
        restless = _is_restless(named(one.backends[0])[0])
        together.setdefault((one.where, restless, one.ranks, frozenset(one.variables().items())), []).append(one)
    return list(together.values())


def need_all(wanted: Sequence[Settings]) -> None:
    """Raise ImportError, with the reason, where a back end is absent of those whose ranks would be on this machine.

    Raises ValueError where this machine's memory cannot hold what these ranks need at the very least.
    """
    for settings in wanted:
        for name in dict(map(named, settings.backends)):
            if needed_here(settings.where, name):
                need(name)
                _need_memory(settings)


def _need_memory(settings: Settings) -> None:
    # A rank's data, what comes out, what must come out, and 64-bit numbers that either is made from.
    buffers = 0 if settings.collective in ("scatter", "gather") else 4 * max(settings.bytes, default=0)
    needed, there = settings.ranks * (limits.BYTES_OF_A_RANK + buffers), psutil.virtual_memory().total
    if needed > there:
        raise ValueError(
            f"memory for {settings.ranks} ranks and their buffers on this machine: "
            f"got {format_bytes(there)}, expected {format_bytes(needed)} or more"
        )


def _is_restless(name: str) -> bool:
    """Horovod's ranks talk all the time, also while others measure: they get a launch of their own."""
    return name == "horovod"


def starter(name: str, where: str) -> str:
    """What starts the ranks of a back end: its own launcher, but on emulated hosts the cluster starts all."""
    return where if where.startswith("cluster") else BACKENDS[name].where or where


def _place(alike: Sequence[Settings]) -> str:
    """Where `launch` has to start the ranks of these: on emulated hosts by mpirun, if there is any MPI among them."""
    where = alike[0].where
    names = {named(backend)[0] for one in alike for backend in one.backends}
    if not where.startswith("cluster") or where.endswith("mpirun") or "mpi" not in names:
        return where
    return f"{where}{',' if ':' in where else ':'}mpirun"


def needed_here(where: str, name: str) -> bool:
    """Whether this machine must have a back end: not where its ranks may live on others."""
    return where.startswith(("loopback", "cluster")) or BACKENDS[name].where is not None


class Measurement(NamedTuple):
    """Rows, one per size and configuration, and a record of every rank's environment in every launch."""

    rows: list[Row]
    environment: list[Row]


def bench(wanted: Sequence[Settings], on_event: Callable[[Row], None] = lambda _: None) -> Measurement:
    """Launch ranks, measure, and return the rows. Raises RankError if a rank fails or time is up.

    Whatever is started alike is measured in one launch, and its back ends in turn; the launches come one after the
    other. Raises what `need_all` does before the first one. Events on the way: ``{"row": …}``,
    ``{"environment": […]}`` and ``{"done": rounds, "of": rounds, "where": …, "collective": …}``.
    """
    need_all(wanted)
    measured = Measurement([], [])
    for alike in launches(wanted):
        first = alike[0]
        events = launch(
            "collectives.bench.measure",
            {"measure": [one.model_dump() for one in alike]},
            first.ranks,
            where=_place(alike),
            timeout=sum(one.timeout for one in alike),
            environment=first.variables(),
            on_event=on_event,
        )
        measured.rows.extend(event["row"] for event in events if "row" in event)
        measured.environment.extend(next(event["environment"] for event in events if "environment" in event))
    return measured

"""Settings of a measurement, checked before anything is started, and the launches that they need."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from collectives import units
from collectives.algorithms import build, is_for_links, is_own
from collectives.autotune import VARIABLE
from collectives.backends import BACKENDS, backend, named, need_persistent, variables_for
from collectives.config import AlgorithmName
from collectives.core.contracts import CONTRACTS
from collectives.core.schedule import check_ranks_only, parts
from collectives.core.verify import check_cells, verify
from collectives.errors import unknown
from collectives.launch import links, need_where
from collectives.launch.where import MPIRUN, parse_where
from collectives.machine import machine

Row = dict[str, Any]
Whole = Annotated[int, Field(ge=0, strict=True)]
Positive = Annotated[int, Field(ge=1, strict=True)]
Flag = Annotated[bool, Field(strict=True)]
Repetitions = Annotated[int, Field(ge=1, le=units.MAX_REPETITIONS, strict=True)]

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
OURS = tuple(name for name in BACKENDS if backend(name).takes_schedules)
# Torch has them in place only.
WHOLE = tuple(name for name, each in CONTRACTS.items() if each.parts == 0)


class Settings(BaseModel):
    """Describe one measurement on ``ranks`` ranks; a wrong value is refused before anything starts.

    A back end may carry an algorithm of its library, as "mpi:ring" or "nccl:Tree/Simple". ``where``
    is what starts the ranks of those that meet in a torch process group; a back end with a launcher
    of its own is started by that, but on emulated hosts the cluster starts all. ``machine`` is what
    "auto" goes by, and what the rows' lower bound is one for: a preset, a file or LATENCY,RATE;
    emulated hosts are as they were asked for.

    ``in_place`` is nccl-tests' word: input and output are one buffer, or one is the rank's part of
    the other. With None it is as torch's functions are: in place for all-reduce, broadcast and
    reduce, out of place for the others. Torch has none of these three out of place, so a copy of
    the input is part of their time then.

    With ``back_to_back`` calls follow each other without a barrier, as nccl-tests' loops make them:
    200 after 20, unless the settings have others, and each back end has ranks of its own. Without
    it every call begins when all ranks have come. With ``persistent`` a call is prepared once and
    then started again and again, as by MPI 4's ``MPI_Allreduce_init``.

    ``launch`` tells equal measurements apart, each of which has ranks of its own then.

    With ``share_gpus`` ranks on loopback may be more than this machine has GPUs: each is a host of
    its own to NCCL. Emulated hosts always share GPUs.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    collective: str = "all_reduce"
    algorithms: list[AlgorithmName] = ["auto"]
    backends: list[str] = ["p2p"]
    ranks: Annotated[Positive, Field(le=units.MAX_RANKS_STARTED)] = 4
    where: str = "loopback"
    bytes: list[Annotated[Whole, Field(le=units.MAX_BYTES)]] = [4, 64 << 10, 1 << 20]
    dtype: str = "float32"
    op: str = "sum"
    root: Whole = 0
    in_place: Flag | None = None
    back_to_back: Flag = False
    persistent: Flag = False
    segments: Annotated[Positive, Field(le=units.MAX_SEGMENTS_STARTED)] | None = None
    machine: str | None = None
    repetitions: Repetitions = 20
    warmups: Annotated[Whole, Field(le=units.MAX_REPETITIONS)] = 3
    share_gpus: Flag = False
    launch: Positive = 1
    timeout: Annotated[float, Field(gt=0, le=units.MAX_SECONDS, allow_inf_nan=False)] = 600.0

    @model_validator(mode="before")
    @classmethod
    def _more_calls_in_a_row(cls, given: Row) -> Row:
        return (
            {"repetitions": 200, "warmups": 20} | given
            if given.get("back_to_back") is True
            else given
        )

    @model_validator(mode="after")
    def _check(self) -> Self:
        for what, known in (("collective", CONTRACTS), ("dtype", DTYPES), ("op", OPS)):
            value = getattr(self, what)
            if value not in known:
                raise ValueError(unknown(what, value, list(known)))
        need_where(self.where, self.ranks, share_gpus=self.share_gpus)
        if self.machine is not None:
            machine(self.machine)
        for typed in self.backends:
            variables_for(typed, self.collective)
            if self.persistent:
                need_persistent(typed)
        for algorithm in self.algorithms:
            if algorithm != "auto":
                may_change = is_own(algorithm) or is_for_links(algorithm)
                prove = _prove if may_change else _prove_once
                prove(self.collective, algorithm, self.ranks, self.root, self.segments)
        if self.root >= self.ranks:
            raise ValueError(f"root {self.root} is not one of the ranks 0 to {self.ranks - 1}")
        for name in dict(map(named, self.backends)):
            if parse_where(self.where).is_emulated and not backend(name).on_emulated_hosts:
                raise ValueError(f"{name} on emulated hosts: got {self.where}, expected loopback")
            missing = lacking(name, self.collective, self.op, self.dtype, self.in_place)
            if missing:
                raise ValueError(missing)
        if self.ranks > self.exact():
            raise ValueError(
                f"{self.dtype} counts exactly to {self.exact()} only, too few to check {self.ranks} ranks"
            )
        size = DTYPES[self.dtype][0]
        for nbytes in self.bytes:
            if nbytes % size:
                raise ValueError(
                    f"{nbytes} bytes are no whole number of {self.dtype} ({size} bytes each)"
                )
        return self

    @classmethod
    def from_launcher(cls, given: Row) -> Self:
        """Return settings that the launcher has checked and proved, so that no rank does it again."""
        return cls.model_construct(**given)

    def exact(self) -> int:
        """Return the largest whole number to which the dtype counts without rounding."""
        return DTYPES[self.dtype][1]

    def configurations(self) -> list[tuple[str, str]]:
        """Return (backend, algorithm) in the rows' order: ours with each algorithm, a library's own or "default"."""
        ours, others = [], []
        for typed in self.backends:
            if typed in OURS:
                ours += [(typed, algorithm) for algorithm in self.algorithms]
            else:
                others.append(named(typed))
        return ours + others

    def variables(self) -> dict[str, str]:
        """Return the variables to set before the ranks of one launch start.

        One names the emulated machine.
        """
        name = self.machine or links(self.where, self.ranks)
        return variables_for(self.backends[0], self.collective) | ({VARIABLE: name} if name else {})

    def is_in_place(self) -> bool:
        """Return True if input and output lie in one buffer.

        Without ``in_place``, as torch's function has it.
        """
        return self.collective in WHOLE if self.in_place is None else self.in_place

    def elements(self, nbytes: int) -> int:
        """Return the elements of the whole buffer: if it consists of parts, a multiple of the ranks."""
        n = nbytes // DTYPES[self.dtype][0]
        return n - n % self.ranks if parts(self.collective, self.ranks) > 1 else n


def _prove(collective: str, algorithm: str, p: int, root: int, segments: int | None) -> None:
    """Raise ValueError unless ranks can run the schedule, and ScheduleError unless it is right."""
    schedule = build(collective, algorithm, p, root=root, segments=segments)
    check_ranks_only(schedule, "bench, which runs on ranks")
    check_cells(schedule.p, schedule.k)
    verify(schedule)


# A schedule of the user's own, or for the links of a machine file, is proved each time, because the
# file may have changed.
_prove_once = lru_cache(maxsize=1024)(_prove)


def lacking(name: str, collective: str, op: str, dtype: str, in_place: bool | None) -> str | None:
    """Return in one line what a back end lacks of this; None if it has everything.

    >>> lacking("p2p", "all_to_all", "sum", "float32", in_place=True)
    'all_to_all in place: got p2p, expected out of place, because no back end has it'
    """
    if in_place and collective == "all_to_all":
        return f"all_to_all in place: got {name}, expected out of place, because no back end has it"
    if in_place and collective not in WHOLE and not backend(name).takes_overlapping:
        return f"{collective} in place: got {name}, expected one that takes overlapping buffers"
    return backend(name).unsupported(collective, op, dtype)


def launcher_for(name: str, where: str) -> str:
    """Return what starts the ranks of a back end: its own launcher, but on emulated hosts the cluster."""
    return where if parse_where(where).is_emulated else backend(name).launcher or where


def shares_gpus(name: str, settings: Settings) -> bool:
    """Return True if ranks of a back end may be more than this machine has GPUs: asked for, or on emulated hosts."""
    return backend(name).on_gpus and (
        settings.share_gpus or parse_where(settings.where).is_emulated
    )


def group_by_launch(wanted: Sequence[Settings]) -> list[list[Settings]]:
    """Split settings by back ends, and return the parts of each launch.

    Back ends share a launch if what starts their ranks, the number of ranks and the variables are
    the same, if all or none have ranks that share GPUs, and if none of them polls while others are
    measured. Back to back each has a launch of its own.

    >>> both = Settings(backends=["p2p", "horovod", "gloo"])
    >>> [[(one.where, one.backends) for one in parts] for parts in group_by_launch([both])]
    [[('loopback', ['p2p', 'gloo'])], [('horovodrun', ['horovod'])]]
    """
    launches: dict[tuple[Any, ...], dict[int, list[str]]] = {}
    for nth, settings in enumerate(wanted):
        for typed in dict.fromkeys(settings.backends):
            name = named(typed)[0]
            variables = settings.model_copy(update={"backends": [typed]}).variables()
            # Its own launcher cannot have ranks share GPUs; they meet in torch's group then.
            shares = shares_gpus(name, settings)
            where = settings.where if shares else launcher_for(name, settings.where)
            alone = name if settings.back_to_back or backend(name).busy_polls else None
            key = (
                where,
                alone,
                settings.ranks,
                shares,
                frozenset(variables.items()),
                settings.launch,
            )
            launches.setdefault(key, {}).setdefault(nth, []).append(typed)
    return [
        [
            wanted[nth].model_copy(update={"where": key[0], "backends": backends})
            for nth, backends in parts.items()
        ]
        for key, parts in launches.items()
    ]


def where_for(parts: Sequence[Settings]) -> str:
    """Return where `launch` starts the ranks of one launch: on emulated hosts by mpirun, if a back end needs it."""
    where = parse_where(parts[0].where)
    typed = chain.from_iterable(one.backends for one in parts)
    launchers = {backend(named(name)[0]).launcher for name in typed}
    needs_mpirun = where.is_emulated and not where.has_mpirun and MPIRUN in launchers
    return str(where.by_mpirun() if needs_mpirun else where)

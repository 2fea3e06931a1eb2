"""Measure collectives on real ranks: `Settings` say what, and `bench` launches the ranks and returns their rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from collectives.algorithms import ALGORITHMS, build
from collectives.backends import BACKENDS
from collectives.launch import WHERE, launch
from collectives.schedule import parts
from collectives.verify import verify

Row = dict[str, Any]
Whole = Annotated[int, Field(ge=0, strict=True)]
Positive = Annotated[int, Field(ge=1, strict=True)]

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
REDUCING = ("reduce", "reduce_scatter", "all_reduce")
MEASURED = tuple(dict.fromkeys(collective for collective, _ in ALGORITHMS))


class Settings(BaseModel):
    """One measurement on one set of ranks; what is wrong in it is said before anything is started."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    collective: str = "all_reduce"
    algorithms: list[str] = ["auto"]
    backends: list[str] = ["p2p"]
    ranks: Positive = 4
    where: str = "loopback"
    bytes: list[Whole] = [4, 64 << 10, 1 << 20]
    dtype: str = "float32"
    op: str = "sum"
    root: Whole = 0
    segments: Positive | None = None
    repetitions: Positive = 20
    warmups: Whole = 3
    timeout: Annotated[float, Field(gt=0)] = 600.0

    @model_validator(mode="after")
    def _known(self) -> Self:
        for what, values, known in (
            ("collective", [self.collective], MEASURED),
            ("backend", self.backends, tuple(BACKENDS)),
            ("where", [self.where], tuple(WHERE)),
            ("dtype", [self.dtype], tuple(DTYPES)),
            ("op", [self.op], OPS),
        ):
            for value in values:
                if value not in known:
                    raise ValueError(f"unknown {what} {value!r}; known are {', '.join(known)}")
        for algorithm in self.algorithms:
            if algorithm != "auto":
                verify(build(self.collective, algorithm, self.ranks, root=self.root, segments=self.segments))
        return self

    @model_validator(mode="after")
    def _possible(self) -> Self:
        size, exact = DTYPES[self.dtype]
        if self.root >= self.ranks:
            raise ValueError(f"root {self.root} is not one of the ranks 0 to {self.ranks - 1}")
        if "gloo" in self.backends and self.op == "avg" and self.collective in REDUCING:
            raise ValueError("gloo has no op 'avg'; measure it with the backend p2p alone, or take op 'sum'")
        if self.ranks > exact:
            raise ValueError(f"{self.dtype} counts exactly to {exact} only, too few to check {self.ranks} ranks")
        for nbytes in self.bytes:
            if nbytes % size:
                raise ValueError(f"{nbytes} bytes are no whole number of {self.dtype} ({size} bytes each)")
        return self

    def configurations(self) -> list[tuple[str, str]]:
        """(backend, algorithm) in the rows' order: ours with each algorithm; a library's is called "default"."""
        ours = [("p2p", algorithm) for algorithm in self.algorithms if "p2p" in self.backends]
        return ours + [(backend, "default") for backend in self.backends if backend != "p2p"]

    def elements(self, nbytes: int) -> int:
        """Elements of the whole buffer: rounded down, where it consists of parts, to a multiple of the ranks."""
        n = nbytes // DTYPES[self.dtype][0]
        return n - n % self.ranks if parts(self.collective, self.ranks) > 1 else n


class Measurement(NamedTuple):
    """Rows, one per size and configuration, and an environment record of every rank."""

    rows: list[Row]
    environment: list[Row]


def bench(settings: Settings, on_event: Callable[[Row], None] = lambda _: None) -> Measurement:
    """Launch the ranks, measure, and return the rows. Raises RankError if a rank fails or time is up.

    Events on the way: ``{"row": …}``, ``{"environment": […]}`` and ``{"done": rounds, "of": rounds}``.
    """
    events = launch(
        "collectives.bench.measure",
        settings.model_dump(),
        settings.ranks,
        where=settings.where,
        timeout=settings.timeout,
        on_event=on_event,
    )
    rows = [event["row"] for event in events if "row" in event]
    return Measurement(rows, next(event["environment"] for event in events if "environment" in event))

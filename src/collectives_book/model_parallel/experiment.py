"""The experiment ``model-parallel``: steps of a model divided in three ways; parameters, measurement and rows.

All rows come from one launch (`collectives_book.model_parallel.ranks`), and are described there.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationError, model_validator

from collectives.bench import Row, Settings, need_all
from collectives.bench.sweep import Keep
from collectives.config import Seconds
from collectives.errors import explain
from collectives.launch import launch
from collectives.units import duration
from collectives_book import parameters as base
from collectives_book.model_parallel.volume import ELEMENT, parameters
from collectives_book.parameters import Name, Ranks, Repetitions, Some, need_place, resume

TIMEOUT = 1800.0
MODULE = "collectives_book.model_parallel.ranks"

Width = Annotated[int, Field(ge=1, le=1 << 16)]
Batch = Annotated[int, Field(ge=1, le=1 << 20)]
Few = Annotated[int, Field(ge=1, le=1 << 10)]


class Parameters(base.Parameters):
    """The parameters of ``model-parallel``.

    A model of ``blocks`` blocks is divided by the batch and by tensors, for each of the widths and batches; a model of
    a block for each stage is a pipeline. ``forward`` is the time that the whole batch's forward pass takes at least on
    a stage: 0 is real computing alone, more is waiting in its place.
    """

    ranks: Ranks
    backend: Name
    algorithms: Some[Name]
    where: Name
    widths: Some[Width]
    batches: Some[Batch]
    blocks: Few
    stages: Few
    schedules: Some[Literal["gpipe", "1f1b"]]
    micro_batches: Some[Few]
    stage_width: Width
    stage_batch: Batch
    forward: Annotated[Seconds, Field(le=60)]
    repetitions: Repetitions

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        need_place(self.where, self.ranks)
        try:
            self.settings()
        except ValidationError as error:
            raise ValueError(explain(error)) from None
        if self.stages > self.ranks:
            raise ValueError(f"stages: got {self.stages}, expected at most one for each of the {self.ranks} ranks")
        if max(self.micro_batches) > self.stage_batch:
            raise ValueError(
                f"micro_batches: got {max(self.micro_batches)}, expected at most the {self.stage_batch} samples"
            )
        return self

    def settings(self) -> Settings:
        """The all-reduces that are measured; raises ValueError where the parameters do not fit together."""
        return Settings(
            algorithms=self.algorithms,
            backends=[self.backend],
            ranks=self.ranks,
            where=self.where,
            bytes=[ELEMENT * parameters(width) for width in self.widths],
            repetitions=self.repetitions,
            timeout=TIMEOUT,
        )

    def need_here(self) -> None:
        """Raise ImportError where the back end is absent, and ValueError where memory is short."""
        need_all([self.settings()])


def run(parameters: Parameters) -> None:
    """Measure, and write rows and record (`resume`).

    Raises ImportError if the back end is absent, RankError if a rank fails.
    """
    wanted = parameters.settings()
    parameters.need_here()
    (one,) = wanted.launches()
    job = parameters.model_dump() | {"where": one.where, "set": one.variables()}

    def measure(left: Sequence[tuple[str, Sequence[object]]], keep: Keep) -> None:
        launch(
            MODULE,
            job | {part: [case for name, case in left if name == part] for part in ("steps", "pipelines")},
            parameters.ranks,
            where=one.where,
            timeout=TIMEOUT,
            environment=one.variables(),
            on_event=keep,
        )

    steps = product(parameters.widths, parameters.batches)
    pipelines = product(parameters.schedules, parameters.micro_batches)
    cases = [*(("steps", case) for case in steps), *(("pipelines", case) for case in pipelines)]
    resume(parameters, parameters.model_dump(), cases, measure, dict, _line)


def _line(row: Row) -> str:
    took = duration(row.get("median_us", 0) * 1e-6)
    if row["part"] == "step":
        return f"width {row['width']}, batch {row['batch']}, {row['way']} parallel by {row['algorithm']}: {took}"
    if row["part"] == "pipeline":
        return f"{row['stages']} stages, {row['micro_batches']} micro-batches by {row['schedule']}: {took}"
    return ""

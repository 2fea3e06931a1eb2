"""The experiment ``model-parallel``: steps of a model divided in three ways.

All rows come from one launch (`collectives_book.model_parallel.ranks`), and are described there.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from collectives.backends import named
from collectives.bench import Row, Settings
from collectives.bench.settings import launcher_for
from collectives.config import Seconds
from collectives_book.experiment import Algorithm, RankExperiment, Repetitions, Some
from collectives_book.model_parallel.volume import ELEMENT, parameters

Width = Annotated[int, Field(ge=1, le=1 << 16)]
Batch = Annotated[int, Field(ge=1, le=1 << 20)]
Few = Annotated[int, Field(ge=1, le=1 << 10)]


class ModelParallel(RankExperiment):
    """A model of ``blocks`` blocks that is divided by the batch and by tensors, and a pipeline with a block a stage.

    ``forward`` is the time that the whole batch's forward pass takes at least on a stage: 0 is real
    computing alone, more is waiting in its place.
    """

    TASK: ClassVar[str] = "collectives_book.model_parallel.ranks"
    SHOWN: ClassVar[tuple[str, ...]] = (
        "way",
        "algorithm",
        "width",
        "batch",
        "schedule",
        "stages",
        "micro_batches",
    )

    algorithms: Some[Algorithm]
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
        if self.stages > self.ranks:
            raise ValueError(
                f"stages: got {self.stages}, expected at most one for each of the {self.ranks} ranks"
            )
        if max(self.micro_batches) > self.stage_batch:
            raise ValueError(
                f"micro_batches: got {max(self.micro_batches)}, expected at most the {self.stage_batch} samples"
            )
        return self

    def measurements(self) -> list[Settings]:
        """Return the all-reduces that are measured.

        Raises ValueError where the parameters do not fit together.
        """
        once = Settings(
            algorithms=self.algorithms,
            backends=[self.backend],
            ranks=self.ranks,
            where=self.where,
            bytes=[ELEMENT * parameters(width) for width in self.widths],
            repetitions=self.repetitions,
            timeout=self.TIMEOUT,
        )
        return [once]

    def wanted(self) -> list[tuple[str, tuple[Any, int]]]:
        """Return the widths and batches of steps, then the schedules and micro-batches of pipelines."""
        steps = product(self.widths, self.batches)
        pipelines = product(self.schedules, self.micro_batches)
        return [
            *(("steps", case) for case in steps),
            *(("pipelines", case) for case in pipelines),
        ]

    def job(self, left: Sequence[Any]) -> Row:
        """Return the parameters and the cases of each part."""
        cases = {
            part: [case for name, case in left if name == part] for part in ("steps", "pipelines")
        }
        started = {
            "where": launcher_for(named(self.backend)[0], self.where),
            "set": self.variables(),
        }
        return self.model_dump() | started | cases

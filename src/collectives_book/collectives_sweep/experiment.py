"""The experiment ``collectives-sweep``: each collective by the back ends that have it, over sizes."""

from typing import Self

from collectives.backends import BACKENDS, Presence, named, presence
from collectives.bench import Settings, need_all, needed_here
from collectives.bench.settings import lacking
from collectives.bench.sweep import sweep
from collectives_book.parameters import Name, Some, Sweep

OP = Settings.model_construct().op  # of the collectives that reduce


class Parameters(Sweep):
    """The parameters of ``collectives-sweep``."""

    collectives: Some[Name]

    def settings(self) -> list[Settings]:
        """Each collective, by the back ends that have it."""
        return [self._of(collective, ["auto"], self._having(collective)) for collective in self.collectives]

    def present(self) -> Self:
        """The same without the back ends that are absent here; raises ImportError if none is left."""
        found = dict(zip(self.backends, self.presence(), strict=True))
        left = [name for name in self.backends if not found[name].absent]
        if not left:
            raise ImportError("; ".join(f"{name} is absent: {found[name].absent}" for name in self.backends))
        return self.model_copy(update={"backends": left})

    def need_here(self) -> None:
        """Raise ImportError where no back end is left, and ValueError where memory is short."""
        need_all(self.present().settings())

    def presence(self) -> list[Presence]:
        """What this machine has of each back end; for ranks started elsewhere, only the back end's name is known."""
        names = [named(typed)[0] for typed in self.backends]
        return [
            presence(name) if needed_here(self.where, name) else Presence(name, devices=f"started by {self.where}")
            for name in names
        ]

    def _having(self, collective: str) -> list[str]:
        """The back ends that have it; if none has, all of them, so that Settings says why not."""
        return [each for each in self.backends if self._has(named(each)[0], collective)] or self.backends

    def _has(self, name: str, collective: str) -> bool:
        return name not in BACKENDS or not lacking(name, collective, OP, self.dtype, self.in_place)


def run(parameters: Parameters) -> None:
    """Measure by the back ends that are here, and write rows and record (`sweep`)."""
    sweep(parameters.present().settings(), parameters.output)

"""The experiment ``all-reduce-sweep``: one all-reduce by our algorithms and by the libraries, over sizes."""

from collectives.bench import Settings
from collectives.bench.sweep import sweep
from collectives_book.parameters import Distinct, Name, Sweep


class Parameters(Sweep):
    """The parameters of ``all-reduce-sweep``."""

    algorithms: Distinct[Name]

    def settings(self) -> list[Settings]:
        """One all-reduce, by all algorithms and back ends."""
        return [self._of("all_reduce", self.algorithms, self.backends)]


def run(parameters: Parameters) -> None:
    """Measure on real ranks, and write rows and record (`sweep`)."""
    sweep(parameters.settings(), parameters.output)

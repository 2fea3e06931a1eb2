"""The experiment ``all-reduce-sweep``: one all-reduce by our algorithms and by the libraries, over sizes."""

from collectives.bench import Settings
from collectives_book.parameters import Distinct, Name
from collectives_book.sweeps import Sweep, run

__all__ = ["Parameters", "run"]


class Parameters(Sweep):
    """The parameters of ``all-reduce-sweep``."""

    algorithms: Distinct[Name]

    def settings(self) -> list[Settings]:
        """One all-reduce, by all algorithms and back ends."""
        return [self._of("all_reduce", self.algorithms, self.backends)]

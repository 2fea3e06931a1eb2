"""Where ranks run, as users type it and rows have it: what starts them, and the links between emulated hosts."""

from functools import lru_cache
from typing import NamedTuple

# The name of each launcher, and the function that starts ranks.
LAUNCHERS = {
    "loopback": "collectives.launch.forks:launch",
    "cluster": "collectives.launch.cluster:launch",
    "horovodrun": "collectives.launch.programs:launch_by_horovodrun",
    "mpirun": "collectives.launch.programs:launch_by_mpirun",
    "mpich": "collectives.launch.programs:launch_by_mpich",
    "impi": "collectives.launch.programs:launch_by_intel_mpi",
    "torchrun": "collectives.launch.torchrun:launch",
    "slurm": "collectives.launch.programs:launch_by_srun",
}
CLUSTER, MPIRUN = "cluster", "mpirun"


class Where(NamedTuple):
    """A launcher, and the ``options`` of a cluster, which `collectives.launch.cluster` reads."""

    launcher: str
    options: str = ""

    @property
    def is_emulated(self) -> bool:
        """True for emulated hosts, which are all on this machine."""
        return self.launcher == CLUSTER

    @property
    def is_one_machine(self) -> bool:
        """True where all ranks run on this machine, and so share its clock."""
        return self.launcher in ("loopback", CLUSTER)

    @property
    def has_mpirun(self) -> bool:
        """True where mpirun starts the ranks, also those of emulated hosts."""
        return MPIRUN in (self.launcher, self.options.rpartition(",")[2])

    def by_mpirun(self) -> "Where":
        """Return the same emulated hosts, on which mpirun starts the ranks."""
        return self._replace(options=",".join(filter(None, (self.options, MPIRUN))))

    def __str__(self) -> str:
        """Return it as it was typed."""
        return f"{self.launcher}:{self.options}" if self.options else self.launcher


@lru_cache
def parse_where(text: str) -> Where:
    """Return where ranks run.

    Raises ValueError for an unknown launcher, or options of one that has none.

    >>> parse_where("cluster:5ms,25MB/s").is_emulated, str(parse_where("cluster:5ms,25MB/s").by_mpirun())
    (True, 'cluster:5ms,25MB/s,mpirun')
    """
    launcher, colon, options = text.partition(":")
    if launcher not in LAUNCHERS or (colon and launcher != CLUSTER):
        known = f"{', '.join(LAUNCHERS)}, and cluster:LATENCY,RATE or cluster:MACHINE"
        raise ValueError(f"unknown where {text!r}; known are {known}")
    return Where(launcher, options)

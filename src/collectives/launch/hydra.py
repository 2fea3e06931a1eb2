"""Start ranks by the mpiexec of MPICH or Intel MPI, which is called Hydra, and find where they are installed.

Their programs and libraries have the names of Open MPI's, so each is installed into a folder of its
own, which COLLECTIVES_MPI lists, separated like those in PATH:

    pip install --prefix ~/mpich mpich
    pip install --prefix ~/impi impi-rt
    export COLLECTIVES_MPI=~/mpich:~/impi

A folder has ``bin/mpiexec`` and ``lib``, as a site's own installation has them, and what the program
prints says which library it is. The ranks' mpi4py loads that one.
"""

import os
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import NamedTuple

VARIABLE = "COLLECTIVES_MPI"
ASK_SECONDS = 60.0


class Library(NamedTuple):
    """Describe a library: its ``title``, the wheel that has it, and what ``mpiexec --version`` prints of it."""

    title: str
    wheel: str
    prints: re.Pattern[str]
    # Added to the ranks' environment: waiting ranks yield, and none is pinned, as under mpirun.
    variables: dict[str, str]


class Installed(NamedTuple):
    """Describe an installation: its folder, and the library's name and version."""

    folder: Path
    version: str


LIBRARIES = {
    "mpich": Library(
        "MPICH", "mpich", re.compile(r"HYDRA build details:\s+Version:\s+([\d.]+)"), {}
    ),
    "impi": Library(
        "Intel MPI",
        "impi-rt",
        re.compile(r"Intel\(R\) MPI Library .*Version ([\d.]+)"),
        {"I_MPI_PIN": "0", "I_MPI_THREAD_YIELD": "2"},
    ),
}


def variables(name: str) -> dict[str, str]:
    """Return the variables by which the ranks' mpi4py loads a library. Raises what `need` raises."""
    path = [str(need(name).folder / "lib"), os.environ.get("LD_LIBRARY_PATH", "")]
    found = {"LD_LIBRARY_PATH": os.pathsep.join(filter(None, path)), "MPI4PY_MPIABI": name}
    return found | LIBRARIES[name].variables


def need(name: str) -> Installed:
    """Return where a library of `LIBRARIES` is installed. Raises ImportError, with what installs it."""
    library = LIBRARIES[name]
    for folder in filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)):
        if said := library.prints.search(_version(Path(folder) / "bin" / "mpiexec")):
            return Installed(Path(folder).absolute(), f"{library.title} {said[1]}")
    raise ImportError(
        f"{VARIABLE} names no folder with {library.title}: `pip install --prefix ~/{name} {library.wheel}`, "
        f"then `export {VARIABLE}=~/{name}`"
    )


@cache
def _version(program: Path) -> str:
    """Return what the program prints of its version, or "" where it cannot run."""
    try:
        asked = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=ASK_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return asked.stdout

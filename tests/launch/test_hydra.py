"""MPICH and Intel MPI: each is found in COLLECTIVES_MPI and starts ranks, or a line says what installs it."""

import os
from pathlib import Path

import pytest

from collectives.backends import presence
from collectives.bench import Settings, bench
from collectives.launch import hydra

# As Hydra does: it numbers the ranks in variables, and hands its environment on.
MPIEXEC = """#!/bin/sh
[ "$1" = --version ] && {{ printf '{says}'; exit; }}
count=$4
shift 4
for rank in $(seq 0 $((count - 1))); do
    PMI_RANK=$rank PMI_SIZE=$count MPI_LOCALRANKID=$rank "$@" &
done
wait
"""
SAYS = {
    "mpich": "HYDRA build details:\\n    Version:      5.0.2\\n",
    "impi": "Intel(R) MPI Library for Linux* OS, Version 2021.19.0 Build 1\\n",
    "mpi": "mpirun (Open MPI) 5.0.11\\n",
}
VERSIONS = {"mpich": "MPICH 5.0.2", "impi": "Intel MPI 2021.19.0"}


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three MPIs, each in a folder of its name, in COLLECTIVES_MPI."""
    for name, says in SAYS.items():
        program = tmp_path / name / "bin" / "mpiexec"
        program.parent.mkdir(parents=True)
        program.write_text(MPIEXEC.format(says=says))
        program.chmod(0o755)
    folders = [tmp_path / name for name in ("missing", *SAYS)]
    monkeypatch.setenv(hydra.VARIABLE, os.pathsep.join(map(str, folders)))
    return tmp_path


@pytest.mark.parametrize("name", hydra.LIBRARIES)
def test_a_library_is_told_by_what_its_program_prints(name: str, installed: Path) -> None:
    assert hydra.need(name) == (installed / name, VERSIONS[name])
    assert presence(name).version.endswith(f", {VERSIONS[name]}")
    assert hydra.variables(name)["MPI4PY_MPIABI"] == name
    assert hydra.variables(name)["LD_LIBRARY_PATH"].split(":")[0] == str(installed / name / "lib")


@pytest.mark.parametrize("name", hydra.LIBRARIES)
def test_an_absent_library_is_one_line_that_says_what_installs_it(
    name: str, installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where another MPI is in the variable's only folder."""
    for folders in ("", str(installed / "mpi")):
        monkeypatch.setenv(hydra.VARIABLE, folders)
        said = presence(name).absent
        assert said is not None
        assert said.count("\n") == 0
        assert f"pip install --prefix ~/{name} {hydra.LIBRARIES[name].wheel}" in said
        with pytest.raises(ImportError, match=f"^{name} is absent: COLLECTIVES_MPI names no"):
            bench([Settings(backends=[name])])


@pytest.mark.integration
@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("name", hydra.LIBRARIES)
def test_its_program_starts_ranks(name: str) -> None:
    rows = bench([Settings(backends=["gloo"], where=name, ranks=3, bytes=[12], repetitions=2)]).rows
    assert [(row["where"], row["ranks"], row["wrong"]) for row in rows] == [(name, 3, 0)]


@pytest.mark.integration
@pytest.mark.parametrize("name", hydra.LIBRARIES)
def test_it_reduces(name: str) -> None:
    if absent := presence(name).absent:
        pytest.skip(absent)
    settings = {"backends": [name], "ranks": 3, "bytes": [12, 4092], "repetitions": 3}
    rows = bench([Settings(**settings), Settings(**settings, persistent=True)]).rows
    assert [(row["backend"], row["wrong"]) for row in rows] == [(name, 0)] * 4


def test_it_starts_no_ranks_on_emulated_hosts() -> None:
    with pytest.raises(ValueError, match="mpich on emulated hosts: got cluster, expected loopback"):
        Settings(backends=["mpich"], where="cluster")

"""pyproject.toml, requirements.lock and environment.yml name the same packages and the same versions."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from places import ROOT, script

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]
DIRECT = [
    Requirement(line)
    for group in [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    for line in group
    if not line.startswith(PROJECT["name"])  # an extra that an extra names
]


def pins(lines: list[str]) -> dict[str, str]:
    """{name: version} of lines `name==version`; any other line is an error."""
    pairs = [line.split("==") for line in lines]
    assert all(len(pair) == 2 for pair in pairs), f"not all of the form name==version: {lines}"
    return {canonicalize_name(name): version for name, version in pairs}


def lock() -> dict[str, str]:
    lines = (ROOT / "requirements.lock").read_text(encoding="utf8").splitlines()
    return pins([line for line in lines if not line.startswith("#")])


def pip_part() -> list[str]:
    dependencies = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf8"))["dependencies"]
    (lines,) = [entry["pip"] for entry in dependencies if isinstance(entry, dict)]
    return list(lines)


def environment() -> dict[str, str]:
    return pins([line for line in pip_part() if not line.startswith("-")])  # "-" starts an option


@pytest.mark.parametrize("requirement", DIRECT, ids=lambda requirement: requirement.name)
def test_a_direct_dependency_has_one_version_everywhere(requirement: Requirement) -> None:
    name = canonicalize_name(requirement.name)
    assert name in lock(), "not in requirements.lock: run `make lock`"
    assert environment().get(name) == lock()[name], "environment.yml differs: run `make lock`"
    assert requirement.specifier.contains(lock()[name], prereleases=True)


def extra(name: str) -> set[str]:
    """The packages of an extra, and of those that it names."""
    found: set[str] = set()
    for line in map(Requirement, PROJECT["optional-dependencies"][name]):
        found |= set().union(*map(extra, line.extras)) if line.name == PROJECT["name"] else {line.name}
    return found


def test_the_course_installs_what_its_assignments_import() -> None:
    assert extra("course") >= {"matplotlib", "numba", "psutil", "pydantic", "pytest", "pyyaml", "torch"}
    page = (ROOT / "chapters" / "course-instructor.md").read_text(encoding="utf8")
    installs = [line for line in page.splitlines() if "pip install" in line]
    assert installs
    assert not [line for line in installs if "[course]" not in line]


def test_environment_names_nothing_that_pyproject_does_not() -> None:
    assert set(environment()) == {canonicalize_name(requirement.name) for requirement in DIRECT}


def test_the_lock_fits_every_machine() -> None:
    """No CUDA package, which pip adds by itself, and no build such as 2.13.0+cpu."""
    assert not [name for name in lock() if name.startswith(("nvidia-", "cuda-")) or name == "triton"]
    assert not [version for version in lock().values() if "+" in version]


@pytest.mark.extended
@pytest.mark.timeout(900)
def test_the_lock_can_be_installed_on_the_oldest_python() -> None:
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
    oldest = ["--python-version", script("lock").OLDEST, "--only-binary", ":all:", "--target", "nowhere"]
    done = subprocess.run([*command, *oldest, "-r", "requirements.lock"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.extended
@pytest.mark.timeout(900)
def test_conda_s_pip_part_resolves_to_the_lock_in_a_fresh_environment(tmp_path: Path) -> None:
    """Everything up to unpacking: pip resolves the lines as conda hands them over, beside nothing else."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True, timeout=60)
    # Paths in a requirements file are relative to it; conda writes the file beside environment.yml.
    lines = [line.replace("requirements.lock", f"{ROOT}/requirements.lock") for line in pip_part()]
    lines = [line.replace("--editable .", f"--editable {ROOT}") for line in lines]
    (tmp_path / "condaenv.txt").write_text("\n".join(lines) + "\n")
    pip = [sys.executable, "-m", "pip", "--python", tmp_path / "venv" / "bin" / "python", "install", "--dry-run"]
    command = [*pip, "--quiet", "--report", tmp_path / "report.json", "-r", tmp_path / "condaenv.txt"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads((tmp_path / "report.json").read_text())
    found = {canonicalize_name(each["metadata"]["name"]): each["metadata"]["version"] for each in report["install"]}
    versions = {name: version.split("+")[0] for name, version in found.items() if name in lock()}
    assert versions == lock()
    assert canonicalize_name(PROJECT["name"]) in found


def test_pypi_has_the_addresses_of_the_citation() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf8"))
    urls = PROJECT.get("urls", {})
    assert (urls.get("Repository"), urls.get("Homepage")) == (citation.get("repository-code"), citation.get("url"))

"""pyproject.toml, requirements.lock and environment.yml name the same packages and the same versions."""

import tomllib

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from places import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]
DIRECT = [
    Requirement(line)
    for group in [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    for line in group
]


def pins(lines: list[str]) -> dict[str, str]:
    """{name: version} of lines `name==version`; any other line is an error."""
    pairs = [line.split("==") for line in lines]
    assert all(len(pair) == 2 for pair in pairs), f"not all of the form name==version: {lines}"
    return {canonicalize_name(name): version for name, version in pairs}


def lock() -> dict[str, str]:
    lines = (ROOT / "requirements.lock").read_text(encoding="utf8").splitlines()
    return pins([line for line in lines if not line.startswith("#")])


def environment() -> dict[str, str]:
    dependencies = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf8"))["dependencies"]
    (pip,) = [entry["pip"] for entry in dependencies if isinstance(entry, dict)]
    return pins([line for line in pip if not line.startswith("-")])  # "-" starts an option


@pytest.mark.parametrize("requirement", DIRECT, ids=lambda requirement: requirement.name)
def test_a_direct_dependency_has_one_version_everywhere(requirement: Requirement) -> None:
    name = canonicalize_name(requirement.name)
    assert name in lock(), "not in requirements.lock: run `make lock`"
    assert environment().get(name) == lock()[name], "environment.yml differs: run `make lock`"
    assert requirement.specifier.contains(lock()[name], prereleases=True)


def test_environment_names_nothing_that_pyproject_does_not() -> None:
    assert set(environment()) == {canonicalize_name(requirement.name) for requirement in DIRECT}


def test_the_lock_fits_every_machine() -> None:
    """No CUDA package, which pip adds by itself, and no build such as 2.13.0+cpu."""
    assert not [name for name in lock() if name.startswith(("nvidia-", "cuda-")) or name == "triton"]
    assert not [version for version in lock().values() if "+" in version]

"""pyproject.toml, requirements.lock and CITATION.cff agree, and the lock can be installed."""

import subprocess
import sys
import tomllib

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from places import ROOT, script

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]


def lock() -> dict[str, str]:
    """{name: version} of the lock; a line of any other form than `name==version` is an error."""
    lines = (ROOT / "requirements.lock").read_text(encoding="utf8").splitlines()
    pairs = (line.split("==") for line in lines if not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pairs}


def test_the_lock_has_a_version_of_every_direct_dependency() -> None:
    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    for line in {line for group in groups for line in group if not line.startswith(PROJECT["name"])}:
        requirement, locked = Requirement(line), lock()
        version = locked.get(canonicalize_name(requirement.name), "none")
        assert version != "none", f"{line}: got no line in requirements.lock, expected one: run `make lock`"
        assert requirement.specifier.contains(version, prereleases=True), f"{line}: got {version} in the lock"


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


def test_the_citation_has_the_version_and_the_addresses() -> None:
    citation, urls = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf8")), PROJECT.get("urls", {})
    assert citation["version"] == PROJECT["version"]
    assert (urls.get("Repository"), urls.get("Homepage")) == (citation.get("repository-code"), citation.get("url"))

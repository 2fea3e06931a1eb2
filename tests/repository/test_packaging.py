"""pyproject.toml, the locks, environment.yml and CITATION.cff agree, and the lock can be installed."""

import re
import subprocess
import sys
import tomllib

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from places import ROOT, script

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]


BLOCK = re.compile(
    r"([\w.-]+)==([\w.]+)(?: ; ([^\\\n]+?))?((?: \\\n    --hash=sha256:[0-9a-f]{64})+)\n"
)


def blocks(name: str) -> list[re.Match[str]]:
    """The packages of a lock: each with a version, a marker perhaps, and hashes.

    Nothing else stands there.
    """
    text = re.sub(r"^#.*\n", "", (ROOT / name).read_text(encoding="utf8"), flags=re.MULTILINE)
    found = list(BLOCK.finditer(text))
    assert "".join(each[0] for each in found) == text
    return found


def lock() -> dict[str, str]:
    """{name: version} of the lock."""
    return {canonicalize_name(each[1]): each[2] for each in blocks("requirements.lock")}


def test_the_lock_has_a_version_of_every_direct_dependency() -> None:
    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    for line in {
        line for group in groups for line in group if not line.startswith(PROJECT["name"])
    }:
        requirement, locked = Requirement(line), lock()
        version = locked.get(canonicalize_name(requirement.name), "none")
        assert version != "none", (
            f"{line}: got no line in requirements.lock, expected one: run `make lock`"
        )
        assert requirement.specifier.contains(version, prereleases=True), (
            f"{line}: got {version} in the lock"
        )


def test_the_lock_fits_every_machine() -> None:
    """What belongs to CUDA stands in a lock of its own, because torch's CPU build must not bring it."""
    assert not [
        name for name in lock() if name.startswith(("nvidia-", "cuda-")) or name == "triton"
    ]
    beside = {each[1] for each in blocks("requirements-cuda.lock")}
    assert {"triton", "nvidia-nccl-cu13"} <= beside
    assert not beside & {*lock()}


def test_the_lock_has_the_hashes_of_both_builds_of_torch() -> None:
    (torch,) = (each for each in blocks("requirements.lock") if each[1] == "torch")
    assert torch[2] == script("lock").TORCH
    assert all(each in torch[4] for each in script("lock").TORCH_CPU_HASHES)


def test_conda_gets_the_versions_of_the_lock() -> None:
    *_, pip = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf8"))["dependencies"]
    wanted = [f"{each[1]}=={each[2]}" for each in blocks("requirements.lock")]
    assert [line.partition(" ;")[0] for line in pip["pip"]] == [*wanted, "--editable ."]


@pytest.mark.extended
@pytest.mark.timeout(900)
def test_the_lock_can_be_installed_on_the_oldest_python() -> None:
    """pip takes the lock, too, for whom uv is not to be had; every file has a hash in it."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--dry-run",
        "--ignore-installed",
        "--quiet",
        "--no-deps",
    ]
    oldest = [
        "--python-version",
        "3.11.0",
        "--only-binary",
        ":all:",
        "--target",
        "nowhere",
        "--require-hashes",
    ]
    done = subprocess.run(
        [*command, *oldest, "-r", "requirements.lock"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_citation_has_the_version_and_the_addresses() -> None:
    citation, urls = (
        yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf8")),
        PROJECT.get("urls", {}),
    )
    assert citation["version"] == PROJECT["version"]
    assert (urls.get("Repository"), urls.get("Homepage")) == (
        citation.get("repository-code"),
        citation.get("url"),
    )

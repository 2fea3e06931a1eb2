"""Rewrite requirements.lock and the pip part of environment.yml from pyproject.toml (`make lock`).

pip resolves the core dependencies and all extras afresh, without installing anything. What only the CUDA
build of torch needs is left out: pip adds it by itself where it takes that build, and the CPU build must not
bring it.
"""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST = "3.11.0"
CUDA_ONLY = re.compile(r"^(nvidia-|cuda-|triton$)")
HEAD = """\
# Every package that the project's extras resolve to, for Python 3.11.0 and newer. Written by `make lock`: do not edit.
# torch stands without a build: pip takes the CUDA build on Linux from PyPI, and then adds the NVIDIA packages
# of that build by itself; they are not listed here, so that the CPU build can be taken from the same file.
"""


def normal(name: str) -> str:
    """The name as package indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def groups() -> dict[str, list[str]]:
    """The direct requirements, by extra; the core's under `core`. An extra that an extra names is listed by itself."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]
    found = {"core": project["dependencies"], **project["optional-dependencies"]}
    return {extra: [each for each in lines if not each.startswith(project["name"])] for extra, lines in found.items()}


def resolve(requirements: list[str]) -> dict[str, str]:
    """Ask pip which version of what these requirements need, on the oldest Python that README names.

    A package may need a later 3.11 than the 3.11.2 of Debian 12, as soupsieve 4.1.2 does.
    """
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
    for_oldest = ["--python-version", OLDEST, "--only-binary", ":all:", "--target", "nowhere"]
    report = subprocess.run(
        [*command, *for_oldest, "--report", "-", *requirements], stdout=subprocess.PIPE, check=True, text=True
    ).stdout
    packages = [item["metadata"] for item in json.loads(report)["install"]]
    # "2.13.0+cpu" names a build; the lock names a version.
    return {normal(package["name"]): package["version"].split("+")[0] for package in packages}


def held() -> list[str]:
    """The lock's pin of torch: another version is a decision of its own, made by editing the lock."""
    lines = (ROOT / "requirements.lock").read_text(encoding="utf8").splitlines()
    return [line for line in lines if line.startswith("torch==")]


def pip_part(versions: dict[str, str]) -> str:
    """The pip section of environment.yml: the direct dependencies at the lock's versions."""
    lines: list[str] = []
    for group, requirements in groups().items():
        lines.append(f"      # {group}")
        names = [re.split(r"[<>=!~\[ ;]", requirement)[0] for requirement in requirements]
        pins = [f"      - {name}=={versions[normal(name)]}" for name in names]
        lines += [pin for pin in pins if pin not in lines]  # a package may serve two extras
    return "\n".join(lines) + "\n"


def main() -> None:
    """Resolve, then write both files."""
    print("resolving pyproject.toml (a minute or two)", flush=True)
    versions = resolve([*held(), *(requirement for group in groups().values() for requirement in group)])
    locked = [f"{name}=={versions[name]}\n" for name in sorted(versions) if not CUDA_ONLY.match(name)]
    (ROOT / "requirements.lock").write_text(HEAD + "".join(locked), encoding="utf8")
    environment = ROOT / "environment.yml"
    head, mark, _ = environment.read_text(encoding="utf8").partition("      # core\n")
    if not mark:
        sys.exit("environment.yml: the line '# core', where the pip section starts, is missing")
    environment.write_text(head + pip_part(versions), encoding="utf8")
    print(f"requirements.lock: {len(locked)} packages; environment.yml: the same versions")


if __name__ == "__main__":
    main()

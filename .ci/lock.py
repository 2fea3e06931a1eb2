"""Rewrite requirements.lock from pyproject.toml (`make lock`): pip resolves core dependencies and all extras afresh.

What only the CUDA build of torch needs is left out: pip adds it by itself where it takes that build, and the CPU build
must not bring it. The lock's pin of torch stays: another version is a decision of its own, made by editing the lock.
"""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
# The oldest Python that README names: a package may need a later 3.11 than the 3.11.2 of Debian 12.
OLDEST = "3.11.0"
CUDA_ONLY = re.compile(r"^(nvidia-|cuda-|triton$)")
HEAD = """\
# Every package that the project's extras resolve to, for Python 3.11.0 and newer. Written by `make lock`: do not edit.
# torch stands without a build: pip takes the CUDA build on Linux from PyPI, and then adds the NVIDIA packages
# of that build by itself; they are not listed here, so that the CPU build can be taken from the same file.
"""


def resolve(requirements: list[str]) -> dict[str, str]:
    """Return the version of each package that these requirements need, without installing anything."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-"]
    for_oldest = ["--python-version", OLDEST, "--only-binary", ":all:", "--target", "nowhere"]
    report = subprocess.run([*command, *for_oldest, *requirements], stdout=subprocess.PIPE, check=True, text=True)
    packages = [item["metadata"] for item in json.loads(report.stdout)["install"]]
    # "2.13.0+cpu" names a build; the lock names a version.
    return {re.sub(r"[-_.]+", "-", each["name"]).lower(): each["version"].split("+")[0] for each in packages}


if __name__ == "__main__":
    print("resolving pyproject.toml (a minute or two)", flush=True)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]
    wanted = [
        *project["dependencies"],
        *(line for group in project["optional-dependencies"].values() for line in group),
    ]
    held = [line for line in LOCK.read_text(encoding="utf8").splitlines() if line.startswith("torch==")]
    versions = resolve([*held, *(line for line in wanted if not line.startswith(project["name"]))])
    locked = [f"{name}=={versions[name]}\n" for name in sorted(versions) if not CUDA_ONLY.match(name)]
    LOCK.write_text(HEAD + "".join(locked), encoding="utf8")
    print(f"requirements.lock: {len(locked)} packages")

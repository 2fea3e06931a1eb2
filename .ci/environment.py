"""Install the locked packages and this checkout into the environment of this Python (`make env` does; so may images).

uv, which is a wheel, installs them from ``requirements.lock``; where it cannot be had, pip does,
and takes longer. Each file must have a hash of the lock. torch's wheels on PyPI bring CUDA on
Linux: ``requirements-cuda.lock`` has NVIDIA's packages that belong to them. ``TORCH=cpu`` takes
torch's CPU build instead, from the index of PyTorch, and ``TORCH=cuda`` the one with CUDA where pip
also finds another.
"""

import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from progress import note, run

ROOT = Path(__file__).resolve().parent.parent
LOCK, CUDA_LOCK = ROOT / "requirements.lock", ROOT / "requirements-cuda.lock"
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")
CPU, CUDA = "cpu", "cuda"
# What uv and pip print of the packages that are large, and at the end.
TOLD = re.compile(
    r"^ *(Downloading .*\bMiB\)|Downloading .*\((?:\d{2,}\.\d MB|.* GB)\)|Prepared \d+|Installed \d+)"
)


class InstallError(RuntimeError):
    """The packages cannot be installed; the message says why."""


def main() -> None:
    """Install all, by uv or by pip."""
    wanted = os.environ.get("TORCH", "")
    if wanted not in ("", CPU, CUDA):
        raise InstallError(
            f"TORCH: got {wanted}, expected {CPU}, {CUDA}, or nothing for the build that pip takes"
        )
    uv = find_uv()
    if wanted == CPU and not uv:
        raise InstallError(
            "TORCH=cpu needs uv, which pip could not install: take PIP_EXTRA_INDEX_URL=ADDRESS instead"
        )
    locked = LOCK.read_text(encoding="utf8")
    pin = re.findall(r"^torch==\S+", locked, re.MULTILINE)[0]
    build = pin.partition("==")[2] if wanted == CUDA else torch_build(uv, pin)
    if brings_cuda(build):
        locked += CUDA_LOCK.read_text(encoding="utf8")
        if not has_gpu():
            note(
                "torch comes with CUDA, 2.7 GB, and no NVIDIA GPU is here; TORCH=cpu make book takes 192 MB instead"
            )
    note(
        f"installing {len(re.findall(r'^[a-z]', locked, re.MULTILINE))} locked packages by {'uv' if uv else 'pip'}"
    )
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        # Uv looks up a wheel's hash by its build, too; == would also take another build of 2.13.0.
        file.write(locked.replace(pin, f"torch==={build}"))
        file.flush()
        install(uv, ["--require-hashes", "--no-deps", "--requirement", file.name])
    install(uv, ["--no-deps", "--no-build-isolation", "--editable", str(ROOT)])


def find_uv() -> str | None:
    """Return uv's program, which pip installs in the lock's version.

    None where it cannot be had.
    """
    block = re.search(
        r"^uv==.*?(?=^\w|\Z)", LOCK.read_text(encoding="utf8"), re.MULTILINE | re.DOTALL
    )
    if not block:
        return None
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(block[0])
        file.flush()
        command = [
            *PIP,
            "install",
            "--quiet",
            "--no-deps",
            "--require-hashes",
            "--requirement",
            file.name,
        ]
        done = subprocess.run(command, capture_output=True, check=False)
    program = Path(sys.executable).with_name("uv")
    return str(program) if done.returncode == 0 and program.exists() else shutil.which("uv")


def torch_build(uv: str | None, pin: str) -> str:
    """Return the version of torch that would be installed, such as 2.13.0, or 2.13.0+cpu for the CPU build."""
    if uv:
        command = [
            uv,
            "pip",
            "compile",
            "--quiet",
            "--no-deps",
            "--no-header",
            *backend(),
            *indexes(),
            "-",
        ]
    else:
        command = [*PIP, "install", "--dry-run", "--no-deps", "--ignore-installed", pin]
    done = subprocess.run(
        command, input=pin, capture_output=True, text=True, env=environment(), check=False
    )
    found = re.findall(r"\btorch(?:==|-)(\d\S+)", done.stdout)
    if done.returncode or not found:
        raise InstallError(f"{done.stderr}{pin} cannot be found")
    return str(found[-1])


def backend() -> list[str]:
    """Return uv's option for the build of torch that is wanted."""
    return ["--torch-backend", CPU] if os.environ.get("TORCH") == CPU else []


def brings_cuda(torch: str) -> bool:
    """Return whether this build needs NVIDIA's packages: the one on PyPI does, on Linux."""
    return platform.system() == "Linux" and "+" not in torch


def has_gpu() -> bool:
    """Return whether an NVIDIA GPU's driver is here."""
    return Path("/dev/nvidiactl").exists() or shutil.which("nvidia-smi") is not None


def install(uv: str | None, arguments: list[str]) -> None:
    """Install by uv, or else by pip. Raises InstallError with all that the program printed."""
    if uv:
        command = [
            uv,
            "pip",
            "install",
            "--python",
            sys.executable,
            *indexes(),
            *backend(),
            *arguments,
        ]
    else:
        command = [*PIP, "install", *arguments]
    code, said = run(command, "installing packages", shown, environment=environment())
    if code:
        raise InstallError(f"{said}{shlex.join(command)} failed")


def shown(line: str) -> str | None:
    """Return what is shown of a line that uv or pip prints."""
    return line.strip() if TOLD.match(line) else None


def indexes() -> list[str]:
    """Return pip's settings of where packages come from, as uv's options.

    Hashes decide which file is right.
    """
    options = {
        "index-url": "--default-index",
        "extra-index-url": "--index",
        "find-links": "--find-links",
    }
    found = ["--index-strategy", "unsafe-best-match"]
    for name, value in pip_settings():
        if name in options:
            usable = [
                each
                for each in value.split()
                if not (name == "extra-index-url" and each.startswith("file:"))
            ]
            found += [word for each in usable for word in (options[name], each)]
    return found


def environment() -> dict[str, str]:
    """Return the variables of an installer: uv has none of pip's, but the certificates are the same."""
    made = {"UV_NO_PROGRESS": "1"}
    if certificates := dict(pip_settings()).get("cert"):
        made["SSL_CERT_FILE"] = certificates
    return made | dict(os.environ)


@cache
def pip_settings() -> list[tuple[str, str]]:
    """Return the names and values of pip's settings, from its files and variables."""
    said = subprocess.run(
        [*PIP, "config", "list"], capture_output=True, text=True, check=False
    ).stdout
    settings = [line.partition("=") for line in said.splitlines()]
    return [(name.rpartition(".")[2], value.strip("'\"")) for name, _, value in settings]


if __name__ == "__main__":
    try:
        main()
    except InstallError as error:
        sys.exit(f"error: {error}")

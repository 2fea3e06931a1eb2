"""Rewrite the locks from pyproject.toml (`make lock`): uv resolves core dependencies and all extras, with hashes.

``requirements.lock`` has every package for each supported Python and system.
``requirements-cuda.lock`` has what the CUDA build of torch needs beside, because the CPU build must
not bring it. ``requirements-nvcc.lock`` has the compiler of the same CUDA, by which
``build_horovod.py --nccl`` compiles. ``environment.yml`` gets the versions without hashes, because
pip refuses an editable checkout beside them. Versions stay where they fit; ``--upgrade`` takes the
newest. The pin of torch always stays: another version is a decision of its own, made by editing the
lock and the hashes below.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK, CUDA_LOCK, NVCC_LOCK, CONDA = (
    ROOT / name
    for name in (
        "requirements.lock",
        "requirements-cuda.lock",
        "requirements-nvcc.lock",
        "environment.yml",
    )
)
OLDEST = "3.11"
CUDA_ONLY = re.compile(r"^(nvidia-|cuda-|triton==)")
HEAD = """\
# Every package that the project's extras resolve to, for Python 3.11 and newer. Written by `make lock`: do not edit.
# What torch's CUDA build needs beside stands in requirements-cuda.lock. torch's hashes are those of its wheels on PyPI
# and of its CPU builds.
"""
CUDA_HEAD = """\
# What torch's CUDA build needs on Linux beside requirements.lock. Written by `make lock`: do not edit.
"""
NVCC_HEAD = """\
# The compiler of the CUDA that torch is built for, and its headers, beside requirements-cuda.lock: what Horovod's build
# with NCCL takes (`make horovod-nccl`). Written by `make lock`: do not edit.
"""
# The CPU builds of torch 2.13.0 for Linux, as PyTorch's own index lists them: x86-64 and ARM64,
# Python 3.11 to 3.14.
TORCH = "2.13.0"
TORCH_CPU_HASHES = (
    "6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b",
    "4ca4a9394b0c771238a4f73590fdbbc4debad85ed0fa63d026ae1b085da7d6e2",
    "3fbf9c9d1f3c10c2d59d04aca426dee9ccc6ceb32d255c61e93acc3b4f75fae6",
    "d20fa53ee744502fa4c69818a720b05ca0d37abd055d4f6e66cae155114bc691",
    "84453b69508ec79902f899c5ed9495acb9e2bbe9fda5f1d5d6f19e3c3842e1a7",
    "6f307c2c32d764ffc6ff6893b801fad6d4752f3e67966cb8abf1843427c02604",
    "0b8f7d0423027ae8b90c7977c627f3379f325363a08224dffad9b4b2d684a83d",
    "ca021f9eb2f8345c83fa03e3a04587308afb8df71bd472670b3ece00df58621c",
)


def resolve(upgrade: bool) -> list[str]:
    """Return a block of lines for each package: its name, version and marker, then its hashes.

    Versions of the lock stay where they fit, but with ``upgrade``; torch's always stays.
    """
    held = LOCK.read_text(encoding="utf8")
    with tempfile.TemporaryDirectory() as folder:
        constraint, output = Path(folder, "constraint.txt"), Path(folder, "lock.txt")
        constraint.write_text("\n".join(re.findall(r"^torch==\S+", held, re.MULTILINE)))
        output.write_text("" if upgrade else held)
        options = ["--all-extras", "--quiet", "--constraint", constraint, "--output-file", output]
        compiled([*options, "pyproject.toml"])
        return blocks_of(output.read_text(encoding="utf8"))


def compiler(cuda: list[str]) -> list[str]:
    """Return the blocks of nvcc and of what it needs that torch's CUDA build does not bring, of the same toolkit."""
    pins = dict(block.split(maxsplit=1)[0].split("==") for block in cuda)
    wanted = f"cuda-toolkit[cccl,nvcc]=={pins['cuda-toolkit']}; sys_platform == 'linux'\n"
    return [
        block
        for block in blocks_of(compiled(["--quiet", "-"], wanted))
        if block.partition("==")[0] not in pins
    ]


def compiled(arguments: list[str | Path], given: str = "") -> str:
    """Return what uv resolves of requirements, for every supported Python and system, with hashes."""
    command = [
        Path(sys.executable).with_name("uv"),
        "pip",
        "compile",
        "--universal",
        "--python-version",
        OLDEST,
        "--generate-hashes",
        "--no-annotate",
        "--no-header",
        *arguments,
    ]
    done = subprocess.run(
        command, cwd=ROOT, input=given, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout


def blocks_of(lock: str) -> list[str]:
    """Return the lines of each package in a lock."""
    return re.findall(r"^\w.*?\n(?=\w|\Z)", lock, re.MULTILINE | re.DOTALL)


def with_cpu_builds(block: str) -> str:
    """Return torch's block with the hashes of its CPU builds."""
    if not block.startswith(f"torch=={TORCH} "):
        raise SystemExit(
            f"torch: got {block.splitlines()[0]}, expected {TORCH}, whose CPU builds' hashes are known here"
        )
    hashes = sorted({*re.findall(r"sha256:(\w+)", block), *TORCH_CPU_HASHES})
    return (
        " \\\n    ".join([f"torch=={TORCH}", *(f"--hash=sha256:{each}" for each in hashes)]) + "\n"
    )


def conda(blocks: list[str]) -> str:
    """Return environment.yml with these packages for pip, without hashes."""
    above = CONDA.read_text(encoding="utf8").partition("  - pip:\n")[0]
    lines = [block.splitlines()[0].removesuffix(" \\").replace('"', "'") for block in blocks]
    listed = "".join(f'      - "{line}"\n' for line in lines)
    return f"{above}  - pip:\n{listed}      - --editable .\n"


if __name__ == "__main__":
    print("resolving pyproject.toml", flush=True)
    blocks = resolve(upgrade="--upgrade" in sys.argv)
    cuda = [block for block in blocks if CUDA_ONLY.match(block)]
    others = [block for block in blocks if not CUDA_ONLY.match(block)]
    others = [with_cpu_builds(block) if block.startswith("torch==") else block for block in others]
    LOCK.write_text(HEAD + "".join(others), encoding="utf8")
    CUDA_LOCK.write_text(CUDA_HEAD + "".join(cuda), encoding="utf8")
    NVCC_LOCK.write_text(NVCC_HEAD + "".join(compiler(cuda)), encoding="utf8")
    CONDA.write_text(conda(others), encoding="utf8")
    print(f"requirements.lock: {len(others)} packages; requirements-cuda.lock: {len(cuda)}")

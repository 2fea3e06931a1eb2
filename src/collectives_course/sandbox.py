"""A sandbox for one process of a submission: bubblewrap, another user, no network, no second process, a small memory.

The process sees the system's programs and Python, the submission, and the few modules of this library that a rank
needs. It does not see the hidden tests, the library's algorithms, other submissions, the score or the grader's
environment. It can write nowhere: a file system in memory would hold inodes and data that no limit of a process counts.

The limits are those of one process. That all ranks of a submission together use no more memory than one may, the grader
looks at ten times a second (`collectives_course.world`): a control group needs rights that few graders have.
"""

import os
import platform
import shutil
import site
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from collectives_course import seccomp

# What a rank imports of this library, and students may: no algorithm, no grader.
INSIDE = (
    "collectives/contracts.py",
    "collectives/errors.py",
    "collectives/grid.py",
    "collectives/interpret.py",
    "collectives/schedule.py",
    "collectives/traffic.py",
    "collectives/units.py",
    "collectives/verify.py",
    "collectives/wire.py",
    "collectives_course/__init__.py",
    "collectives_course/comm.py",
    "collectives_course/rank.py",
    "collectives_course/wire.py",
)
# What a package imports of others.
NEEDS = {"torch": ("torchgen", "typing_extensions")}
VARIABLES = {
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "MKL_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PATH": "/usr/bin:/bin",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONPATH": "/grader:/packages",
    "TMPDIR": "/tmp",
}
MODULE = "collectives_course.rank"
# Folders that a rank sees empty, and files: there are no terminals, and no exact counts of what the whole machine does,
# by which two ranks could signal each other.
EMPTY = ("/dev/pts", "/dev/shm", "/proc/sys", "/tmp")
COUNTERS = ("/proc/loadavg", "/proc/stat")


class SandboxError(RuntimeError):
    """The machine has no sandbox."""


@dataclass(frozen=True)
class Limits:
    """What one process may use: bytes, numbers and seconds of processor time. ``packages``: what it may import."""

    memory: int = 1 << 30
    processes: int = 16
    file: int = 16 << 20
    cpu: int = 60
    packages: tuple[str, ...] = ("numpy",)


def unavailable() -> str:
    """Why submissions cannot be run in a sandbox here; empty where they can."""
    if sys.platform != "linux":
        return f"bubblewrap needs Linux: got {platform.system()}"
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed; on Debian and Ubuntu: apt-get install bubblewrap"
    if missing := [program for program in ("choom", "prlimit", "setpriv") if shutil.which(program) is None]:
        return f"util-linux is not whole: {', '.join(missing)} missing"
    if not seccomp.has_filter():
        return f"no filter of system calls for {platform.machine()}"
    try:
        tried = subprocess.run([*_walls(), "true"], capture_output=True, text=True, timeout=20, check=False)
    except subprocess.TimeoutExpired:
        return "bubblewrap does not end here"
    return "" if tried.returncode == 0 else f"bubblewrap fails here: {tried.stderr.strip()[:300]}"


def need() -> None:
    """Raise SandboxError where submissions cannot be run in a sandbox."""
    if why_not := unavailable():
        raise SandboxError(f"no sandbox: {why_not}. --unsafe grades without one, as your own user")


def _walls() -> list[str]:
    """Everything of the command but what the submission needs. Root keeps what it takes to become another user."""
    root = os.geteuid() == 0
    system = _programs("/usr")
    for name in ("bin", "sbin", "lib", "lib32", "lib64"):
        if (Path("/") / name).is_symlink():
            system += ["--symlink", str((Path("/") / name).readlink()), f"/{name}"]
        elif (Path("/") / name).is_dir():
            system += ["--ro-bind", f"/{name}", f"/{name}"]
    alone = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    user = (
        ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
        if root
        else ["--unshare-user", "--uid", "65534", "--gid", "65534"]
    )
    return [
        "bwrap", *alone, "--die-with-parent", "--new-session", "--clearenv", "--hostname", "sandbox",
        "--cap-drop", "ALL", *user, *system, "--proc", "/proc", "--dev", "/dev",
    ]  # fmt: skip


def command(folder: Path, limits: Limits, fd: int, user: int, filter_fd: int) -> list[str]:
    """The command that starts a rank: its connection to the grader is ``fd``, the filter of calls is in ``filter_fd``.

    Where the machine runs out of memory, the kernel ends a rank first, not the grader.
    """
    own = Path(__file__).parents[1]
    binds: list[str] = []
    for prefix in sorted({sys.base_prefix, sys.base_exec_prefix} - {"/usr"}):
        binds += _programs(prefix)
    binds += _emptied(site.getsitepackages([sys.base_prefix]))
    binds += [*_folders("/grader/collectives"), *_folders("/grader/collectives_course"), *_folders("/packages")]
    for name in INSIDE:
        binds += ["--ro-bind", str(own / name), f"/grader/{name}"]
    binds += _packages(limits.packages)
    empty = [word for each in EMPTY for word in ("--perms", "0755", "--tmpfs", each)]
    environment = [word for name, value in VARIABLES.items() for word in ("--setenv", name, value)]
    numbers = [limits.memory, limits.processes, limits.file, limits.cpu]
    python = os.path.realpath(sys.executable)
    before = ["choom", "--adjust", "1000", "--", "prlimit", f"--as={limits.memory}", "--core=0", "--"]
    # A user namespace owns what bubblewrap made: folders in memory that no limit counts. Through /proc a rank could
    # write what oom_score_adj says of it, and the memory of the sandbox's first process.
    frozen = [word for each in (*EMPTY, "/dev", "/proc", "/") for word in ("--remount-ro", each)]
    counters = [word for each in COUNTERS for word in ("--ro-bind", "/dev/null", each)]
    start = [python, "-s", "-B", "-m", MODULE, str(fd), "/submission", *map(str, numbers), *limits.packages]
    return [
        *before, *_walls(), *empty, *counters, *binds, "--ro-bind", str(folder), "/submission", "--chdir", "/tmp",
        *environment, *frozen, "--seccomp", str(filter_fd), "--", *_become(user), *start,
    ]  # fmt: skip


def _become(user: int) -> list[str]:
    """Root becomes this user within the walls; another user has left its own behind, in a namespace of users."""
    if os.geteuid() != 0:
        return []
    ids = [f"--reuid={user}", f"--regid={user}", "--clear-groups"]
    return ["setpriv", *ids, "--inh-caps=-all", "--no-new-privs", "--"]


def _programs(prefix: str) -> list[str]:
    """Programs and libraries of a prefix, and nothing else that may lie there, such as a course."""
    found = [f"{prefix}/{name}" for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32")]
    return _folders(prefix) + [word for each in found if Path(each).is_dir() for word in ("--ro-bind", each, each)]


def _folders(folder: str) -> list[str]:
    """A folder and those above it: bubblewrap itself makes folders that only root may enter."""
    folders = [*reversed(Path(folder, "x").parents)][1:]
    return [word for each in folders for word in ("--perms", "0755", "--dir", str(each))]


def _emptied(folders: list[str]) -> list[str]:
    """Installed packages are not seen: this library may be one of them."""
    found = [folder for folder in folders if Path(folder).is_dir()]
    return [word for each in found for word in ("--perms", "0755", "--tmpfs", each, "--remount-ro", each)]


def _packages(names: tuple[str, ...]) -> list[str]:
    """Binds of the packages that a submission may import, with those that they need and their wheels' libraries."""
    binds = []
    for name in dict.fromkeys(each for asked in names for each in (asked, *NEEDS.get(asked, ()))):
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            raise SandboxError(f"package: got {name}, which is not installed here")
        origin = Path(spec.origin)
        found = origin.parent if origin.name == "__init__.py" else origin
        for each in (found, found.parent / f"{name}.libs"):
            if each.exists():
                binds += ["--ro-bind", str(each), f"/packages/{each.name}"]
    return binds


def bare_command(folder: Path, limits: Limits, fd: int) -> list[str]:
    """Without a sandbox: for an instructor who trusts the submission."""
    numbers = [-1, -1, limits.file, limits.cpu]
    return [sys.executable, "-s", "-B", "-m", MODULE, str(fd), str(folder), *map(str, numbers), *limits.packages]

"""A sandbox for one process of a submission: bubblewrap, another user, no network, a small memory, killed whole.

The process sees the system's programs and Python read-only, the submission, the few modules of this library that a
rank needs, and an empty temporary folder of its own. It does not see the hidden tests, the library's algorithms, other
submissions or the score.
"""

import os
import platform
import shutil
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import collectives
from collectives.grading.channel import Channel, GoneError
from collectives.grading.verdict import Crashed, TimedOut

# What a rank imports of this library, and students may: no algorithm, no grader.
INSIDE = (
    "contracts.py",
    "errors.py",
    "grading/__init__.py",
    "grading/comm.py",
    "grading/rank.py",
    "grading/training_comm.py",
    "grading/wire.py",
    "grid.py",
    "interpret.py",
    "schedule.py",
    "traffic.py",
    "units.py",
    "verify.py",
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
MODULE = "collectives.grading.rank"
FIRST_USER, USERS = 61_184, 4_000  # numbers that systemd leaves to such uses
OUTPUT_KEPT, MOST_OUTPUT = 16 << 10, 8 << 20
START_SECONDS = 60.0  # importing torch on a busy machine


class SandboxError(RuntimeError):
    """The machine has no sandbox."""


@dataclass(frozen=True)
class Limits:
    """What one process may use: bytes, numbers and seconds of processor time. ``packages``: what it may import."""

    memory: int = 1 << 30
    processes: int = 16
    file: int = 16 << 20
    folder: int = 32 << 20
    cpu: int = 60
    packages: tuple[str, ...] = ("numpy",)


def unavailable() -> str:
    """Why submissions cannot be run in a sandbox here; empty where they can."""
    if sys.platform != "linux":
        return f"bubblewrap needs Linux: got {platform.system()}"
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed; on Debian and Ubuntu: apt-get install bubblewrap"
    tried = subprocess.run([*_walls(), "true"], capture_output=True, text=True, timeout=20, check=False)
    return "" if tried.returncode == 0 else f"bubblewrap fails here: {tried.stderr.strip()[:300]}"


def _walls() -> list[str]:
    """Everything of the command but what the submission needs. Root keeps what it takes to become another user."""
    root = os.geteuid() == 0
    system = ["--ro-bind", "/usr", "/usr"]
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


def command(folder: Path, limits: Limits, fd: int, user: int) -> list[str]:
    """The command that starts a rank: its connection to the grader is file descriptor ``fd``."""
    own = Path(collectives.__file__).parent
    binds: list[str] = []
    for prefix in sorted({sys.base_prefix, sys.base_exec_prefix}):
        if not prefix.startswith("/usr"):
            parents = [str(parent) for parent in reversed(Path(prefix).parents)][1:]
            binds += [word for parent in parents for word in ("--perms", "0755", "--dir", parent)]
            binds += ["--ro-bind", prefix, prefix]
    for name in ("/grader", "/grader/collectives", "/grader/collectives/grading", "/packages"):
        binds += ["--perms", "0755", "--dir", name]  # bubblewrap itself makes folders that only root may enter
    for name in INSIDE:
        binds += ["--ro-bind", str(own / name), f"/grader/collectives/{name}"]
    binds += _packages(limits.packages)
    temporary = [*_tmpfs("/tmp", limits.folder), *_tmpfs("/dev/shm", 1 << 20)]
    environment = [word for name, value in VARIABLES.items() for word in ("--setenv", name, value)]
    become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--no-new-privs", "--"]
    if os.geteuid() != 0:
        become = []
    numbers = [limits.memory, limits.processes, limits.file, limits.cpu]
    python = os.path.realpath(sys.executable)
    return [
        *_walls(), *binds, *temporary, "--ro-bind", str(folder), "/submission", "--chdir", "/tmp", *environment, "--",
        *become, python, "-s", "-B", "-m", MODULE, str(fd), "/submission", *map(str, numbers), *limits.packages,
    ]  # fmt: skip


def _tmpfs(folder: str, size: int) -> list[str]:
    return ["--perms", "1777", "--size", str(size), "--tmpfs", folder]


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


class Process:
    """One rank of a submission. ``channel`` leads to it; `kill` ends it and everything that it has started."""

    def __init__(self, folder: Path, limits: Limits, number: int = 0, sandboxed: bool = True) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            user = FIRST_USER + (os.getpid() * 16 + number) % USERS
            if sandboxed:
                typed = command(folder, limits, theirs.fileno(), user)
            else:
                typed = _bare(folder, limits, theirs.fileno())
            self.process = subprocess.Popen(
                typed,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                env=None if not sandboxed else {"PATH": os.environ.get("PATH", "/usr/bin:/bin")},
                start_new_session=True,
            )
        self.printed = bytearray()
        self.size = 0
        self.channel = Channel(ours, self._ended, self._stack)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def need_ready(self) -> None:
        """Wait until the rank takes calls. Raises Crashed, or TimedOut."""
        try:
            self.channel.wait(START_SECONDS)
        except GoneError as gone:
            raise Crashed(f"a rank did not start: {gone}") from None
        except TimeoutError:
            raise TimedOut(f"a rank did not start within {START_SECONDS:g} s") from None

    def kill(self) -> None:
        """End the process and all that it has started. Safe to call twice."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, 9)
        self.process.wait()
        self.channel.connection.close()
        self.reader.join(5)

    def _read(self) -> None:
        """Keep the start of what it prints; more than a limit ends it."""
        pipe: Any = self.process.stdout
        with pipe, suppress(OSError, ValueError):
            while piece := os.read(pipe.fileno(), 1 << 16):
                self.size += len(piece)
                self.printed += piece[: max(0, OUTPUT_KEPT - len(self.printed))]
                if self.size > MOST_OUTPUT:
                    self.process.kill()

    def _ended(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        if self.size > MOST_OUTPUT:
            return f"it printed more than {MOST_OUTPUT >> 20} MiB"
        code = self.process.returncode
        return f"its process ended (exit code {code}) before the function returned{self._last_words()}"

    def _last_words(self) -> str:
        lines = self.printed.decode(errors="replace").strip().splitlines()
        return f": {lines[-1][:300]}" if lines else ""

    def _stack(self, file: str) -> int:
        """The line of the submission's file at which the rank computes, from its own mouth; 0 where it says none."""
        del file
        return 0


def _bare(folder: Path, limits: Limits, fd: int) -> list[str]:
    """Without a sandbox: for an instructor who trusts the submission."""
    numbers = [-1, -1, limits.file, limits.cpu]
    return [sys.executable, "-s", "-B", "-m", MODULE, str(fd), str(folder), *map(str, numbers), *limits.packages]

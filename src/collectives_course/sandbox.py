"""A sandbox for one process of a submission: bubblewrap, another user, no network, no second process, a small memory.

The process sees the system's programs and Python, the submission, and the few modules of this
library that a rank needs. It does not see the hidden tests, the library's algorithms, other
submissions, the score or the grader's environment. It can write nowhere: a file system in memory
would hold inodes and data that no limit of a process counts.

The limits are those of one process. That all ranks of a submission together use no more memory than
one may, the grader looks at ten times a second (`collectives_course.world`): a control group needs
rights that few graders have.
"""

import fcntl
import itertools
import os
import platform
import random
import re
import shutil
import signal
import site
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO

import psutil  # type: ignore[import-untyped]

from collectives import processes
from collectives_course import seccomp
from collectives_course.verdict import Crashed, TimedOut, printable
from collectives_course.wire import GoneError
from collectives_course.world import Channel, UsageMeter, Used

# What a rank imports of this library, and students may: no algorithm, no grader.
INSIDE = (
    "collectives/core/__init__.py",
    "collectives/core/contracts.py",
    "collectives/core/grid.py",
    "collectives/core/interpret.py",
    "collectives/core/schedule.py",
    "collectives/core/traffic.py",
    "collectives/core/verify.py",
    "collectives/errors.py",
    "collectives/units.py",
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
# Folders that a rank sees empty, and files: there are no terminals, and no exact counts of what the
# whole machine does, by which two ranks could signal each other.
EMPTY = ("/dev/pts", "/dev/shm", "/proc/sys", "/tmp")
COUNTERS = ("/proc/loadavg", "/proc/stat")
FIRST_USER, USERS = 61_184, 4_000  # numbers that systemd leaves to such uses
# Which of them are used: a locked byte for each, which root alone can lock.
USED = Path("/run/collectives-ranks.lock")
LOCK = struct.Struct("hhqqi4x")  # of 64-bit Linux
OUTPUT_KEPT, MAX_OUTPUT = 16 << 10, 8 << 20
START_SECONDS, END_SECONDS = 300.0, 2.0  # a rank may import torch, on a busy machine
STACK_SECONDS = 2.0
AWAKE = (psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP)  # a stopped process sleeps, too
KILLED = 128 + 9
LIBRARY = Path(__file__).parents[1]  # for a rank without a sandbox; the sandbox has its own copy


class SandboxError(RuntimeError):
    """The machine has no sandbox."""


@dataclass(frozen=True)
class Limits:
    """Limits of one process: bytes, numbers and seconds of processor time.

    ``packages``: those that it may import.
    """

    memory: int = 1 << 30
    processes: int = 16
    file: int = 16 << 20
    cpu: int = 60
    packages: tuple[str, ...] = ("numpy",)


def unavailable() -> str:
    """Return the reason why submissions cannot be run in a sandbox here, empty if they can."""
    if sys.platform != "linux":
        return f"bubblewrap needs Linux: got {platform.system()}"
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed; on Debian and Ubuntu: apt-get install bubblewrap"
    missing = [
        program for program in ("choom", "prlimit", "setpriv") if shutil.which(program) is None
    ]
    if missing:
        return f"util-linux is not whole: {', '.join(missing)} missing"
    if not seccomp.has_filter():
        return f"no filter of system calls for {platform.machine()}"
    try:
        tried = subprocess.run(
            [*_walls(), "true"], capture_output=True, text=True, timeout=20, check=False
        )
    except subprocess.TimeoutExpired:
        return "bubblewrap does not end here"
    return "" if tried.returncode == 0 else f"bubblewrap fails here: {tried.stderr.strip()[:300]}"


def check_available() -> None:
    """Raise SandboxError where submissions cannot be run in a sandbox."""
    why_not = unavailable()
    if why_not:
        raise SandboxError(f"no sandbox: {why_not}. --unsafe grades without one, as your own user")


def _walls() -> list[str]:
    """Return the options of bubblewrap that isolate.

    Root keeps what it takes to become another user.
    """
    folders = _programs("/usr")
    for name in ("bin", "sbin", "lib", "lib32", "lib64"):
        path = Path("/") / name
        if path.is_symlink():  # into /usr, which is there
            folders += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            folders += ["--ro-bind", str(path), str(path)]
    alone = [
        "--unshare-ipc",
        "--unshare-pid",
        "--unshare-net",
        "--unshare-uts",
        "--unshare-cgroup-try",
    ]
    if os.geteuid() == 0:
        # After "--cap-drop ALL", because bubblewrap goes by their order.
        user = ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        user = ["--unshare-user", "--uid", "65534", "--gid", "65534"]
    return [
        "bwrap", *alone, "--die-with-parent", "--new-session", "--clearenv", "--hostname", "sandbox",
        "--cap-drop", "ALL", *user, *folders, "--proc", "/proc", "--dev", "/dev",
    ]  # fmt: skip


def command(folder: Path, limits: Limits, fd: int, user: int, filter_fd: int) -> list[str]:
    """Return the command that starts a rank.

    ``fd`` is its connection to the grader, ``filter_fd`` has the filter.

    Where the machine runs out of memory, the kernel ends a rank first, not the grader.
    """
    own = Path(__file__).parents[1]
    binds: list[str] = []
    for prefix in sorted({sys.base_prefix, sys.base_exec_prefix} - {"/usr"}):
        binds += _programs(prefix)
    binds += _emptied(site.getsitepackages([sys.base_prefix]))
    binds += [
        *_folders("/grader/collectives"),
        *_folders("/grader/collectives/core"),
        *_folders("/grader/collectives_course"),
        *_folders("/packages"),
    ]
    for name in INSIDE:
        binds += ["--ro-bind", str(own / name), f"/grader/{name}"]
    binds += _packages(limits.packages)
    empty: list[str] = []
    for shown in EMPTY:
        empty += ["--perms", "0755", "--tmpfs", shown]
    environment: list[str] = []
    for name, value in VARIABLES.items():
        environment += ["--setenv", name, value]
    numbers = [limits.memory, limits.processes, limits.file, limits.cpu]
    python = os.path.realpath(sys.executable)
    before = [
        "choom",
        "--adjust",
        "1000",
        "--",
        "prlimit",
        f"--as={limits.memory}",
        "--core=0",
        "--",
    ]
    # A user namespace owns what bubblewrap made: folders in memory that no limit counts. Through
    # /proc a rank could write what oom_score_adj says of it, and the memory of the sandbox's first
    # process.
    frozen: list[str] = []
    for shown in (*EMPTY, "/dev", "/proc", "/"):
        frozen += ["--remount-ro", shown]
    counters: list[str] = []
    for file in COUNTERS:
        counters += ["--ro-bind", "/dev/null", file]
    start = [
        python,
        "-s",
        "-B",
        "-m",
        MODULE,
        str(fd),
        "/submission",
        *map(str, numbers),
        *limits.packages,
    ]
    return [
        *before, *_walls(), *empty, *counters, *binds, "--ro-bind", str(folder), "/submission", "--chdir", "/tmp",
        *environment, *frozen, "--seccomp", str(filter_fd), "--", *_become(user), *start,
    ]  # fmt: skip


def _become(user: int) -> list[str]:
    """Return the command by which root becomes this user inside.

    Another user is in a namespace of users already.
    """
    if os.geteuid() != 0:
        return []
    ids = [f"--reuid={user}", f"--regid={user}", "--clear-groups"]
    return ["setpriv", *ids, "--inh-caps=-all", "--no-new-privs", "--"]


def _programs(prefix: str) -> list[str]:
    """Bind programs and libraries of a prefix, and nothing else that may lie there, such as a course."""
    found = [f"{prefix}/{name}" for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32")]
    words = _folders(prefix)
    for folder in found:
        if Path(folder).is_dir():
            words += ["--ro-bind", folder, folder]
    return words


def _folders(folder: str) -> list[str]:
    """Make a folder and those above it: bubblewrap itself makes folders that only root may enter."""
    folders = [*reversed(Path(folder, "x").parents)][1:]
    words: list[str] = []
    for above in folders:
        words += ["--perms", "0755", "--dir", str(above)]
    return words


def _emptied(folders: list[str]) -> list[str]:
    """Hide installed packages, because this library may be one of them."""
    found = [folder for folder in folders if Path(folder).is_dir()]
    words: list[str] = []
    for folder in found:
        words += ["--perms", "0755", "--tmpfs", folder, "--remount-ro", folder]
    return words


def _packages(names: tuple[str, ...]) -> list[str]:
    """Bind the packages that a submission may import, with those that they need and their wheels' libraries."""
    binds = []
    needed: dict[str, None] = {}  # each once, in their order
    for asked in names:
        needed |= dict.fromkeys([asked, *NEEDS.get(asked, ())])
    for name in needed:
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
    """Return the command without a sandbox, for an instructor who trusts the submission."""
    numbers = [-1, -1, limits.file, limits.cpu]
    return [
        sys.executable,
        "-s",
        "-B",
        "-m",
        MODULE,
        str(fd),
        str(folder),
        *map(str, numbers),
        *limits.packages,
    ]


class RankProcess:
    """One rank of a submission.

    ``channel`` leads to it. `kill` ends it and everything that it has started.
    """

    def __init__(self, folder: Path, limits: Limits, sandboxed: bool = True) -> None:
        self.user: BinaryIO | None = None
        self.sandboxed = sandboxed
        ours, theirs = socket.socketpair()
        with theirs, _filter() as filter_fd:
            if sandboxed:
                number, self.user = _own_user() if os.geteuid() == 0 else (0, None)
                words = command(folder, limits, theirs.fileno(), number, filter_fd)
            else:
                words = bare_command(folder, limits, theirs.fileno())
            self.process = processes.ChildProcess(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno(), filter_fd],
                env={"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "PYTHONPATH": str(LIBRARY)},
            )
        self.printed = b""
        self.size = 0
        self.rank = psutil.Process(self.process.pid)  # until it is ready
        self.channel = Channel(ours, self._ended, self._current_line, self._usage)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def wait_until_ready(self) -> None:
        """Wait until the rank takes calls. Raises Crashed, or TimedOut."""
        try:
            self.channel.wait(START_SECONDS)
        except GoneError as gone:
            raise Crashed(f"a rank did not start: {gone}") from None
        except TimeoutError:
            raise TimedOut(f"a rank did not start within {START_SECONDS:g} s") from None
        self.rank = [self.rank, *self.rank.children(recursive=True)][-1]  # within the sandbox
        self.channel.meter = UsageMeter(self._usage)  # to start costs nothing

    def kill(self) -> None:
        """End the process and all that it has started. Safe to call twice."""
        if self.sandboxed:
            self._kill_inside()
        processes.end([self.process])
        self.channel.end.close()
        self.reader.join(END_SECONDS)  # until nothing that it has started is there to print
        if self.user:
            self.user.close()

    def _kill_inside(self) -> None:
        """Kill the first process in the sandbox.

        The kernel then ends all others, and bubblewrap collects it.
        """
        with suppress(psutil.Error, subprocess.TimeoutExpired):
            for first in psutil.Process(self.process.pid).children():
                first.kill()
                self.process.wait(END_SECONDS)

    def _usage(self) -> Used:
        """Return what the rank uses.

        One that has ended uses nothing, and one without its first thread is ended.
        """
        try:
            with self.rank.oneshot():
                times, status = self.rank.cpu_times(), self.rank.status()
            if status == psutil.STATUS_ZOMBIE:
                self.rank.kill()
            sleeps = status not in AWAKE and not _other_thread_is_awake(self.rank.pid)
            return Used(
                times.user + times.system,
                sleeps,
                _own_memory(self.rank.pid),
                _waited(self.rank.pid),
            )
        except psutil.Error:
            return self.channel.meter.last._replace(sleeps=False)

    def _read(self) -> None:
        """Keep the end of what it prints. More than a limit ends it."""
        pipe: Any = self.process.stdout
        with pipe, suppress(OSError, ValueError):
            while piece := os.read(pipe.fileno(), 1 << 16):
                self.size += len(piece)
                self.printed = (self.printed + piece)[-OUTPUT_KEPT:]
                if self.size > MAX_OUTPUT:
                    self.process.kill()

    def _ended(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(END_SECONDS)
        if self.size > MAX_OUTPUT:
            return f"it printed more than {MAX_OUTPUT >> 20} MiB"
        code = self.process.returncode
        if code is None:
            return "it closed its connection to the grader"
        why = f"exit code {code}" + (
            ", killed: too much memory or processor time" if code in (KILLED, -9) else ""
        )
        self.reader.join(END_SECONDS)
        return f"its process ended ({why}) before the function returned{self._last_words()}"

    def _last_words(self) -> str:
        lines = printable(self.printed.decode(errors="replace")).strip().splitlines()
        fatal = [line for line in lines if line.startswith("Fatal Python error")]
        return f": {(fatal or lines)[-1][:300]}" if lines else ""

    def _current_line(self, file: str) -> int:
        """Return at which line of the submission's file the rank is, 0 if it does not say in time.

        At the signal the rank prints its stacks, which arrive in ``printed`` meanwhile.
        """
        with suppress(psutil.Error):
            self.rank.send_signal(signal.SIGALRM)
        deadline = time.monotonic() + STACK_SECONDS
        while True:
            line = self._line(file)
            if line or time.monotonic() >= deadline:
                return line
            time.sleep(0.02)

    def _line(self, file: str) -> int:
        """Find the line of a file in the last stacks: the first thread's come last, the innermost call first."""
        called = re.compile(
            rf'^  File "[^"\n]*\b{re.escape(file)}", line (\d{{1,7}}) in ', re.MULTILINE
        )
        threads = self.printed.decode(errors="replace").split("Thread 0x")
        found = [match for match in map(called.search, threads) if match]
        return int(found[-1][1]) if found else 0


def _told(file: str) -> str:
    """Return the text of a file of the kernel, empty where there is none, as for a process that has ended."""
    try:
        return Path(file).read_text()
    except OSError:
        return ""


def _own_memory(pid: int) -> int:
    """Return the bytes of a process that are no pages of files, which ranks share."""
    found = re.findall(
        r"^(?:RssAnon|RssShmem|VmSwap):\s+(\d+) kB$", _told(f"/proc/{pid}/status"), re.MULTILINE
    )
    return 1024 * sum(map(int, found))


def _waited(pid: int) -> float:
    """Return the seconds in which a process's first thread could run and had no processor."""
    return float([*_told(f"/proc/{pid}/schedstat").split(), "0", "0"][1]) / 1e9


def _other_thread_is_awake(pid: int) -> bool:
    """Return True if a thread of a process runs or waits for a disk.

    False for a process that has ended.
    """
    try:
        threads = [*Path("/proc", str(pid), "task").glob("*/stat")]
    except OSError:
        return False
    return any(_told(str(each)).rpartition(")")[2][1:2] in ("R", "D") for each in threads)


@contextmanager
def _filter() -> Iterator[int]:
    """Yield a file descriptor from which bubblewrap reads the filter of system calls."""
    read, write = os.pipe()
    try:
        # Less than a pipe holds.
        os.write(write, seccomp.program() if seccomp.has_filter() else b"")
        os.close(write)
        yield read
    finally:
        os.close(read)


def _own_user() -> tuple[int, BinaryIO]:
    """Return a user's number that no other rank on this machine has, as long as the file is open.

    The kernel counts processes by user, so ranks of one number would take each other's. Only root
    needs a number; the ranks of another user are counted by their namespaces.
    """
    held = os.fdopen(
        os.open(USED, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600), "r+b", 0
    )
    start = random.randrange(USERS)
    for number in itertools.chain(range(start, USERS), range(start)):
        with suppress(OSError):
            fcntl.fcntl(
                held, fcntl.F_OFD_SETLK, LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, number, 1, 0)
            )
            return FIRST_USER + number, held
    held.close()
    raise SandboxError(f"more than {USERS:,} ranks at once: no number of a user is free")

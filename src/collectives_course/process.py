"""One rank of a submission as a process: in a sandbox or, for an instructor who trusts the submission, without one."""

import fcntl
import itertools
import os
import random
import re
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import psutil  # type: ignore[import-untyped]

from collectives_course import seccomp
from collectives_course.channel import Channel, GoneError, UsageMeter, Used
from collectives_course.sandbox import Limits, SandboxError, bare_command, command
from collectives_course.verdict import Crashed, TimedOut, printable

FIRST_USER, USERS = 61_184, 4_000  # numbers that systemd leaves to such uses
USED = Path("/run/collectives-ranks.lock")  # which of them are used: a locked byte for each, which root alone can lock
LOCK = struct.Struct("hhqqi4x")  # of 64-bit Linux
OUTPUT_KEPT, MOST_OUTPUT = 16 << 10, 8 << 20
START_SECONDS, END_SECONDS = 300.0, 2.0  # a rank may import torch, on a busy machine
STACK_SECONDS = 2.0
AWAKE = (psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP)  # a stopped process sleeps, too
KILLED = 128 + 9
LIBRARY = Path(__file__).parents[1]  # for a rank without a sandbox; the sandbox has its own copy


class RankProcess:
    """One rank of a submission. ``channel`` leads to it; `kill` ends it and everything that it has started."""

    def __init__(self, folder: Path, limits: Limits, sandboxed: bool = True) -> None:
        self.user: BinaryIO | None = None
        self.sandboxed = sandboxed
        ours, theirs = socket.socketpair()
        with theirs, _filter() as filter_fd:
            if sandboxed:
                number, self.user = _own_user() if os.geteuid() == 0 else (0, None)
                typed = command(folder, limits, theirs.fileno(), number, filter_fd)
            else:
                typed = bare_command(folder, limits, theirs.fileno())
            self.process = subprocess.Popen(
                typed,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno(), filter_fd],
                env={"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "PYTHONPATH": str(LIBRARY)},
                start_new_session=True,
            )
        self.printed = b""
        self.size = 0
        self.rank = psutil.Process(self.process.pid)  # until it is ready
        self.channel = Channel(ours, self._ended, self._stack, self._usage)
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
        self.rank = [self.rank, *self.rank.children(recursive=True)][-1]  # within the sandbox
        self.channel.meter = UsageMeter(self._usage)  # to start costs nothing

    def kill(self) -> None:
        """End the process and all that it has started. Safe to call twice."""
        if self.sandboxed:
            self._kill_inside()
        if self.process.poll() is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, 9)
        self.process.wait()
        self.channel.connection.close()
        self.reader.join(END_SECONDS)  # until nothing that it has started is there to print
        if self.user:
            self.user.close()

    def _kill_inside(self) -> None:
        """The first process in the sandbox, and with it the kernel ends all others; bubblewrap collects it."""
        with suppress(psutil.Error, subprocess.TimeoutExpired):
            for first in psutil.Process(self.process.pid).children():
                first.kill()
                self.process.wait(END_SECONDS)

    def _usage(self) -> Used:
        """Return what the rank uses; one that has ended uses nothing, and one without its first thread is ended."""
        try:
            with self.rank.oneshot():
                times, status = self.rank.cpu_times(), self.rank.status()
            if status == psutil.STATUS_ZOMBIE:
                self.rank.kill()
            sleeps = status not in AWAKE and not _other_thread_is_awake(self.rank.pid)
            return Used(times.user + times.system, sleeps, _own_memory(self.rank.pid), _waited(self.rank.pid))
        except psutil.Error:
            return self.channel.meter.last._replace(sleeps=False)

    def _read(self) -> None:
        """Keep the end of what it prints; more than a limit ends it."""
        pipe: Any = self.process.stdout
        with pipe, suppress(OSError, ValueError):
            while piece := os.read(pipe.fileno(), 1 << 16):
                self.size += len(piece)
                self.printed = (self.printed + piece)[-OUTPUT_KEPT:]
                if self.size > MOST_OUTPUT:
                    self.process.kill()

    def _ended(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(END_SECONDS)
        if self.size > MOST_OUTPUT:
            return f"it printed more than {MOST_OUTPUT >> 20} MiB"
        code = self.process.returncode
        if code is None:
            return "it closed its connection to the grader"
        why = f"exit code {code}" + (", killed: too much memory or processor time" if code in (KILLED, -9) else "")
        self.reader.join(END_SECONDS)
        return f"its process ended ({why}) before the function returned{self._last_words()}"

    def _last_words(self) -> str:
        lines = printable(self.printed.decode(errors="replace")).strip().splitlines()
        fatal = [line for line in lines if line.startswith("Fatal Python error")]
        return f": {(fatal or lines)[-1][:300]}" if lines else ""

    def _stack(self, file: str) -> int:
        """The line of the submission's file at which the rank is; 0 where it does not say. Asks it by a signal."""
        with suppress(psutil.Error):
            self.rank.send_signal(signal.SIGALRM)
        end = time.monotonic() + STACK_SECONDS
        while not (line := self._line(file)) and time.monotonic() < end:
            time.sleep(0.02)
        return line

    def _line(self, file: str) -> int:
        """The line of a file in the stacks printed last: the first thread's come last, the innermost call first."""
        called = re.compile(rf'^  File "[^"\n]*\b{re.escape(file)}", line (\d{{1,7}}) in ', re.MULTILINE)
        threads = self.printed.decode(errors="replace").split("Thread 0x")
        found = [match for match in map(called.search, threads) if match]
        return int(found[-1][1]) if found else 0


def _told(file: str) -> str:
    """Return the text of a file of the kernel; empty where there is none, as for a process that has ended."""
    try:
        return Path(file).read_text()
    except OSError:
        return ""


def _own_memory(pid: int) -> int:
    """Return the bytes of a process that are no pages of files, which ranks share."""
    found = re.findall(r"^(?:RssAnon|RssShmem|VmSwap):\s+(\d+) kB$", _told(f"/proc/{pid}/status"), re.MULTILINE)
    return 1024 * sum(map(int, found))


def _waited(pid: int) -> float:
    """Return the seconds in which a process's first thread could run and had no processor."""
    return float([*_told(f"/proc/{pid}/schedstat").split(), "0", "0"][1]) / 1e9


def _other_thread_is_awake(pid: int) -> bool:
    threads = Path("/proc", str(pid), "task").glob("*/stat")
    return any(_told(str(each)).rpartition(")")[2][1:2] in ("R", "D") for each in threads)


@contextmanager
def _filter() -> Iterator[int]:
    """A file descriptor from which bubblewrap reads the filter of system calls."""
    read, write = os.pipe()
    try:
        os.write(write, seccomp.program() if seccomp.has_filter() else b"")  # less than a pipe holds
        os.close(write)
        yield read
    finally:
        os.close(read)


def _own_user() -> tuple[int, BinaryIO]:
    """A user's number that no other rank on this machine has, as long as the file is open.

    The kernel counts processes by user, so ranks of one number would take each other's. Only root needs a number; the
    ranks of another user are counted by their namespaces.
    """
    held = os.fdopen(os.open(USED, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600), "r+b", 0)
    start = random.randrange(USERS)
    for number in itertools.chain(range(start, USERS), range(start)):
        with suppress(OSError):
            fcntl.fcntl(held, fcntl.F_OFD_SETLK, LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, number, 1, 0))
            return FIRST_USER + number, held
    held.close()
    raise SandboxError(f"more than {USERS:,} ranks at once: no number of a user is free")

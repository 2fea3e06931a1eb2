"""Run in the sandbox without the words of the audit hook: prints as JSON what it could do and see."""

import ctypes
import fcntl
import json
import mmap
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

LIBC = ctypes.CDLL(None, use_errno=True)
NEW_USER, NEW_FILES = 0x10000000, 0x20000


def call(name: str, *arguments: Any) -> None:
    if getattr(LIBC, name)(*arguments) == -1:
        raise OSError(ctypes.get_errno(), name)


def memory() -> int:
    """Megabytes that can be mapped."""
    maps: list[mmap.mmap] = []
    try:
        while len(maps) < 64:
            maps.append(mmap.mmap(-1, 64 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    except OSError:
        return 64 * len(maps)
    return 64 * len(maps)


def locked() -> None:
    with Path("/submission/ring.py").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)


def cached(asked: Callable[[int], Any]) -> None:
    with Path("/submission/ring.py").open() as file:
        asked(file.fileno())


def shared(path: str) -> None:
    with Path(path).open("rb") as file:
        mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ)


def write(path: str) -> None:
    Path(path).open("ab").close()


TRIES: dict[str, Callable[[], Any]] = {
    "fork": os.fork,
    "clone": lambda: call("syscall", 56 if os.uname().machine == "x86_64" else 220, 17, 0, 0, 0, 0),
    "namespace of users": lambda: call("unshare", NEW_USER),
    "namespace of files": lambda: call("unshare", NEW_FILES),
    "mount": lambda: call("mount", b"x", b"/tmp", b"tmpfs", 0, None),
    "chroot": lambda: os.chroot("/tmp"),
    "ptrace": lambda: call("ptrace", 16, 1, 0, 0),
    "read another's memory": lambda: call("process_vm_readv", 1, 0, 0, 0, 0, 0),
    "setuid": lambda: os.setuid(0),
    "outlive the grader": lambda: call("prctl", 1, 0),
    "memory file": lambda: os.memfd_create("x"),
    "shared memory": lambda: call("shmget", 0, 4096, 0o1600),
    "shared mapping": lambda: mmap.mmap(-1, 4096),
    "shared mapping of a file": lambda: shared("/submission/ring.py"),
    "terminal": os.openpty,
    "threads of the machine": lambda: call("sysinfo", bytes(512)),
    "processes of the machine": Path("/proc/loadavg").read_text,
    "counters of the machine": Path("/proc/stat").read_text,
    "lock": locked,
    "page cache": lambda: cached(lambda file: os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)),
    "page cache, read": lambda: cached(
        lambda file: os.preadv(file, [bytearray(1)], 0, os.RWF_NOWAIT)
    ),
    "shared futex": lambda: call(
        "syscall", 202 if os.uname().machine == "x86_64" else 98, bytes(8), 1, 1, 0, 0, 0
    ),
    "watch": lambda: call("inotify_init1", 0),
    "TCP": lambda: socket.socket(socket.AF_INET),
    "UDP": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
    "unix": lambda: socket.socket(socket.AF_UNIX),
    "netlink": lambda: socket.socket(16),
    **{
        f"write {path}": lambda path=path: write(path)  # type: ignore[misc]
        for path in (
            "/x",
            "/dev/x",
            "/usr/x",
            "/usr/lib/x",
            "/submission/ring.py",
            "/grader/x",
            "/packages/x",
            "/etc/x",
            "/tmp/x",
            "/dev/shm/x",
            "/proc/self/oom_score_adj",
            "/proc/1/mem",
        )
    },
    **{
        f"read {path}": lambda path=path: [*Path(path).iterdir()]  # type: ignore[misc]
        for path in (
            "/proc/sys/fs",
            "/home",
            "/etc",
            "/grader/collectives/algorithms",
            "/usr/share",
            "/var",
        )
    },
}


def status(field: str) -> str:
    return next(
        line.split()[1]
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith(field)
    )


def main() -> None:
    """Print what worked, and what is there."""
    worked = []
    for name, tried in TRIES.items():
        try:
            tried()
        except OSError:
            continue
        worked.append(name)
    seen = {
        "processes": sorted(
            int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit()
        ),
        "variables": [
            Path(each, "environ").read_text()
            for each in ("/proc/1", "/proc/self")
            if os.access(f"{each}/environ", 4)
        ],
        "capabilities": [
            int(status(each), 16) for each in ("CapInh", "CapPrm", "CapEff", "CapAmb")
        ],
        "root": os.getuid() == 0,
        "open": len([*Path("/proc/self/fd").iterdir()]) - 1,
        "memory": memory(),
    }
    print(json.dumps({"worked": worked, **seen}))


if __name__ == "__main__":  # pytest imports every file of the tests
    main()

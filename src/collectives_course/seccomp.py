"""A filter of system calls (seccomp) for the sandbox: it lets through what Python, numpy and torch need, and no more.

So there is no process, no socket, no namespace and no memory that outlives its mapping. Two ranks
cannot signal each other by locks or watches on files that both can see, by the page cache, or by
futexes that are not private. What stays open is what nobody can close here: how busy processor,
memory and disk are. A call that is not allowed fails with EPERM.

The filter is a program of the kernel's classic packet filter: 8 bytes an instruction. libseccomp
could write it, but its Python bindings on PyPI (pyseccomp) have had no release since 2021 and need
a library of the system.
"""

import errno
import platform
import struct
from collections.abc import Iterable, Iterator
from itertools import chain

# The number of each allowed call on x86_64 and on the architectures that share the generic table;
# -1: not there.
ALLOWED = {
    # memory
    "brk": (12, 214), "membarrier": (324, 283), "mprotect": (10, 226), "mremap": (25, 216), "munmap": (11, 215),
    # files: none is written, because the sandbox has none that can be
    "access": (21, -1), "chdir": (80, 49), "close": (3, 57), "close_range": (436, 436), "dup": (32, 23),
    "dup2": (33, -1), "dup3": (292, 24), "faccessat": (269, 48), "faccessat2": (439, 439), "fchdir": (81, 50),
    "fstat": (5, 80), "fstatfs": (138, 44), "getcwd": (79, 17), "getdents": (78, -1), "getdents64": (217, 61),
    "lseek": (8, 62), "lstat": (6, -1), "newfstatat": (262, 79), "open": (2, -1), "openat": (257, 56),
    "openat2": (437, 437), "pread64": (17, 67), "preadv": (295, 69), "read": (0, 63), "readlink": (89, -1),
    "readlinkat": (267, 78), "readv": (19, 65), "stat": (4, -1), "statfs": (137, 43), "statx": (332, 291),
    "umask": (95, 166), "write": (1, 64), "writev": (20, 66),
    # the connection to the grader
    "getpeername": (52, 205), "getsockname": (51, 204), "getsockopt": (55, 209), "recvfrom": (45, 207),
    "sendto": (44, 206), "setsockopt": (54, 208), "shutdown": (48, 210),
    # threads and programs
    "arch_prctl": (158, -1), "capget": (125, 90), "capset": (126, 91), "execve": (59, 221), "exit": (60, 93),
    "exit_group": (231, 94), "getcpu": (309, 168), "getpriority": (140, 141), "rseq": (334, 293),
    "sched_get_priority_max": (146, 125), "sched_get_priority_min": (147, 126), "sched_getaffinity": (204, 123),
    "sched_getparam": (143, 121), "sched_getscheduler": (145, 120), "sched_setaffinity": (203, 122),
    "sched_yield": (24, 124), "set_robust_list": (273, 99), "set_tid_address": (218, 96), "setgroups": (116, 159),
    "setresgid": (119, 149), "setresuid": (117, 147), "wait4": (61, 260), "waitid": (247, 95),
    # signals
    "alarm": (37, -1), "getitimer": (36, 102), "kill": (62, 129), "pause": (34, -1), "restart_syscall": (219, 128),
    "rt_sigaction": (13, 134), "rt_sigpending": (127, 136), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139),
    "rt_sigsuspend": (130, 133), "rt_sigtimedwait": (128, 137), "setitimer": (38, 103), "sigaltstack": (131, 132),
    "tgkill": (234, 131), "tkill": (200, 130),
    # time and waiting
    "clock_getres": (229, 114), "clock_gettime": (228, 113), "clock_nanosleep": (230, 115), "epoll_create": (213, -1),
    "epoll_create1": (291, 20), "epoll_ctl": (233, 21), "epoll_pwait": (281, 22), "epoll_wait": (232, -1),
    "eventfd2": (290, 19), "gettimeofday": (96, 169), "nanosleep": (35, 101), "pipe": (22, -1), "pipe2": (293, 59),
    "poll": (7, -1), "ppoll": (271, 73), "pselect6": (270, 72), "select": (23, -1), "time": (201, -1),
    "times": (100, 153),
    # what a process is and may use
    "getegid": (108, 177), "geteuid": (107, 175), "getgid": (104, 176), "getgroups": (115, 158), "getpgid": (121, 155),
    "getpgrp": (111, -1), "getpid": (39, 172), "getppid": (110, 173), "getrandom": (318, 278), "getresgid": (120, 150),
    "getresuid": (118, 148), "getrlimit": (97, 163), "getrusage": (98, 165), "getsid": (124, 156), "gettid": (186, 178),
    "getuid": (102, 174), "prlimit64": (302, 261), "setrlimit": (160, 164), "uname": (63, 160),
}  # fmt: skip
# Of these calls an argument decides. Its place, and the values that are allowed:
CLONE, CLONE3, FCNTL, IOCTL, PRCTL = (56, 220), (435, 435), (72, 25), (16, 29), (157, 167)
FUTEX, MADVISE, MMAP = (202, 98), (28, 233), (9, 222)
CLONE_THREAD = 0x10000
# Another number of a file, and its flags; no lock, no lease, no watch.
FCNTL_ALLOWED = (0, 1, 2, 3, 4, 1030)
# Is it a terminal, how wide, bytes to read, flags.
IOCTL_ALLOWED = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
# Names of threads, and what setpriv asks; not to outlive the grader.
PRCTL_ALLOWED = (8, 15, 16, 23, 27, 38, 39, 47)
FUTEX_PRIVATE = 128
# Also a bit of MAP_SHARED_VALIDATE; what is shared stays in memory when no process maps it.
MAP_SHARED = 1
MADV_COLD = 20  # from here on: what takes pages out of memory, and what brings them there

MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7), "riscv64": (1, 0xC00000F3)}
# Where the kernel puts them; an argument has 8 bytes, the low ones first.
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, FAIL = 0x7FFF0000, 0x00050000
REFUSE, MISSING = FAIL | errno.EPERM, FAIL | errno.ENOSYS
# From here on are calls that this list has not judged, and the x32 calls of x86_64.
FIRST_UNKNOWN = 449

Instruction = tuple[int, int, int, int]


def has_filter() -> bool:
    """Return True if a filter exists for this machine."""
    return platform.machine() in MACHINES


def program(machine: str = "") -> bytes:
    """Return the filter for a machine (default: this one) as ``bwrap --seccomp`` reads it.

    Raises KeyError.
    """
    table, architecture = MACHINES[machine or platform.machine()]
    code = [
        (LOAD, 0, 0, ARCHITECTURE),
        (EQUAL, 1, 0, architecture),
        (RETURN, 0, 0, REFUSE),
        (LOAD, 0, 0, NUMBER),
    ]
    code += _if(AT_LEAST, FIRST_UNKNOWN, MISSING)  # libraries then take an older call
    code += _if(EQUAL, CLONE3[table], MISSING)  # its flags are in memory; libraries then call clone
    code += _if_any((each[table] for each in ALLOWED.values() if each[table] >= 0), ALLOW)
    for numbers, index, values in (
        (FCNTL, 1, FCNTL_ALLOWED),
        (IOCTL, 1, IOCTL_ALLOWED),
        (PRCTL, 0, PRCTL_ALLOWED),
    ):
        code += _with_argument(numbers[table], index, _if_any(values, ALLOW), REFUSE)
    code += _with_argument(CLONE[table], 0, _if(ANY_BIT, CLONE_THREAD, ALLOW), REFUSE)
    code += _with_argument(MMAP[table], 3, _if(ANY_BIT, MAP_SHARED, REFUSE), ALLOW)
    code += _with_argument(MADVISE[table], 2, _if(AT_LEAST, MADV_COLD, REFUSE), ALLOW)
    # The C library then looks again at what it waits for, as it does when a thread has ended.
    code += _with_argument(FUTEX[table], 1, _if(ANY_BIT, FUTEX_PRIVATE, ALLOW), FAIL | errno.EAGAIN)
    return b"".join(struct.pack("<HBBI", *each) for each in [*code, (RETURN, 0, 0, REFUSE)])


def _if(test: int, value: int, verdict: int) -> list[Instruction]:
    """Return the verdict where the test holds, else go on."""
    return [(test, 0, 1, value), (RETURN, 0, 0, verdict)]


def _if_any(values: Iterable[int], verdict: int) -> list[Instruction]:
    """Return the verdict where what was loaded is one of the values, else go on."""
    return list(chain.from_iterable(_if(EQUAL, value, verdict) for value in values))


def _with_argument(
    number: int, index: int, body: list[Instruction], otherwise: int
) -> Iterator[Instruction]:
    """Look at one argument of one call, and return ``otherwise`` where the body goes on."""
    yield EQUAL, 0, len(body) + 2, number
    yield LOAD, 0, 0, ARGUMENTS + 8 * index
    yield from body
    yield RETURN, 0, 0, otherwise

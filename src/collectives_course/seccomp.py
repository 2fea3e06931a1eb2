"""A filter of system calls (seccomp) for the sandbox: no process, no socket, no namespace, no memory past the limits.

Neither does it let two ranks signal each other by locks or watches on files that both can see, by the page cache, or by
futexes that are not private. A call of a later kernel than this list does not exist. What stays open is what nobody can
close here: how long a shared processor, disk or cache takes. A call that is not allowed fails with EPERM. The filter is
a program of the kernel's classic packet filter: 8 bytes an instruction.
"""

import errno
import platform
import struct
from collections.abc import Iterator

# The number of each refused call on x86_64 and on the architectures that share the generic table; -1: not there.
REFUSED = {
    "add_key": (248, 217),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "fadvise64": (221, 223),
    "fanotify_init": (300, 262),
    "flock": (73, 32),
    "fork": (57, -1),
    "fsopen": (430, 430),
    "ioprio_set": (251, 30),
    "inotify_init": (253, -1),
    "inotify_init1": (294, 26),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "kcmp": (312, 272),
    "keyctl": (250, 219),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "migrate_pages": (256, 238),
    "mincore": (27, 232),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (279, 239),
    "mq_open": (240, 180),
    "msgget": (68, 186),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pidfd_getfd": (438, 438),
    "pidfd_open": (434, 434),
    "pivot_root": (155, 41),
    "preadv2": (327, 286),
    "process_madvise": (440, 440),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pwritev2": (328, 287),
    "ptrace": (101, 117),
    "readahead": (187, 213),
    "request_key": (249, 218),
    "sched_setattr": (314, 274),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "semget": (64, 190),
    "setpriority": (141, 140),
    "setns": (308, 268),
    "shmget": (29, 194),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "sync": (162, 81),
    "sync_file_range": (277, 84),
    "syncfs": (306, 267),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "vfork": (58, -1),
}
CLONE, CLONE3, FCNTL, PRCTL = (56, 220), (435, 435), (72, 25), (157, 167)
FUTEX, MADVISE = (202, 98), (28, 233)
CLONE_THREAD = 0x10000
FCNTL_REFUSED = (5, 6, 7, 36, 37, 38, 1024, 1026)  # locks of a process and of an open file, leases, watches
FUTEX_PRIVATE = 128
MADV_COLD = 20  # from here on: what takes pages out of memory, and what brings them there
PR_SET_PDEATHSIG = 1  # with it a process could outlive the grader

MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7), "riscv64": (1, 0xC00000F3)}
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16  # where the kernel puts them; an argument has 8 bytes, the low ones first
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, FAIL = 0x7FFF0000, 0x00050000
REFUSE = FAIL | errno.EPERM
FIRST_UNKNOWN = 449  # from here on are calls that this list has not judged, and the x32 calls of x86_64

Instruction = tuple[int, int, int, int]


def has_filter() -> bool:
    """Whether there is a filter for this machine."""
    return platform.machine() in MACHINES


def program(machine: str = "") -> bytes:
    """The filter for a machine (this one, if empty), as ``bwrap --seccomp`` reads it. KeyError for an unknown one."""
    table, architecture = MACHINES[machine or platform.machine()]
    made = [(LOAD, 0, 0, ARCHITECTURE), (EQUAL, 1, 0, architecture), (RETURN, 0, 0, REFUSE), (LOAD, 0, 0, NUMBER)]
    made += _unless(AT_LEAST, FIRST_UNKNOWN, FAIL | errno.ENOSYS)  # libraries then take an older call
    for numbers in REFUSED.values():
        if numbers[table] >= 0:
            made += _unless(EQUAL, numbers[table], REFUSE)
    made += _unless(EQUAL, CLONE3[table], FAIL | errno.ENOSYS)  # its flags are in memory; libraries then call clone
    made += _with_argument(CLONE[table], 0, [(ANY_BIT, 1, 0, CLONE_THREAD), (RETURN, 0, 0, REFUSE)])
    made += _with_argument(FCNTL[table], 1, [each for cmd in FCNTL_REFUSED for each in _unless(EQUAL, cmd, REFUSE)])
    made += _with_argument(PRCTL[table], 0, _unless(EQUAL, PR_SET_PDEATHSIG, REFUSE))
    made += _with_argument(MADVISE[table], 2, _unless(AT_LEAST, MADV_COLD, REFUSE))
    # The C library then looks again at what it waits for, as it does when a thread has ended meanwhile.
    again = [(ANY_BIT, 1, 0, FUTEX_PRIVATE), (RETURN, 0, 0, FAIL | errno.EAGAIN)]
    made += _with_argument(FUTEX[table], 1, again)
    return b"".join(struct.pack("<HBBI", *each) for each in [*made, (RETURN, 0, 0, ALLOW)])


def _unless(test: int, value: int, verdict: int) -> list[Instruction]:
    """Return the verdict where the test holds; else go on."""
    return [(test, 0, 1, value), (RETURN, 0, 0, verdict)]


def _with_argument(number: int, index: int, body: list[Instruction]) -> Iterator[Instruction]:
    """For one call: look at one of its arguments, then again at the number."""
    yield EQUAL, 0, len(body) + 2, number
    yield LOAD, 0, 0, ARGUMENTS + 8 * index
    yield from body
    yield LOAD, 0, 0, NUMBER

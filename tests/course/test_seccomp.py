"""The filter of system calls: what it refuses and lets through, run by a small interpreter of the packet filter."""

import errno
import struct
import subprocess
import sys

import pytest

from collectives_course import seccomp

X86, ARM = 0xC000003E, 0xC00000B7
EPERM, ENOSYS = seccomp.REFUSE, seccomp.MISSING


def verdict(machine: str, architecture: int, number: int, *arguments: int) -> int:
    program = list(struct.iter_unpack("<HBBI", seccomp.program(machine)))
    data = struct.pack("<IIQ6Q", number, architecture, 0, *arguments, *[0] * (6 - len(arguments)))
    at = value = 0
    while True:
        code, yes, no, k = program[at]
        at += 1
        if code == seccomp.LOAD:
            (value,) = struct.unpack_from("<I", data, k)
        elif code == seccomp.RETURN:
            return int(k)
        else:
            holds = {seccomp.EQUAL: value == k, seccomp.AT_LEAST: value >= k, seccomp.ANY_BIT: bool(value & k)}[code]
            at += yes if holds else no


@pytest.mark.parametrize(("machine", "architecture", "table"), [("x86_64", X86, 0), ("aarch64", ARM, 1)])
def test_what_is_not_allowed_is_refused(machine: str, architecture: int, table: int) -> None:
    allowed = {numbers[table] for numbers in seccomp.ALLOWED.values() if numbers[table] >= 0}
    special = {each[table] for each in (seccomp.CLONE3, seccomp.FUTEX, seccomp.MADVISE, seccomp.MMAP)}
    for number in range(512):
        later = number >= seccomp.FIRST_UNKNOWN
        expected = ENOSYS if later else seccomp.ALLOW if number in allowed else EPERM
        if number not in special:
            assert verdict(machine, architecture, number, *[2**31] * 6) == expected, number


def test_calls_that_nobody_needs_are_refused() -> None:
    calls = {"sendmsg": 46, "modify_ldt": 154, "io_setup": 206, "vmsplice": 278, "name_to_handle_at": 303}
    assert {name: verdict("x86_64", X86, number) for name, number in calls.items()} == dict.fromkeys(calls, EPERM)
    asked = {"is it a terminal": 0x5401, "flags of a file on the disk": 0x80086601}
    found = {name: verdict("x86_64", X86, 16, 0, command) for name, command in asked.items()}
    assert found == {"is it a terminal": seccomp.ALLOW, "flags of a file on the disk": EPERM}


@pytest.mark.parametrize(("machine", "architecture", "clone"), [("x86_64", X86, 56), ("aarch64", ARM, 220)])
def test_a_thread_may_be_made_and_a_process_not(machine: str, architecture: int, clone: int) -> None:
    assert verdict(machine, architecture, clone, 0x3D0F00) == seccomp.ALLOW  # what pthread_create asks for
    assert verdict(machine, architecture, clone, 0x1200011) == EPERM  # what fork asks for
    assert verdict(machine, architecture, clone, 0x10000011) == EPERM  # a namespace of users
    assert verdict(machine, architecture, 435) == ENOSYS


def test_arguments_decide() -> None:
    assert [verdict("x86_64", X86, 72, 3, command) for command in (1, 6, 1024)] == [seccomp.ALLOW, EPERM, EPERM]
    assert [verdict("x86_64", X86, 157, option) for option in (1, 15)] == [EPERM, seccomp.ALLOW]


@pytest.mark.parametrize(("machine", "architecture", "mmap"), [("x86_64", X86, 9), ("aarch64", ARM, 222)])
def test_memory_is_mapped_privately(machine: str, architecture: int, mmap: int) -> None:
    flags = {
        "private": 0x02,
        "private, of no file": 0x22,
        "shared": 0x01,
        "shared, of no file": 0x21,
        "validated": 0x03,
    }
    found = {name: verdict(machine, architecture, mmap, 0, 4096, 3, each) for name, each in flags.items()}
    assert {name for name, each in found.items() if each == seccomp.ALLOW} == {"private", "private, of no file"}


def test_ranks_share_no_futex_and_no_page_cache() -> None:
    again = seccomp.FAIL | errno.EAGAIN
    assert [verdict("x86_64", X86, 202, 0, op) for op in (0, 1, 128, 129, 256 + 9)] == [
        again,
        again,
        *[seccomp.ALLOW] * 2,
        again,
    ]
    assert [verdict("aarch64", ARM, 233, 0, 0, advice) for advice in (4, 21, 22)] == [seccomp.ALLOW, EPERM, EPERM]
    for number in (221, 327, 27, 187, 277):  # fadvise64, preadv2, mincore, readahead, sync_file_range
        assert verdict("x86_64", X86, number) == EPERM
    assert verdict("x86_64", X86, 451) == ENOSYS  # cachestat


@pytest.mark.integration
def test_the_library_waits_by_the_same_call_on_every_machine_that_has_a_filter() -> None:
    code = "import platform, sys; from importlib import reload; from collectives.backends.p2p.loop import system\n"
    code += "for platform.machine in [lambda name=name: name for name in sys.argv[1:]]: print(reload(system).FUTEX)"
    told = subprocess.check_output([sys.executable, "-c", code, *seccomp.MACHINES], text=True, timeout=100)
    assert [int(each) for each in told.split()] == [seccomp.FUTEX[table] for table, _ in seccomp.MACHINES.values()]


def test_other_tables_of_calls_are_closed() -> None:
    assert verdict("x86_64", 0x40000003, 1) == EPERM  # 32 bits
    assert verdict("x86_64", X86, 0x40000001) == ENOSYS  # x32

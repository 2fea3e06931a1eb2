"""Call libc, and kernels by their addresses, from compiled code.

Load and store words that processes share.
"""

import fcntl
import os
import platform
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from collectives.compiled import compiled

Call = Any  # numba knows their types only when it compiles
readv: Call = types.ExternalFunction("readv", types.int64(types.int32, types.int64, types.int32))
writev: Call = types.ExternalFunction("writev", types.int64(types.int32, types.int64, types.int32))
poll: Call = types.ExternalFunction("poll", types.int32(types.int64, types.int64, types.int32))
ioctl: Call = types.ExternalFunction("ioctl", types.int32(types.int32, types.int64, types.int64))
sched_yield: Call = types.ExternalFunction("sched_yield", types.int32())
memmove: Call = types.ExternalFunction(
    "memmove", types.int64(types.int64, types.int64, types.int64)
)
setsockopt: Call = types.ExternalFunction(
    "setsockopt", types.int32(types.int32, types.int32, types.int32, types.int64, types.uint32)
)
sched_getcpu: Call = types.ExternalFunction("sched_getcpu", types.int32())
_sched_getaffinity: Call = types.ExternalFunction(
    "sched_getaffinity", types.int32(types.int32, types.uint64, types.int64)
)
_sched_setaffinity: Call = types.ExternalFunction(
    "sched_setaffinity", types.int32(types.int32, types.uint64, types.int64)
)
_syscall: Call = types.ExternalFunction("syscall", types.int64(*[types.int64] * 7))
_clock_gettime: Call = types.ExternalFunction(
    "clock_gettime", types.int32(types.int32, types.int64)
)
IS_LINUX = sys.platform == "linux"
_errno: Call = types.ExternalFunction(
    "__errno_location" if IS_LINUX else "__error",
    types.CPointer(types.int32)(),  # type: ignore[no-untyped-call]
)

SOL_SOCKET, SO_RCVLOWAT, SO_SNDBUF = (
    int(each) for each in (socket.SOL_SOCKET, socket.SO_RCVLOWAT, socket.SO_SNDBUF)
)
MONOTONIC = time.CLOCK_MONOTONIC
MILLION, BILLION = 1_000_000, 1_000_000_000
# The number of Linux's call "futex" on a processor, and what it is to do.
FUTEX = {"x86_64": 202, "aarch64": 98, "riscv64": 98}.get(platform.machine(), 0) if IS_LINUX else 0
SILENT_SECONDS = 3.0  # of compiling, before a line says so
CORE_WORDS = 64  # of a set of 4,096 cores
FUTEX_WAIT, FUTEX_WAKE, EVERY_RANK = 0, 1, 1 << 30


@contextmanager
def one_at_a_time(path: str) -> Iterator[None]:
    """Hold a lock on a file, so that of several processes one compiles and the others find its code in the cache.

    Lustre may have no locks, and NFS none on a file that cannot be written. There each process
    compiles by itself. The process that compiles says so on standard error if it takes seconds;
    those that wait for it say nothing.
    """
    with open(path, "rb+" if os.access(path, os.W_OK) else "rb") as once:  # noqa: PTH123
        with suppress(OSError):
            fcntl.flock(once, fcntl.LOCK_EX)
        telling = threading.Timer(SILENT_SECONDS, _tell)
        telling.daemon = True
        telling.start()
        try:
            yield
        finally:
            telling.cancel()


@cache  # once a process
def _tell() -> None:
    print(
        "collectives: compiling what moves data, once for this installation (up to a minute)",
        file=sys.stderr,
    )


@compiled
def now(times: Any) -> int:
    """Return the nanoseconds of the monotonic clock.

    ``times`` is an array of two numbers to write in.
    """
    _clock_gettime(MONOTONIC, times.ctypes.data)
    return int(times[0] * BILLION + times[1])


@compiled
def sleep(address: int, seen: int, nanoseconds: int, times: Any) -> None:
    """Sleep while the low half of a word in shared memory is as it was seen, until `wake`, but not for longer."""
    times[0], times[1] = nanoseconds // BILLION, nanoseconds % BILLION
    _syscall(FUTEX, address, FUTEX_WAIT, seen & 0xFFFFFFFF, times.ctypes.data, 0, 0)


@compiled
def wake(address: int) -> None:
    """Wake all ranks that sleep at an address."""
    _syscall(FUTEX, address, FUTEX_WAKE, EVERY_RANK, 0, 0, 0)


@compiled
def leave_core(cores: Any) -> None:
    """Move this thread to another of the cores on which it may run.

    ``cores`` is an array of CORE_WORDS to write in.
    """
    cores[:] = 0
    if _sched_getaffinity(0, np.uint64(8 * CORE_WORDS), cores.ctypes.data) < 0:
        return
    core = sched_getcpu()
    others, word = np.int64(0), core // 64
    cores[word] ^= np.int64(1) << (core % 64)
    for each in cores:
        others |= each
    if others:
        _sched_setaffinity(0, np.uint64(8 * CORE_WORDS), cores.ctypes.data)
    cores[word] ^= np.int64(1) << (core % 64)
    _sched_setaffinity(0, np.uint64(8 * CORE_WORDS), cores.ctypes.data)


@compiled
def error_number() -> int:
    """Return the number of the last call's error."""
    return int(_errno()[0])


@intrinsic
def _call_kernel(context: Any, function: Any, into: Any, one: Any, other: Any, count: Any) -> Any:
    """Call the function at an address with three addresses and a number."""
    del context, function, into, one, other, count

    def code(target: Any, builder: Any, signature: Any, values: Any) -> Any:
        del signature
        word = ir.IntType(64)
        kind = ir.FunctionType(ir.VoidType(), [word] * 4)
        builder.call(builder.inttoptr(values[0], kind.as_pointer()), values[1:])
        return target.get_dummy_value()

    return types.void(*[types.int64] * 5), code


call_kernel: Call = _call_kernel


@intrinsic
def _pointer(context: Any, address: Any) -> Any:
    """Return a number as the pointer that `carray` takes."""
    del context, address

    def code(target: Any, builder: Any, signature: Any, values: Any) -> Any:
        del target, signature
        return builder.inttoptr(values[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), code


pointer: Call = _pointer


# Words that two processes share.
_WORD = ir.IntType(64)


@intrinsic
def _load(context: Any, address: Any) -> Any:
    """Load the word at an address.

    What its writer wrote before is seen by what this process reads after.
    """
    del context, address

    def code(target: Any, builder: Any, signature: Any, values: Any) -> Any:
        del target, signature
        return builder.load_atomic(builder.inttoptr(values[0], _WORD.as_pointer()), "acquire", 8)

    return types.int64(types.int64), code


@intrinsic
def _store(context: Any, address: Any, value: Any) -> Any:
    """Store a word at an address, behind all that this process has read and written before."""
    del context, address, value

    def code(target: Any, builder: Any, signature: Any, values: Any) -> Any:
        del signature
        builder.store_atomic(
            values[1], builder.inttoptr(values[0], _WORD.as_pointer()), "release", 8
        )
        return target.get_dummy_value()

    return types.void(types.int64, types.int64), code


@intrinsic
def _swap(context: Any, address: Any, old: Any, new: Any) -> Any:
    """Write a word at an address if it is ``old``, and fence; False where it is another."""
    del context, address, old, new

    def code(target: Any, builder: Any, signature: Any, values: Any) -> Any:
        del target, signature
        word = builder.inttoptr(values[0], _WORD.as_pointer())
        return builder.extract_value(builder.cmpxchg(word, values[1], values[2], "seq_cst"), 1)

    return types.boolean(types.int64, types.int64, types.int64), code


@intrinsic
def _fence(context: Any) -> Any:
    """Make all loads and stores before it visible to other processes before any that follow it."""
    del context

    def code(target: Any, builder: Any, signature: Any, values: Any) -> Any:
        del signature, values
        builder.fence("seq_cst")
        return target.get_dummy_value()

    return types.void(), code


load: Call = _load
store: Call = _store
swap: Call = _swap
fence: Call = _fence

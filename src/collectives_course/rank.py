"""A rank of a submission, in its sandbox: loads the student's file, runs what the grader asks for, sends back results.

Nothing here decides a verdict. A submission can change all of this process and wins nothing: data
of other ranks, counters and expected results are in the grader's process.
"""

import errno
import faulthandler
import importlib
import importlib.util
import os
import resource
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from collectives_course import comm
from collectives_course.wire import Connection, GoneError, WireError, pack

FORBIDDEN_MODULES = (
    "horovod",
    "jax",
    "mpi4py",
    "torch",
    "collectives.algorithms",
    "collectives.api",
)
FORBIDDEN_EVENTS = (
    "ctypes.dlopen",
    "ctypes.dlsym",
    "os.exec",
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.system",
    "pty.spawn",
    "socket.bind",
    "socket.connect",
    "socket.getaddrinfo",
    "socket.sendto",
    "subprocess.Popen",
)


class ForbiddenError(PermissionError):
    """The submission tried what it must not do.

    The sandbox prevents it anyway. This says so in words.
    """


Ask = Callable[[dict[str, Any]], Any]
Load = Callable[[str], ModuleType]
Watch = Callable[[], AbstractContextManager[object]]


def serve(end: socket.socket, load: Load, watch: Watch = nullcontext) -> None:
    """Run one call after another until the grader goes.

    A call has "file", "call", "arguments", and "rank", "size" and "comm" of the first argument
    (size 0: none).

    The answer to a call is its value and the arrays among its arguments as they are then, or the
    error it raised. A call runs within ``watch()``.
    """
    connection = Connection(end)
    with suppress(GoneError):
        while True:
            connection.send_frame(answer(connection.next(), connection.ask, load, watch))


def answer(task: dict[str, Any], ask: Ask, load: Load, watch: Watch) -> bytes:
    """Return the packed answer to a call, whose questions ``ask`` answers.

    Packing is watched, too: the student's code makes a schedule's steps.
    """
    try:
        with watch():
            value = _called(task, ask, load)
            arrays = [each if isinstance(each, np.ndarray) else None for each in task["arguments"]]
            return pack({"op": "return", "value": value, "arguments": arrays})
    # SystemExit and KeyboardInterrupt, too: the rank stays, to say so.
    except BaseException as error:
        return pack({"op": "raise", **_described(error, task["file"])})


def _called(task: dict[str, Any], ask: Ask, load: Load) -> Any:
    function = getattr(load(task["file"]), task["call"], None)
    if not callable(function):
        raise AttributeError(f"{task['file']} has no function {task['call']}")
    arguments = task["arguments"]
    if task["size"]:
        kind = getattr(comm, task["comm"])
        arguments = [kind(task["rank"], task["size"], ask, task["file"]), *arguments]
    return function(*arguments)


def _described(error: BaseException, file: str) -> dict[str, Any]:
    """Describe an error: its kind, its text and the last line of the student's file in its traceback."""
    calls = traceback.walk_tb(error.__traceback__)
    lines = [line for frame, line in calls if frame.f_code.co_filename.endswith(file)]
    if isinstance(error, SyntaxError) and error.lineno:
        lines.append(error.lineno)
    return {
        "kind": _kind(error),
        "text": f"{type(error).__name__}: {_text(error)}",
        "line": lines[-1] if lines else 0,
    }


def _text(error: BaseException) -> str:
    try:
        return str(error)[:2000]
    except BaseException:
        return "its text cannot be read"


def _kind(error: BaseException) -> str:
    if _is_forbidden(error):
        return "blocked"
    if isinstance(error, NotImplementedError):
        return "unfinished"
    return "unsendable" if isinstance(error, WireError) else "crashed"


def _is_forbidden(error: BaseException | None) -> bool:
    """Return True for what the sandbox forbids, also if the kernel refused it or a library has wrapped the error."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.EPERM, errno.EACCES, errno.EROFS):
            return True
        if isinstance(error, ForbiddenError):
            return True
        if isinstance(error, ModuleNotFoundError) and str(error.name).startswith(FORBIDDEN_MODULES):
            return True
        error = error.__cause__ or error.__context__
    return False


def loader(folder: Path) -> Load:
    """Return a function that imports a file of a folder, once.

    An import that failed fails again.
    """

    @cache
    def load(file: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(Path(file).stem, folder / file)
        if spec is None or spec.loader is None:
            raise ImportError(f"{file} is no Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        return module

    return load


def forbid(readable: tuple[str, ...], writable: tuple[str, ...]) -> list[str]:
    """Raise ForbiddenError for processes, sockets and files elsewhere from now on.

    What was tried is in the list.
    """
    tried: list[str] = []

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in FORBIDDEN_EVENTS:
            _refuse(event, tried)
        if event == "open" and isinstance(arguments[0], str | bytes):
            path, flags = os.path.realpath(os.fsdecode(arguments[0])), arguments[2]
            writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            if not path.startswith(writable if writes else readable + writable):
                _refuse(f"{'writing' if writes else 'reading'} {path}", tried)

    sys.addaudithook(hook)
    return tried


def forbid_distributed(tried: list[str]) -> None:
    """Refuse the collectives of torch, if it is there.

    In a sandbox they would reach no other rank. This says so.
    """
    module, every = (
        sys.modules.get("torch.distributed"),
        sys.modules.get("torch.distributed.distributed_c10d"),
    )
    for name in (*getattr(every, "__all__", ()), "TCPStore", "FileStore", "HashStore"):
        if callable(getattr(module, name, None)) and not name.startswith("is_"):
            for each in (module, every):
                setattr(each, name, partial(_refuse, f"torch.distributed.{name}", tried))


def _refuse(what: str, tried: list[str], *_: Any, **__: Any) -> None:
    tried.append(what)
    raise ForbiddenError(f"{what} is forbidden in the sandbox")


def watcher(tried: list[str]) -> Watch:
    """Print the stacks when the grader asks by SIGALRM.

    At the end, raise an error for what was tried and hushed up.
    """

    @contextmanager
    def watch() -> Iterator[None]:
        # By a signal, which stops the thread: one that reads the stacks of others while they run
        # can crash.
        faulthandler.register(signal.SIGALRM, file=2)  # sys.stderr may be the student's
        yield
        if tried:
            _refuse(tried[0], [])
        left = [thread.name for thread in threading.enumerate() if _is_left(thread)]
        if left:
            raise RuntimeError(
                f"the function has returned, its threads still run: {', '.join(left)[:200]}"
            )

    return watch


def _is_left(thread: threading.Thread) -> bool:
    """Return True for a thread that the student started.

    Libraries' own threads are dummies to Python.
    """
    return thread is not threading.main_thread() and not isinstance(thread, threading._DummyThread)


def limit(memory: int, processes: int, file: int, cpu: int) -> None:
    """Set limits of this process and its children, which no process can raise again."""
    limits = {"AS": memory, "NPROC": processes, "FSIZE": file, "CPU": cpu, "CORE": 0, "NOFILE": 256}
    for name, most in limits.items():
        if most >= 0:
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (most, most))


def main() -> None:
    """Run ``python -m collectives_course.rank FD FOLDER MEMORY PROCESSES FILE CPU PACKAGE...`` in the sandbox."""
    fd, folder, *limits = sys.argv[1:7]
    end = socket.socket(fileno=int(fd))
    faulthandler.enable()
    sys.path.insert(0, folder)
    limit(*map(int, limits))
    # Before `forbid`, which would stop them: torch loads its libraries by ctypes.
    for package in sys.argv[7:]:
        importlib.import_module(package)
    tried = forbid(
        (
            folder,
            sys.prefix,
            sys.base_prefix,
            "/usr",
            "/etc/",
            "/grader",
            "/dev/",
            "/proc/",
            "/sys/",
            "/packages",
        ),
        ("/dev/",),
    )
    forbid_distributed(tried)
    Connection(end).send({"op": "ready"})
    serve(end, loader(Path(folder)), watcher(tried))


if __name__ == "__main__":
    main()

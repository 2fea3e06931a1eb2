"""A rank of a submission, in its sandbox: loads the student's file, runs what the grader asks for, sends back results.

Nothing here decides a verdict. A submission can change all of this process and wins nothing: data of other ranks,
counters and expected results are in the grader's process.
"""

import faulthandler
import importlib
import importlib.util
import os
import resource
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from collectives.grading.comm import Wire
from collectives.grading.wire import pack

FORBIDDEN_MODULES = ("horovod", "jax", "mpi4py", "torch", "collectives.algorithms", "collectives.api")
FORBIDDEN_EVENTS = (
    "ctypes.dlopen",
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
    """The submission tried what it must not do. The sandbox prevents it anyway; this says so in words."""


def serve(connection: socket.socket, load: Callable[[str], ModuleType]) -> None:
    """Run one call after another until the grader goes: ``{"file", "call", "arguments", "rank", "size", "comm"}``.

    The answer to a call is its value and the arrays among its arguments as they are then, or the error it raised.
    """
    wire = Wire(connection)
    while True:
        try:
            task = wire.hear()
        except (EOFError, OSError):
            return
        connection.sendall(_answer(task, wire, load))


def _answer(task: dict[str, Any], wire: Wire, load: Callable[[str], ModuleType]) -> bytes:
    """Packed in here, because the steps of a schedule are made, by the student's code, when it is packed."""
    try:
        value = _called(task, wire, load)
        return pack({"op": "return", "value": value, "arguments": _arrays(task["arguments"])})
    except (Exception, SystemExit) as error:
        return pack({"op": "raise", **_told(error, task["file"])})


def _called(task: dict[str, Any], wire: Wire, load: Callable[[str], ModuleType]) -> Any:
    function = getattr(load(task["file"]), task["call"], None)
    if not callable(function):
        raise AttributeError(f"{task['file']} has no function {task['call']}")
    arguments = task["arguments"]
    if task["size"]:
        arguments = [_connection(task["comm"])(task["rank"], task["size"], _asking(wire), task["file"]), *arguments]
    return function(*arguments)


def _connection(name: str) -> Any:
    """The class ``module:Class`` of this folder whose object a function gets as its first argument."""
    module, _, kind = name.partition(":")
    return getattr(importlib.import_module(f"collectives.grading.{module}"), kind)


def _asking(wire: Wire) -> Callable[[dict[str, Any]], Any]:
    def ask(question: dict[str, Any]) -> Any:
        wire.tell(question)
        return wire.hear()

    return ask


def _arrays(values: list[Any]) -> list[Any]:
    return [value if isinstance(value, np.ndarray) else None for value in values]


def _told(error: BaseException, file: str) -> dict[str, Any]:
    """An error in words: its kind, its text and the last line of the student's file in its traceback."""
    lines = [each.lineno for each in traceback.extract_tb(error.__traceback__) if each.filename.endswith(file)]
    if isinstance(error, SyntaxError) and error.lineno:
        lines.append(error.lineno)
    kind = "blocked" if _is_forbidden(error) else "unfinished" if isinstance(error, NotImplementedError) else "crashed"
    text = f"{type(error).__name__}: {error}"
    return {"kind": kind, "text": text[:2000], "line": lines[-1] if lines else 0}


def _is_forbidden(error: BaseException | None) -> bool:
    """Also where a library has wrapped the error."""
    while error is not None:
        if isinstance(error, ForbiddenError):
            return True
        if isinstance(error, ModuleNotFoundError) and str(error.name).startswith(FORBIDDEN_MODULES):
            return True
        error = error.__cause__ or error.__context__
    return False


def loader(folder: Path) -> Callable[[str], ModuleType]:
    """What imports a file of a folder, once; an import that failed fails again."""
    loaded: dict[str, ModuleType] = {}

    def load(file: str) -> ModuleType:
        if file not in loaded:
            spec = importlib.util.spec_from_file_location(Path(file).stem, folder / file)
            if spec is None or spec.loader is None:
                raise ImportError(f"{file} is no Python file")
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module
            spec.loader.exec_module(module)
            loaded[file] = module
        return loaded[file]

    return load


def forbid(readable: tuple[str, ...], writable: tuple[str, ...]) -> None:
    """Raise ForbiddenError for processes, sockets and files elsewhere, and note it, from now on."""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in FORBIDDEN_EVENTS:
            _refuse(event)
        if event == "open" and isinstance(arguments[0], str | bytes):
            path, flags = os.path.realpath(os.fsdecode(arguments[0])), arguments[2]
            writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            if not path.startswith(writable if writes else readable + writable):
                _refuse(f"{'writing' if writes else 'reading'} {path}")

    sys.addaudithook(hook)


def load_packages(names: list[str]) -> None:
    """Import packages before `forbid`, which would stop them: torch loads its libraries by ctypes.

    torch then has no collectives of its own. Without a network they would reach no other rank; this says so in words.
    """
    for name in names:
        importlib.import_module(name)
    if "torch" not in names:
        return
    torch = importlib.import_module("torch")
    if not torch.distributed.is_available():
        return
    everything = importlib.import_module("torch.distributed.distributed_c10d")
    for name in (*everything.__all__, "TCPStore", "FileStore", "HashStore"):
        if callable(getattr(torch.distributed, name, None)) and not name.startswith("is_"):
            for module in (torch.distributed, everything):
                setattr(module, name, _refusing(f"torch.distributed.{name}"))


def _refusing(what: str) -> Callable[..., None]:
    def refuse(*_: Any, **__: Any) -> None:
        _refuse(what)

    return refuse


def _refuse(what: str) -> None:
    raise ForbiddenError(f"{what} is forbidden in the sandbox")


def limit(memory: int, processes: int, file: int, cpu: int) -> None:
    """Limits of this process and its children, which no process can raise again."""
    limits = {"AS": memory, "NPROC": processes, "FSIZE": file, "CPU": cpu, "CORE": 0, "NOFILE": 256}
    for name, most in limits.items():
        if most >= 0:
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (most, most))


def main() -> None:
    """In the sandbox: ``python -m collectives.grading.rank FD FOLDER MEMORY PROCESSES FILE CPU PACKAGE...``."""
    fd, folder, *limits = sys.argv[1:7]
    connection = socket.socket(fileno=int(fd))
    faulthandler.enable()
    sys.path.insert(0, folder)
    limit(*map(int, limits))
    load_packages(sys.argv[7:])
    forbid(
        (folder, sys.prefix, sys.base_prefix, "/usr", "/grader", "/dev/", "/proc/", "/sys/", "/packages"),
        ("/tmp", "/dev/"),
    )
    Wire(connection).tell({"op": "ready"})
    serve(connection, loader(Path(folder)))


if __name__ == "__main__":
    main()

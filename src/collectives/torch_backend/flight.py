"""Keep the calls that the groups of this process made last, and dump them in the format of torch's flight recorder.

torch's own variables rule it:

- TORCH_FR_DUMP_TEMP_FILE (or TORCH_NCCL_DEBUG_INFO_TEMP_FILE): where a call that fails or runs into
  its timeout dumps the calls before it, with the rank appended. Without it none are kept, and a
  call costs what it did.
- TORCH_FR_BUFFER_SIZE (or TORCH_NCCL_TRACE_BUFFER_SIZE): how many calls are kept, by default 2000.
- TORCH_NCCL_DEBUG_INFO_PIPE_FILE: a pipe, with the rank and ".pipe" appended. Whatever is written
  into it makes that rank dump, as with ``echo > prefix3.pipe``.

A thread reads the pipe. A signal's handler would wait until the main thread runs Python again,
which a hung one may never do; and launchers and schedulers use SIGUSR1 and SIGUSR2 themselves.

A dump is a pickle of plain values, which ``collectives read`` and torch's own analyser read
(``python -m torch.distributed.flight_recorder.fr_trace``). Calls have the name of what carries
their messages, as in ``gloo:all_reduce``: the analyser refuses other names.
"""

from __future__ import annotations

import atexit
import os
import pickle
import sys
import threading
import warnings
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import count
from pathlib import Path
from time import time_ns
from types import CodeType
from typing import Any
from weakref import WeakSet

import torch
from torch import distributed as dist

SIZE = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
FILE = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
PIPE = ("TORCH_NCCL_DEBUG_INFO_PIPE_FILE",)
DEFAULT_SIZE = "2000"
PACKAGE = "collective-communication"
VERSION = "2.10"  # of the format, as torch 2.13 has it

IN_PLACE = ("all_reduce", "broadcast", "reduce")
LIBRARIES = tuple(f"{Path(file).parent}{os.sep}" for file in (torch.__file__, __file__))
# torch's names of dtypes in C++, where they are not those in Python with a capital letter.
TYPES = {
    "float32": "Float",
    "float64": "Double",
    "float16": "Half",
    "bfloat16": "BFloat16",
    "int64": "Long",
}
TYPES |= {
    "int32": "Int",
    "int16": "Short",
    "int8": "Char",
    "uint8": "Byte",
    "complex64": "ComplexFloat",
}

Shapes = list[torch.Size]


class Members:
    """A group: its name and ranks, how many calls it made, its timeout in ms, and the algorithm asked for."""

    def __init__(self, given: Any, group: dist.ProcessGroup, algorithm: str) -> None:
        self.name, self.timeout = str(given.group_id), int(given.timeout.total_seconds() * 1000)
        self.algorithm = algorithm
        self.ranks = [*(given.global_ranks_in_group or range(given.group_size))]
        self.here, self.rank = given.group_rank, self.ranks[given.group_rank]
        self.collectives, self.messages, self.description, self.is_dumped = 0, 0, "undefined", False
        self.keeps = bool(_calls.maxlen and setting(FILE))
        _groups.add(group)
        if self.keeps:
            _listen(self.rank)


class Entry:
    """A call and its times in ns, 0 for not yet, which a ``with`` around it takes.

    Nothing in it keeps a tensor.

    ``event`` is what a call on CUDA tensors ends with. It is over when it has failed, too: that
    dumps.
    """

    __slots__ = (
        "code",
        "collectives",
        "completed",
        "created",
        "device",
        "dtype",
        "event",
        "inputs",
        "is_over",
        "line",
        "messages",
        "of",
        "operation",
        "outputs",
        "peer",
        "record",
        "started",
    )

    code: CodeType
    dtype: torch.dtype  # of the first tensor: torch lets those of a call have one only
    outputs: Shapes
    inputs: Shapes
    record: int
    collectives: int
    messages: int
    created: int
    line: int

    def __init__(self, of: Members, operation: str, device: str, peer: int | None = None) -> None:
        self.of, self.operation, self.device, self.peer = of, operation, device, peer
        self.started, self.completed, self.is_over = 0, 0, False
        self.event: torch.cuda.Event | None = None

    def __enter__(self) -> None:
        self.started = self.started or time_ns()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.is_over = True
        if kind is None:
            self.completed = time_ns()
        elif issubclass(kind, RuntimeError) and not self.of.is_dumped:
            self.of.is_dumped = True
            dump(self.of.rank)


_groups: WeakSet[Any] = WeakSet()
_count = count()
_dumping = threading.Lock()
_listening: list[threading.Thread] = []


def setting(names: Sequence[str], default: str = "") -> str:
    """Return the value of the first of these variables that is set."""
    return next((value for name in names if (value := os.environ.get(name))), default)


def size() -> int:
    """Return how many calls to keep. Raises ValueError, which names the variable."""
    value = setting(SIZE, DEFAULT_SIZE)
    if not value.isdecimal():
        raise ValueError(f"{SIZE[0]}: got {value!r}, expected a number of calls, or 0 to keep none")
    return int(value)


_calls: deque[Entry] = deque(maxlen=size())


def record(entry: Entry, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> Entry:
    """Keep a call that is made now, if its group keeps any: 5 µs."""
    of = entry.of
    if not of.keeps:
        return entry
    if entry.peer is None:
        of.collectives += 1
    else:
        of.messages += 1
    entry.record, entry.collectives, entry.messages = next(_count), of.collectives, of.messages
    entry.outputs, entry.inputs = [each.shape for each in outputs], [each.shape for each in inputs]
    entry.dtype = (outputs or inputs)[0].dtype
    frame = sys._getframe(2)
    while frame.f_back and _is_library(frame.f_code.co_filename):
        frame = frame.f_back
    entry.code, entry.line, entry.created = frame.f_code, frame.f_lineno, time_ns()
    _calls.append(entry)
    return entry


@cache
def _is_library(file: str) -> bool:
    return file.startswith(LIBRARIES)


def dump(rank: int) -> None:
    """Write all calls that are kept, if a prefix for files is set.

    A file that cannot be written is a warning.
    """
    if not (prefix := setting(FILE)):
        return
    path = Path(f"{prefix}{rank}")
    part = path.with_name(f".{path.name}.{os.getpid()}")
    with _dumping:
        try:
            part.write_bytes(pickle.dumps(snapshot(), protocol=2))
            part.replace(path)
        except OSError as error:
            warnings.warn(f"no dump of the flight recorder: {error}", RuntimeWarning, stacklevel=2)


def snapshot() -> dict[str, Any]:
    """Return the calls that are kept, as torch's analyser expects them."""
    calls = list(_calls)
    known = [*(call.of for call in calls), *(group.members for group in list(_groups))]
    return {
        "version": VERSION,
        "comm_lib_version": _version(),
        "pg_config": {
            of.name: {"name": of.name, "desc": of.description, "ranks": str(of.ranks)}
            for of in known
        },
        "pg_status": {},
        "entries": [_entry(call) for call in calls],
    }


def _version() -> str:
    try:
        return version(PACKAGE)
    except PackageNotFoundError:  # run from a checkout that is not installed
        return ""


def _entry(call: Entry) -> dict[str, Any]:
    of, outputs = call.of, call.outputs
    inputs = outputs if call.operation in IN_PLACE else call.inputs
    if call.operation == "barrier":
        outputs = inputs = []
    is_done = call.completed and (call.event is None or call.event.query())  # type: ignore[no-untyped-call]
    dtype = str(call.dtype).removeprefix("torch.")
    return {
        "record_id": call.record,
        "pg_id": 0,
        "process_group": (of.name, of.description),
        "collective_seq_id": call.collectives,
        "p2p_seq_id": call.messages,
        "op_id": call.collectives + call.messages,
        "profiling_name": _name(call),
        "time_created_ns": call.created,
        "input_sizes": _sizes(inputs, len(of.ranks) * len(outputs)),
        "input_dtypes": [TYPES.get(dtype, dtype.capitalize())] * len(inputs),
        "output_sizes": _sizes(outputs, len(of.ranks) * len(inputs)),
        "output_dtypes": [TYPES.get(dtype, dtype.capitalize())] * len(outputs),
        "state": "completed" if is_done else "started" if call.started else "scheduled",
        "time_discovered_started_ns": call.started or None,
        "time_discovered_completed_ns": call.completed if is_done else None,
        "retired": call.is_over,
        "timeout_ms": of.timeout,
        "algorithm": of.algorithm,
        "is_p2p": call.peer is not None,
        "frames": [
            {"name": call.code.co_name, "filename": call.code.co_filename, "line": call.line}
        ],
    }


def _name(call: Entry) -> str:
    """Return the name of a call as torch writes it: gloo:all_reduce, gloo:send 0->1, gloo:recv 1<-0."""
    ends = (
        ""
        if call.peer is None
        else f" {call.of.here}{'->' if call.operation == 'send' else '<-'}{call.peer}"
    )
    return f"{'gloo' if call.device == 'cpu' else 'nccl'}:{call.operation}{ends}"


def _sizes(shapes: Shapes, parts: int) -> list[list[int]]:
    """Return the sizes of tensors; the equal parts of a whole are one, as torch writes them."""
    sizes = [[*shape] for shape in shapes]
    is_whole = len(sizes) == parts > 1 and all(each == sizes[0] for each in sizes)
    return [[parts, *sizes[0]]] if is_whole else sizes


def _listen(rank: int) -> None:
    """Dump whenever somebody writes into the pipe that is asked for; one thread for a process."""
    prefix = setting(PIPE)
    if not prefix or _listening:
        return
    path = Path(f"{prefix}{rank}.pipe")
    try:
        path.unlink(missing_ok=True)
        os.mkfifo(path, 0o600)
    except OSError as error:
        warnings.warn(f"no pipe for the flight recorder: {error}", RuntimeWarning, stacklevel=2)
        return
    atexit.register(path.unlink, missing_ok=True)
    _listening.append(
        threading.Thread(target=_read, args=(path, rank), daemon=True, name="collectives dump")
    )
    _listening[0].start()


def _read(pipe: Path, rank: int) -> None:
    with suppress(FileNotFoundError):
        while True:
            pipe.read_bytes()  # waits for a writer, and until it closes
            dump(rank)

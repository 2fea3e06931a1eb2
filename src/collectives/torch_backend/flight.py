"""What the groups of this process called last, kept as torch's flight recorder keeps it, and dumped in its format.

torch's own variables rule it:

- TORCH_FR_BUFFER_SIZE (or TORCH_NCCL_TRACE_BUFFER_SIZE): how many calls are kept, by default 2000; 0 switches it off.
- TORCH_FR_DUMP_TEMP_FILE (or TORCH_NCCL_DEBUG_INFO_TEMP_FILE): where a call that fails or runs into its timeout dumps
  them, with the rank appended. Without it no file appears.
- TORCH_NCCL_DEBUG_INFO_PIPE_FILE: a pipe, with the rank and ".pipe" appended. Whatever is written into it makes that
  rank dump, as with ``echo > prefix3.pipe``.

A thread reads the pipe. A signal's handler would wait until the main thread runs Python again, which a hung one may
never do; and launchers and schedulers use SIGUSR1 and SIGUSR2 themselves.

A dump is a pickle of plain values, which ``collectives read`` and torch's own analyser read
(``python -m torch.distributed.flight_recorder.fr_trace``). Calls have the name of what carries their messages, as in
``gloo:all_reduce``: the analyser refuses other names.
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
from typing import Any, NamedTuple
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
TYPES = {"float32": "Float", "float64": "Double", "float16": "Half", "bfloat16": "BFloat16", "int64": "Long"}
TYPES |= {"int32": "Int", "int16": "Short", "int8": "Char", "uint8": "Byte", "complex64": "ComplexFloat"}

Kinds = list[tuple[torch.Size, torch.dtype]]


class Members:
    """A group: its name and ranks, how many calls it made, its timeout in ms, and the algorithm asked for."""

    def __init__(self, given: Any, group: dist.ProcessGroup, algorithm: str) -> None:
        self.name, self.timeout = str(given.group_id), int(given.timeout.total_seconds() * 1000)
        self.algorithm = algorithm
        self.ranks = [*(given.global_ranks_in_group or range(given.group_size))]
        self.rank = self.ranks[given.group_rank]
        self.collectives, self.messages, self.description, self.is_dumped = 0, 0, "undefined", False
        _groups.add(group)
        _listen(self.rank)


class Times:
    """When a call was started and completed, in ns, 0 for not yet; a ``with`` around it takes the times.

    ``event`` is what a call on CUDA tensors ends with. It is over when it has failed, too: that dumps.
    """

    __slots__ = ("completed", "event", "is_over", "of", "started")

    def __init__(self, of: Members) -> None:
        self.of, self.started, self.completed, self.is_over = of, 0, 0, False
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


class Call(NamedTuple):
    """An entry. Nothing in it keeps a tensor."""

    record: int
    of: Members
    collectives: int
    messages: int
    operation: str
    outputs: Kinds
    inputs: Kinds
    device: str
    created: int
    code: CodeType
    line: int
    times: Times


_groups: WeakSet[Any] = WeakSet()
_count = count()
_dumping = threading.Lock()
_listening: list[threading.Thread] = []


def setting(names: Sequence[str], default: str = "") -> str:
    """The first of these variables that is set."""
    return next((value for name in names if (value := os.environ.get(name))), default)


def size() -> int:
    """How many calls to keep. Raises ValueError, which names the variable."""
    value = setting(SIZE, DEFAULT_SIZE)
    if not value.isdecimal():
        raise ValueError(f"{SIZE[0]}: got {value!r}, expected a number of calls, or 0 to keep none")
    return int(value)


_calls: deque[Call] = deque(maxlen=size())


def record(of: Members, operation: str, outputs: Sequence[Any], inputs: Sequence[Any], device: str) -> Times:
    """Keep a call that is made now; its times are for whoever runs it. It takes about two microseconds."""
    times = Times(of)
    if not _calls.maxlen:
        return times
    if operation.startswith(("send", "recv")):
        of.messages += 1
    else:
        of.collectives += 1
    frame = sys._getframe(1)
    while frame.f_back and _is_library(frame.f_code.co_filename):
        frame = frame.f_back
    out, into = [(each.shape, each.dtype) for each in outputs], [(each.shape, each.dtype) for each in inputs]
    numbers = next(_count), of, of.collectives, of.messages
    _calls.append(Call(*numbers, operation, out, into, device, time_ns(), frame.f_code, frame.f_lineno, times))
    return times


@cache
def _is_library(file: str) -> bool:
    return file.startswith(LIBRARIES)


def dump(rank: int) -> None:
    """Write all that is kept, if a prefix for files is set; a file that cannot be written is a warning."""
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
    """What is kept, as torch's analyser expects it."""
    for group in list(_groups):
        group.members.description = group.group_desc  # which torch gives it after it was made
    calls = list(_calls)
    known = [*(call.of for call in calls), *(group.members for group in list(_groups))]
    return {
        "version": VERSION,
        "comm_lib_version": _version(),
        "pg_config": {of.name: {"name": of.name, "desc": of.description, "ranks": str(of.ranks)} for of in known},
        "pg_status": {},
        "entries": [_entry(call) for call in calls],
    }


def _version() -> str:
    try:
        return version(PACKAGE)
    except PackageNotFoundError:  # run from a checkout that is not installed
        return ""


def _entry(call: Call) -> dict[str, Any]:
    of, times = call.of, call.times
    outputs, inputs = call.outputs, call.outputs if call.operation in IN_PLACE else call.inputs
    if call.operation == "barrier":
        outputs = inputs = []
    is_done = times.completed and (times.event is None or times.event.query())  # type: ignore[no-untyped-call]
    return {
        "record_id": call.record,
        "pg_id": 0,
        "process_group": (of.name, of.description),
        "collective_seq_id": call.collectives,
        "p2p_seq_id": call.messages,
        "op_id": call.collectives + call.messages,
        "profiling_name": f"{'gloo' if call.device == 'cpu' else 'nccl'}:{call.operation}",
        "time_created_ns": call.created,
        "input_sizes": _sizes(inputs, len(of.ranks) * len(outputs)),
        "input_dtypes": [_type(dtype) for _, dtype in inputs],
        "output_sizes": _sizes(outputs, len(of.ranks) * len(inputs)),
        "output_dtypes": [_type(dtype) for _, dtype in outputs],
        "state": "completed" if is_done else "started" if times.started else "scheduled",
        "time_discovered_started_ns": times.started or None,
        "time_discovered_completed_ns": times.completed if is_done else None,
        "retired": times.is_over,
        "timeout_ms": of.timeout,
        "algorithm": of.algorithm,
        "is_p2p": call.operation.startswith(("send", "recv")),
        "frames": [{"name": call.code.co_name, "filename": call.code.co_filename, "line": call.line}],
    }


def _sizes(kinds: Kinds, parts: int) -> list[list[int]]:
    """Sizes of tensors; the equal parts of a whole as one, as torch writes them."""
    sizes = [[*shape] for shape, _ in kinds]
    is_whole = len(sizes) == parts > 1 and all(each == sizes[0] for each in sizes)
    return [[parts, *sizes[0]]] if is_whole else sizes


def _type(dtype: torch.dtype) -> str:
    name = str(dtype).removeprefix("torch.")
    return TYPES.get(name, name.capitalize())


def _listen(rank: int) -> None:
    """Dump whenever somebody writes into the pipe that is asked for; one thread for a process."""
    prefix = setting(PIPE)
    if not prefix or not _calls.maxlen or _listening:
        return
    path = Path(f"{prefix}{rank}.pipe")
    path.unlink(missing_ok=True)
    os.mkfifo(path, 0o600)
    atexit.register(path.unlink, missing_ok=True)
    _listening.append(threading.Thread(target=_read, args=(path, rank), daemon=True, name="collectives dump"))
    _listening[0].start()


def _read(pipe: Path, rank: int) -> None:
    with suppress(FileNotFoundError):
        while True:
            pipe.read_bytes()  # waits for a writer, and until it closes
            dump(rank)
